"""Just fine-tune twice: first on redacted text, then with noise on the original."""

from __future__ import annotations

from .corpus import Source
from .options import Options
from .phases import BOTH, Phase


def phases(options: Options) -> tuple[Phase, ...]:
    """Phase 1 on redacted text (directly, on a subset screened by hand, or with light noise), phase 2 with noise on all.

    *Formal guarantees.* Phase 2 is DP-SGD on the unredacted records: its ε holds for every secret given phase 1's model.
    Phase 1 without noise costs nothing only for secrets that its redaction caught (guarantees §6); the ledger holds its
    steps as noiseless ones, so that no certificate can forget that. The detector's miss rate enters no accounting of steps.
    """
    epochs = options.phase1_epochs or options.epochs
    redacted = Source(BOTH, "screened")
    if options.phase1 == "noised":
        first = Phase("phase1", epochs, private=redacted, noise=options.phase1_noise, ignore_mask=True)
    else:
        by_hand = options.phase1 == "hand-screened"
        first = Phase("phase1", epochs, public=redacted, secrets_in_public=True, by_hand=by_hand, ignore_mask=True)
    return first, Phase("phase2", options.epochs, private=Source(BOTH, "raw"))
