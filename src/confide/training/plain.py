"""Plain training: all records as they are, without noise. A baseline; it promises nothing."""

from __future__ import annotations

from .corpus import Source
from .options import Options
from .phases import BOTH, Phase


def phases(options: Options) -> tuple[Phase, ...]:
    """One phase without noise on every record as it was read."""
    return (Phase("train", options.epochs, public=Source(BOTH, "raw"), secrets_in_public=True),)
