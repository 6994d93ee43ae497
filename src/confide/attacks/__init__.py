"""Attacks: a trained model in; what it leaks, beside chance and beside what its certificate allows, out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..training import lazily

if TYPE_CHECKING:
    from .suite import attack, attack_model

__all__ = ["attack", "attack_model"]

_FROM = {"attack": ("suite", "attack"), "attack_model": ("suite", "attack_model")}


def __getattr__(name: str) -> Any:
    """Load torch only when something is attacked."""
    return lazily(__name__, _FROM, name, "attacking a model")
