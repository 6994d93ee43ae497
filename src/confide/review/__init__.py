"""A page on which a person marks what the policy missed: a screened folder in, an always-valid bound of the miss rate out."""

from __future__ import annotations

from .counting import result, save
from .exporting import export
from .server import create_app, serve
from .store import Stale, Store, open_store

__all__ = ["Stale", "Store", "create_app", "export", "open_store", "result", "save", "serve"]
