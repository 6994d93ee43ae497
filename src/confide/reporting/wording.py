"""Numbers and names for people: values in, short texts out; the same words on the page, the card and the comparison."""

from __future__ import annotations

import math
from typing import Any

from ..accounting.guarantees import up

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
SELECTIVE = (
    "This epsilon is about corpora with equal lengths and mask patterns. It does not compare with the epsilon of a "
    "confidentiality guarantee: a smaller one is not a stronger promise."
)


def epsilon(value: float | None) -> str:
    """ε rounded up, never down; or that there is none."""
    return "no finite bound" if value is None else up(value)


def number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:,.{digits}f}"


def share(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f} %"


def share_up(value: float | None, digits: int = 1) -> str:
    """A share that is an upper bound or a ceiling: rounded up, never down."""
    steps = 10.0 ** (digits + 2)
    return "–" if value is None else share(min(1.0, math.ceil(value * steps - 1e-9) / steps), digits)


def small(value: float | None) -> str:
    """A δ or another small number."""
    return "–" if value is None else f"{value:.3g}"


def rounded_down(value: float) -> str:
    """A lower bound, rounded down, never up."""
    return f"{math.floor(value * 100) / 100:.2f}"


def rounded_up(value: float) -> str:
    """An upper bound, rounded up, never down."""
    return f"{math.ceil(value * 100 - 1e-9) / 100:.2f}"


def between(low: float | None, high: float | None, form: Any = number) -> str:
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
