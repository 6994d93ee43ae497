"""What can go wrong, as three kinds of error: the command line turns each into one line and an exit code."""

from __future__ import annotations

from typing import Any


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
