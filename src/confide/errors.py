"""What can go wrong, as three kinds of error, which the command line turns into one line and an exit code; and what may be printed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

# What is raised by looking into data of another shape than expected
UNREADABLE = (LookupError, TypeError, AttributeError, ValueError, ArithmeticError)

# Not printable to Python, but part of ordinary text: line ends, tabs, wide and narrow spaces, joiners of words and emoji
_HARMLESS = "\n\t\u00a0\u2002\u2003\u2007\u2009\u202f\u3000\u200c\u200d"


class ConfideError(Exception):
    """Something went wrong that the user can mend; the message says what, where, and what to do next."""

    exit_code = 1


class BadInput(ConfideError, ValueError):
    """A value, file or option that cannot be used."""

    exit_code = 2


class Refused(BadInput):
    """A number or certificate that would be false, and is therefore not made."""


class Contradiction(ConfideError):
    """A verification or an audit that contradicts the certificate; `found`: all that the attack found."""

    exit_code = 3

    def __init__(self, message: str, found: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.found = found


def meant(mistaken: str, known: Iterable[str]) -> str:
    """Which of the known names was probably meant, as the end of a sentence; nothing if none is near."""
    near = difflib.get_close_matches(mistaken, list(known), n=1, cutoff=0.7)
    return f"; did you mean {near[0]!r}?" if near else ""


def printable(text: str) -> str:
    """Text without signs that could steer the terminal: escape sequences, carriage returns, NUL, bidirectional overrides."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in _HARMLESS else "\ufffd" for sign in text)
