"""DP-SGD on everything: every record as it was read, every step with noise."""

from __future__ import annotations

from .corpus import Source
from .options import Options
from .phases import BOTH, Phase


def phases(options: Options) -> tuple[Phase, ...]:
    """One phase with noise on every record as it was read."""
    return (Phase("train", options.epochs, private=Source(BOTH, "raw")),)
