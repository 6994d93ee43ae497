"""Confidentially redacted training (the CRT paper's Algorithm 1): the public part without noise, the private part with it."""

from __future__ import annotations

from .corpus import Source
from .options import Options
from .phases import Phase


def phases(options: Options) -> tuple[Phase, ...]:
    """Each epoch: the public part once, then as many Poisson batches of the private part as make one expected epoch.

    *Formal guarantees.* Noiseless steps read the public part alone, which is the same whatever a flagged secret was
    (guarantees §3). Private records are read as screened; the columns with raw text are never opened. With
    `fill_masks` an invented value that knows nothing of the record stands where a mask was (`Encoder.encode`). With
    `mask_records="drop"` a record that holds a mask keeps its slot and has no target, so that it contributes nothing:
    masking a secret then turns its record's gradient to zero (guarantees §1c).
    """
    return (
        Phase(
            "train",
            options.epochs,
            public=Source(("public",), "screened"),
            private=Source(("private",), "screened"),
            ignore_mask=options.ignore_mask,
            fill_masks=options.fill_masks,
            drop_masked=options.mask_records == "drop",
        ),
    )
