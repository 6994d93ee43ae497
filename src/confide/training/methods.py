"""The methods by name: what each trains on, in which phases, with or without noise."""

from __future__ import annotations

from collections.abc import Callable

from . import anonymized, crt, dpsgd, jft, plain, redacted, sdp
from .options import Options
from .phases import Phase

METHODS: dict[str, Callable[[Options], tuple[Phase, ...]]] = {
    "plain": plain.phases,
    "redacted": redacted.phases,
    "anonymized": anonymized.phases,
    "dpsgd": dpsgd.phases,
    "crt": crt.phases,
    "sdp": sdp.phases,
    "jft": jft.phases,
}
