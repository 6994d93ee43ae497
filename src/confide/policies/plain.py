"""The policies that need no data: every run of digits, everything, nothing."""

from __future__ import annotations

import re

from .base import Finding, Policy, register

_DIGITS = re.compile(r"\d+")


@register("digits", "every run of digits (the S-DP paper's policy for WikiText-2)")
class Digits(Policy):
    """Each run of decimal digits."""

    name = "digits"
    consistency = "local"
    recall_class = "secrets that hold a decimal digit"

    def find(self, text: str) -> list[Finding]:
        return [Finding(m.start(), m.end(), "DIGITS", self.name) for m in _DIGITS.finditer(text)]


@register("everything", "the whole record; as conservative policy: every record is private (the default)")
class Everything(Policy):
    """One finding that covers the record."""

    name = "everything"
    consistency = "alone"
    recall_class = "all secrets"

    def find(self, text: str) -> list[Finding]:
        return [Finding(0, len(text), "RECORD", self.name)]


@register("nothing", "no finding at all")
class Nothing(Policy):
    """No finding, whatever the record says."""

    name = "nothing"
    consistency = "local"

    def find(self, text: str) -> list[Finding]:
        return []
