"""Reports: run folders in; pages for people, figures and a model card out."""

from .page import report

__all__ = ["report"]
