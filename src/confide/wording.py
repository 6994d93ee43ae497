"""Numbers and names for people: values in, short texts out; the same words on the page, the card and the comparison."""

from __future__ import annotations

import math
from typing import Any

from .accounting.guarantees import up

TITLES = {
    "per-secret": "One secret, in one record",
    "caught-secret": "A secret that the redaction caught",
    "detected-secret": "A secret that the policy detected",
    "group": "Several records together",
    "uniform": "All secrets at once",
    "bayesian": "A secret drawn at random, with a measured miss rate",
    "selective": "Selective privacy: other tokens in the same places",
}
METHODS = {
    "crt": "confidentially redacted training (CRT)",
    "dpsgd": "DP-SGD on every record",
    "sdp": "selective DP-SGD (S-DP)",
    "jft": "just fine-tune twice (JFT)",
    "redacted": "training on redacted text, without noise",
    "anonymized": "training on text with placeholders, without noise",
    "plain": "training without any protection",
}
ASSUMED = {  # the assumptions that a privacy officer asks about first, in few words
    "ledger": "everything that used private records is in the ledger",
    "recall-class": "the conservative policy flags the whole class",
    "phase1-screening": "phase 1's redaction caught the secret",
    "mask-pattern": "neighbouring corpora have equal mask patterns",
    "policies": "policies were fixed beforehand and look at one record at a time",
    "evidence": "reviewers saw every secret of their sample",
    "start": "the initial weights never saw private records",
    "coins": "noise came from the operating system's entropy",
}
SELECTIVE = (
    "This epsilon is about corpora with equal lengths and mask patterns. It does not compare with the epsilon of a "
    "confidentiality guarantee: a smaller one is not a stronger promise."
)


def epsilon(value: float | None) -> str:
    """ε rounded up, never down; or that there is none."""
    return "no finite bound" if value is None else up(value)


def number(value: float | None, digits: int = 2) -> str:
    """A measured number, or a dash where there is none."""
    return "–" if value is None or not math.isfinite(value) else f"{value:,.{digits}f}"


def share(value: float | None, digits: int = 1) -> str:
    """A measured share in per cent; of a bound take `share_up`."""
    return "–" if value is None else f"{100 * value:.{digits}f} %"


def share_up(value: float | None, digits: int = 1) -> str:
    """A share that is an upper bound or a ceiling: rounded up, never down."""
    steps = 10.0 ** (digits + 2)
    return "–" if value is None else share(min(1.0, math.ceil(value * steps - 1e-9) / steps), digits)


def small(value: float | None) -> str:
    """A δ or another small number."""
    return "–" if value is None else f"{value:.3g}"


def rounded_up(value: float) -> str:
    """An upper bound, rounded up, never down."""
    return f"{math.ceil(value * 100 - 1e-9) / 100:.2f}"


def between(low: float | None, high: float | None, form: Any = number) -> str:
    """A 95 % interval in words; empty where there is none."""
    return "" if low is None or high is None else f"95 %: {form(low)} to {form(high)}"


def utility(found: dict[str, Any] | None) -> str:
    """The kept model's validation in a few words."""
    if found is None:
        return "not measured"
    if found["perplexity"] is not None:
        return f"perplexity {number(found['perplexity'])}"
    if found["accuracy"] is not None:
        return f"accuracy {share(found['accuracy'])}"
    return f"loss {number(found['loss'], 3)}"


def rests_on(assumptions: list[dict[str, str]], most: int = 4) -> tuple[list[str], int]:
    """A few of a certificate's assumptions in few words, and how many there are besides."""
    ids = {one["id"] for one in assumptions}
    shown = [text for name, text in ASSUMED.items() if name in ids][:most]
    return shown, len(assumptions) - len(shown)


def odds(guarantee: dict[str, Any]) -> str:
    """An (ε, δ) in a sentence for everyone."""
    value, delta = guarantee["epsilon"], guarantee["delta"]
    times = f"{up(math.exp(value))} times" if value < 12 else f"e^{up(value)} times"
    more = f", plus {chances(delta)}" if delta else ""
    return f"Seeing the model makes any guess about such a secret at most {times} as likely{more}."


def chances(value: float) -> str:
    """A small probability, rounded up.

    >>> chances(8e-5), chances(1.234e-5), chances(0.02)
    ('8 in 100,000', '1.3 in 100,000', '2 in 100')
    """
    digits = max(1, -math.floor(math.log10(value) + 1e-12))
    return f"{math.ceil(value * 10.0 ** (digits + 1) - 1e-6) / 10:g} in {10**digits:,}"


def shortened(sentence: str, recall_class: str | None) -> str:
    """A guarantee's sentence without the description of its class, which stands beside it once."""
    if not recall_class:
        return sentence
    return sentence.replace(f", which by construction are at least: {recall_class}", "").replace(
        f" ({recall_class})", ""
    )
