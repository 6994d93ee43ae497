"""The S-DP paper's Table 2 and Figures 3 to 7."""

from __future__ import annotations

from .scales import ORIGINAL, WIKITEXT
from .study import Check, Row, Study, Sweep

NOISES = (0.5, 1.0, 2.0)
NAMES = {ORIGINAL: "CustomerSim", WIKITEXT: "WikiText-2"}
WHOLE = {"unit": "document"}
PAPER = {"variant": "paper"}
NOT_COMPARABLE = "An ε of sdp protects the marked tokens alone: it does not compare with a confidentiality ε."
PUBLISHED = (
    {"row": "No-DP, CustomerSim", "ppl_sdp": 3.06, "ppl_non_secret_sdp": 1.26, "accuracy": 0.75},
    {"row": "DPSGD, CustomerSim", "ppl_sdp": 11.82, "ppl_non_secret_sdp": 1.87, "accuracy": 0.70, "paper_epsilon": 2.51},
    {"row": "S-DPSGD, CustomerSim", "ppl_sdp": 10.42, "ppl_non_secret_sdp": 1.76, "accuracy": 0.69, "paper_epsilon": 2.74},
)  # fmt: skip
TOKENS = (
    "S-DP counts fewer tokens in a dialogue than GPT-2 does (a speaker's tag is one of its tokens, an end of line none), so that its perplexities are higher for the same "
    "model: they compare with the columns per token of S-DP only. Its non-secret perplexities are from the authors' logs, not from the paper. "
)
TABLE_2 = Study(
    "sdp-table2", "S-DP, Table 2", "utility and ε of the LSTM",
    "at about the same ε, Selective-DPSGD predicts better than DP-SGD, on WikiText-2 by far.",
    tuple(
        row for corpus in (WIKITEXT, ORIGINAL) for row in (
            Row(f"plain, {NAMES[corpus]}", corpus, "lstm", "plain", WHOLE),
            Row(f"dpsgd, {NAMES[corpus]}", corpus, "lstm", "dpsgd", WHOLE),
            Row(f"sdp as in the paper, {NAMES[corpus]}", corpus, "lstm", "sdp", WHOLE, PAPER),
            Row(f"sdp, sound, {NAMES[corpus]}", corpus, "lstm", "sdp", WHOLE, {"variant": "sound"}),
        )
    ),
    ("epsilon", "paper_epsilon", "ppl", "ppl_sdp", "ppl_non_secret", "ppl_non_secret_sdp", "ppl_secret", "accuracy", "bits"),
    checks=(
        *(Check("below", (f"sdp as in the paper, {name}", f"dpsgd, {name}"), "ppl", f"S-DP predicts better than DP-SGD on {name}") for name in NAMES.values()),
        *(Check("below", (f"plain, {name}", f"sdp as in the paper, {name}"), "ppl", f"training without noise is better still on {name}") for name in NAMES.values()),
    ),
    published=(
        {"row": "No-DP, WikiText-2", "ppl": 60.98, "accuracy": 0.36}, {"row": "DPSGD, WikiText-2", "ppl": 305.86, "accuracy": 0.27, "paper_epsilon": 4.89},
        {"row": "S-DPSGD, WikiText-2", "ppl": 160.04, "accuracy": 0.31, "paper_epsilon": 4.91},
        *PUBLISHED,
    ),
    notes=NOT_COMPARABLE + " " + TOKENS,
)  # fmt: skip


