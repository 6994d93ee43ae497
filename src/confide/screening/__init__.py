"""Screening: split, route, redact, deduplicate; with the stability that the proofs need."""

from .options import Options
from .pipeline import Screened, corpus_size, screen

__all__ = ["Options", "Screened", "corpus_size", "screen"]
