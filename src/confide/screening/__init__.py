"""Screening: split, route, redact, deduplicate; with the stability that the proofs need."""

from .pipeline import Options, Screened, corpus_size, screen

__all__ = ["Options", "Screened", "corpus_size", "screen"]
