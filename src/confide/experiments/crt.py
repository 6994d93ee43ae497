"""The CRT paper's figures 2 to 6."""

from __future__ import annotations

from .scales import MULTIWOZ, ORIGINAL
from .study import Check, Row, Study, Sweep

MISSED = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
NAMES = {ORIGINAL: "CustomerSim", MULTIWOZ: "MultiWOZ"}


METHODS = {"lstm": ("plain", "redacted", "sdp", "crt"), "gpt": ("plain", "redacted", "crt")}
ATTACKED = tuple(
    Row(
        f"{method} {model}, {NAMES[corpus]}", corpus, model, method, {"canaries": "crt", "dedup": "exact" if method == "crt" else "off"},
        swept=method != "plain",
    )
    for corpus in NAMES for model, methods in METHODS.items() for method in methods
)  # fmt: skip
SWEEP = Sweep("share missed", MISSED)
SHOWN = ("epsilon", "ppl_non_secret", "exposure_mean", "exposure_max", "mia_auc", "mia_blind", "group_auc", "paper_mia", "paper_mia_chance",
         "paper_group", "paper_group_chance")  # fmt: skip


def _against_missed(name: str, number: int, title: str, column: str, claim: str, level: float) -> Study:
    checks = []
    for corpus in (ORIGINAL, MULTIWOZ):
        for model in ("lstm", "gpt"):
            of = f"{model}, {NAMES[corpus]}"
            checks += [Check("rises", (f"redacted {of}",), column, f"redacted {of} rises with the share missed")]
            if model == "lstm":
                checks += [Check("rises", (f"sdp {of}",), column, f"sdp {of} rises with the share missed")]
            checks += [Check("chance", (f"crt {of}",), column, f"crt {of} stays at chance", level)]
    shown = tuple(one for one in SHOWN if one.startswith(column.partition("_")[0]) or one in ("epsilon", "ppl_non_secret"))
    return Study(
        name, f"CRT, Figure {number}", title, claim, ATTACKED, shown, SWEEP, y=column, checks=tuple(checks), attack=("exposure", "membership"),
    )  # fmt: skip


FIGURE_2 = Study(
    "fig2", "CRT, Figure 2", "perplexity against Bayesian ε, a point an epoch, a tenth of the secrets missed",
    "CRT lies left of DP-SGD and S-DP (less ε) at about the perplexity of training without privacy.",
    tuple(
        Row(f"{method} {model}, {NAMES[corpus]}", corpus, model, method, screen={"missed": 0.1})
        for corpus in (ORIGINAL, MULTIWOZ)
        for model, methods in (("lstm", ("plain", "sdp", "dpsgd", "crt")), ("gpt", ("plain", "dpsgd", "crt")))
        for method in methods
    ),
    ("bayesian", "paper_bayesian", "epsilon", "line_ppl", "line_ppl_non_secret", "ppl_non_secret"), x="bayesian", y="line_ppl_non_secret", each_epoch=True,
    checks=tuple(
        Check("below", (f"crt {model}, {NAMES[corpus]}", f"dpsgd {model}, {NAMES[corpus]}"), "line_ppl_non_secret",
              f"crt {model} is below dpsgd on {NAMES[corpus]} after every epoch")
        for corpus in (ORIGINAL, MULTIWOZ) for model in ("lstm", "gpt")
    ),
)  # fmt: skip
FIGURE_3 = _against_missed(
    "fig3", 3, "exposure of ten canaries, 20 copies each, against the share of secrets missed", "exposure_mean",
    "exposure rises with the share missed for training without noise and S-DP, and stays near zero for CRT.", 1.44,
)  # fmt: skip
FIGURE_4 = _against_missed(
    "fig4", 4, "membership inference against the share of secrets missed", "mia_auc",
    "accuracy rises above one half with the share missed for training without noise and S-DP; CRT stays at one half.", 0.5,
)  # fmt: skip
FIGURE_5 = _against_missed(
    "fig5", 5, "membership inference on groups of 20, against the share of secrets missed", "group_auc",
    "as Figure 4, and stronger: groups are told apart more easily.", 0.5,
)  # fmt: skip
STUDIES = (FIGURE_2, FIGURE_3, FIGURE_4, FIGURE_5)
