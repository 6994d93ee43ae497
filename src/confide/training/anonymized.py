"""Anonymisation: each finding becomes its type's own token, such as <phone>; without noise. The S-DP paper's baseline."""

from __future__ import annotations

from .corpus import Source
from .options import Options
from .phases import BOTH, Phase


def phases(options: Options) -> tuple[Phase, ...]:
    """One phase without noise on the text with placeholders."""
    return (Phase("train", options.epochs, public=Source(BOTH, "anonymized"), secrets_in_public=True),)