def _trade_off(name: str, number: int, corpus: str) -> Study:
    noised = Sweep("noise", NOISES, "noise")
    free = {"epsilon": None}
    rows = (
        Row("plain", corpus, "lstm", "plain", {**WHOLE, "canaries": "sdp"}, swept=False, size="small"),
        Row("dpsgd", corpus, "lstm", "dpsgd", {**WHOLE, "canaries": "sdp"}, free, size="small"),
        Row(
            "sdp as in the paper", corpus, "lstm", "sdp", {**WHOLE, "canaries": "sdp"}, {**free, **PAPER}, size="small"
        ),
    )
    return Study(
        name, f"S-DP, Figure {number}", f"perplexity, exposure and membership by noise, on {NAMES[corpus]}",
        "at the same ε or the same exposure S-DP predicts better than DP-SGD; without noise the canary is exposed fully.",
        rows, ("epsilon", "paper_epsilon", "ppl", "exposure_max", "sdp_mia", "sdp_mia_chance", "mia_auc", "mia_blind"), noised, y="ppl",
        checks=(Check("below", ("sdp as in the paper", "dpsgd"), "ppl", "S-DP predicts better than DP-SGD at every noise"),
                Check("below", ("sdp as in the paper", "plain"), "exposure_max", "S-DP exposes the canary less than training without noise")),
        attack=("exposure", "membership"), notes=NOT_COMPARABLE,
    )  # fmt: skip


FIGURE_5 = Study(
    "sdp-fig5", "S-DP, Figure 5", "perplexity of private tokens: anonymised text against S-DP",
    "anonymised text teaches nothing about private tokens; S-DP trades ε for them.",
    (
        Row("anonymized", WIKITEXT, "lstm", "anonymized", WHOLE, swept=False),
        Row("sdp as in the paper", WIKITEXT, "lstm", "sdp", WHOLE, {"epsilon": None, **PAPER}),
    ),
    ("epsilon", "paper_epsilon", "ppl_secret", "ppl"), Sweep("noise", NOISES, "noise"), y="ppl_secret",
    checks=(
        Check("below", ("sdp as in the paper", "anonymized"), "ppl_secret", "S-DP predicts private tokens better at every noise"),
        Check("rises", ("sdp as in the paper",), "ppl_secret", "their perplexity rises with the noise"),
    ),
    notes=NOT_COMPARABLE,
)  # fmt: skip
MISSED = {**WHOLE, "canaries": "sdp,policy=missed"}
FIGURE_6 = Study(
    "sdp-fig6", "S-DP, Figure 6", "exposure of a canary that the policy misses, over epochs",
    "a missed secret is exposed by both; at middle perplexities S-DP exposes it less than anonymised text.",
    (
        Row("anonymized", WIKITEXT, "lstm", "anonymized", MISSED),
        Row("sdp as in the paper", WIKITEXT, "lstm", "sdp", MISSED, {"epsilon": None, "noise": 0.5, **PAPER}),
        Row("crt", WIKITEXT, "lstm", "crt", MISSED),
    ),
    ("epsilon", "ppl", "exposure_max"), Sweep("epochs", (2, 5, 10), "epochs"), y="exposure_max", attack=("exposure",),
    checks=(
        Check("rises", ("anonymized",), "exposure_max", "the missed canary of anonymised text is exposed more and more"),
        Check("below", ("crt", "anonymized"), "exposure_max", "crt, which the paper does not have, exposes it less"),
    ),
    notes=NOT_COMPARABLE,
)  # fmt: skip
FIGURE_7 = Study(
    "sdp-fig7", "S-DP, Figure 7", "the effect of noise and clipping norm",
    "perplexity rises with the noise, and depends on the clipping norm.",
    tuple(
        Row(f"sdp as in the paper, C = {clip:g}", ORIGINAL, "lstm", "sdp", WHOLE, {"epsilon": None, "clip_norm": clip, **PAPER}, size="small") for clip in (1e-3, 5e-3, 5e-2)
    ),
    ("epsilon", "paper_epsilon", "ppl", "ppl_secret"), Sweep("noise", NOISES, "noise"), y="ppl",
    checks=(Check("rises", ("sdp as in the paper, C = 0.005",), "ppl", "perplexity rises with the noise"),),
    notes=NOT_COMPARABLE,
)  # fmt: skip
STUDIES = (
    TABLE_2,
    _trade_off("sdp-fig3", 3, WIKITEXT),
    _trade_off("sdp-fig4", 4, ORIGINAL),
    FIGURE_5,
    FIGURE_6,
    FIGURE_7,
)
