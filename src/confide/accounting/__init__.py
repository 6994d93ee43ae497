"""Accounting: from what a run did to what may be promised about it. Reads alone; imports no torch."""

from .audit import many_run_lower_bound, one_run_lower_bound, one_run_reach
from .bayesian import corpus_epsilon, jft_epsilon, slot_epsilon
from .calibration import batch_choices, most_steps, smallest_noise, smallest_noise_of
from .ceilings import Ceilings
from .certificate import issue, write
from .curves import Curve, curve
from .events import (
    Composed,
    Event,
    FixedSizeGaussian,
    Gaussian,
    Noiseless,
    PoissonGaussian,
    Selection,
    SelectiveGaussian,
    ShuffledGaussian,
)
from .ledger import Ledger, LedgerWriter, read_ledger
from .missrate import (
    SKIPPED,
    Redraws,
    Review,
    Reviewed,
    labels_needed,
    redraw_bound,
    review_bound,
)
from .selection import SelectionCurve, any_curve, selection_curve
from .setting import Setting
from .verification import Verified, verify

__all__ = [
    "SKIPPED",
    "Ceilings",
    "Composed",
    "Curve",
    "Event",
    "FixedSizeGaussian",
    "Gaussian",
    "Ledger",
    "LedgerWriter",
    "Noiseless",
    "PoissonGaussian",
    "Redraws",
    "Review",
    "Reviewed",
    "Selection",
    "SelectionCurve",
    "SelectiveGaussian",
    "Setting",
    "ShuffledGaussian",
    "Verified",
    "any_curve",
    "batch_choices",
    "corpus_epsilon",
    "curve",
    "issue",
    "jft_epsilon",
    "labels_needed",
    "many_run_lower_bound",
    "most_steps",
    "one_run_lower_bound",
    "one_run_reach",
    "read_ledger",
    "redraw_bound",
    "review_bound",
    "selection_curve",
    "slot_epsilon",
    "smallest_noise",
    "smallest_noise_of",
    "verify",
    "write",
]
