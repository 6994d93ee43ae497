"""Redaction only: all records as screened, without noise. What the policy missed is trained on as it is."""

from __future__ import annotations

from .corpus import Source
from .options import Options
from .phases import BOTH, Phase


def phases(options: Options) -> tuple[Phase, ...]:
    """One phase without noise on every record as screened."""
    source = Source(BOTH, "screened")
    return (
        Phase(
            "train",
            options.epochs,
            public=source,
            secrets_in_public=True,
            ignore_mask=options.ignore_mask,
            fill_masks=options.fill_masks,
        ),
    )
