"""Screening: split, route, redact, deduplicate; with the stability that the proofs need."""

from .options import Options
from .pipeline import corpus_size, screen
from .screened import Screened

__all__ = ["Options", "Screened", "corpus_size", "screen"]
