"""What a certificate rests on, and what it does not promise, in words that a privacy officer can check one by one."""

from __future__ import annotations

from .missrate import Redraws, Review
from .setting import Setting

_SAMPLERS = {
    "poisson": "Every step includes each private record independently with the ledger's sampling rate; empty batches "
    "are noised and counted like any other, and sums are divided by a public constant.",
    "fixed-size": "Every step draws a batch of fixed size without replacement, afresh.",
    "shuffled": "Each record takes part exactly once an epoch; no amplification is claimed.",
    "public": "Who takes part in a step may be public; no amplification is claimed.",
}
_STARTS = {
    "outside": "The initial weights and the vocabulary were made without the private records.",
    "unflagged-lines": "The initial weights and the vocabulary were made from nothing of the private records but the lines that neither "
    "the policy nor the conservative policy of this certificate flags when it looks at a line alone, with a constant in place of every other line; a secret lies inside one line, and the line "
    "stays flagged when <MASK> stands in the secret's place.",
}


def assumptions(setting: Setting, evidence: Redraws | Review | None, selected: bool = False) -> list[dict[str, str]]:
    """The assumptions under which the certificate's numbers hold, each with a stable id."""
    found = {
        "adjacency": f"Neighbouring corpora: {setting.neighbours}. A secret lies inside one record; one that "
        "straddles a split counts as two records.",
        "sampler": _SAMPLERS[setting.sampler],
        "clipping": f"Each record's contribution to a step has norm at most {setting.clipping_norm:g}, rounding included.",
        "coins": "Sampling and noise coins come from the operating system's entropy, are fresh after every resume, and are "
        "never stored.",
        "ledger": "Every use of private records that influenced the model is in the ledger, discarded runs included.",
        "public-part": "Noiseless steps see only the public part, the released iterates and public constants (schedules, "
        "step counts, early stopping and the vocabulary included).",
        "start": _STARTS[setting.weights],
        "policies": "Both policies look at one record at a time and were fixed before they saw the corpus; literal <MASK> "
        "was escaped at intake; a record that holds a mask or a hit is private.",
        "record-alignment": "Records are split before screening and never packed, concatenated or split again.",
    }
    if selected:
        found["selection"] = (
            "The number of runs was drawn from the ledger's Poisson distribution before the first run; each run stayed "
            "within the plan; the winner was chosen by public data or the runs' outputs; the other runs, their number, "
            "their ledgers and all intermediate states stay secret."
        )
    if setting.k_detected == 0:
        found["mask-consistency"] = (
            "If a secret is all that one mask of the policy hides (one whole finding, or several), the policy labels the record "
            "with <MASK> in the secret's place in the same way."
        )
    if setting.recall_class is not None:
        found["recall-class"] = f"The conservative policy flags by construction: {setting.recall_class}."
    if setting.dedup != "off" and setting.units_per_record == "several":
        found["units"] = (
            "A secret lies inside one of the units that dedup compares, and the units' borders are those from before masking."
        )
    if setting.dedup == "bloom":
        found["bloom"] = (
            f"The Bloom filter's key is random and secret; its cost {setting.bloom_delta:g} is inside delta."
        )
    if setting.method == "jft" and setting.jft_phase1 == "direct":
        found["phase1-screening"] = "Phase 1's redaction catches the secret and redacts the record alike without it."
    if setting.method == "jft" and setting.jft_phase1 == "hand-screened":
        found["phase1-screening"] = (
            "Phase 1's records were chosen by index before anyone looked, sanitised without a miss, and none was dropped."
        )
    if setting.method == "sdp":
        found["mask-pattern"] = "Neighbouring corpora have equal lengths and equal mask patterns."
    if setting.method == "sdp" and setting.sdp_variant == "sound":
        found["selective-passes"] = (
            "Public and private passes draw independent batches, the state is reset before public segments, and all "
            "private tokens of a record give one clipped gradient."
        )
    if setting.method == "sdp" and setting.sdp_variant == "paper":
        found["selective-releases"] = (
            "A record takes part once an epoch, with at most the ledger's number of private segments; hidden and cell states behind "
            "each are clipped and noised before anything public follows them."
        )
    if setting.dedup in ("exact", "bloom"):
        found["dedup"] = (
            "A duplicate keeps its place as a mask-only record; or, if it is deleted, sampling rate and step count are "
            "constants that do not depend on how many remain."
        )
    if isinstance(evidence, Redraws):
        found["evidence"] = (
            "The labelled redraws are independent draws of the secret into the very slot the claim is about, counted by "
            "screening twice; their number was fixed beforehand; labels used to tune a policy are not among them."
        )
    if isinstance(evidence, Review):
        found["evidence"] = (
            "Reviewed records were drawn uniformly with replacement from public and private records before dedup, and "
            "the reviewer found every secret in them and flagged every finding that is no secret; a secret counts as missed "
            "if masking it by hand would change the screened record; labels used to tune a policy are not among them. This "
            "is the only review of this corpus under these policies, in any copy or screening, or all of them are counted. The "
            "counts are taken as stated"
        )
        found["evidence"] += "; the ledger named them before training." if setting.evidence else "."
        if setting.recall_class is not None:
            found["evidence"] += " Only secrets of the class that is flagged by construction count."
    return [{"id": name, "text": text} for name, text in found.items()]


def not_promised(setting: Setting) -> list[str]:
    """What nobody may read into the certificate."""
    found = [
        "Nothing is promised about validation and test records: they are outside the certificate.",
        "Correlated secrets add up: a value that appears in several records, or that others reveal, needs the group "
        "guarantee for that many records.",
        "The text around a secret, the fact that a record exists, its length and where the masks are, are not protected.",
        "Timing and other side channels of the training machine are not covered.",
        "A guarantee bounds what the model adds to an attacker's knowledge, not what the attacker knew already.",
    ]
    if setting.method == "sdp":
        return ["Tokens that the policy misses have no guarantee at all.", *found]
    if setting.weights == "unflagged-lines":
        found.insert(
            0, "A secret in a line that no policy flags was in the initial weights without noise and has no guarantee."
        )
    if setting.conservative != "everything" and setting.method == "crt":
        which = (
            "that no policy flags" if setting.weights == "outside" else "in a record that no policy flags as a whole"
        )
        found.insert(0, f"A secret {which} is trained on without noise and has no guarantee.")
    if setting.method == "jft" and setting.jft_phase1 != "noised":
        found.insert(0, "A secret that phase 1's redaction misses is trained on without noise and has no guarantee.")
    return found
