"""Which kind of secret a number or a code is: by its shape, and by the check digits that python-stdnum knows."""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from ipaddress import ip_address
from typing import Any

_YEARS = re.compile(r"(?:1[5-9]|20)[0-9]{2}-(?:(?:1[5-9]|20)[0-9]{2}|[0-9]{2})")
_PHONE = re.compile(
    r"(?:1[-.]?)?[0-9]{3}[-.]?[0-9]{3}[-.]?[0-9]{4}|[0-9]{3}-[0-9]{4}|0[0-9]{10}|[0-9]{2}(?:[-.][0-9]{2}){3,4}"
)
_CHECKED = {  # by length: the shape of a code of capitals and digits, and the stdnum module that checks it
    9: (re.compile(r"[0-9XYZ][0-9]{7}[A-Z]"), "es.nif"),
    16: (re.compile(r"[A-Z]{6}[A-Z0-9]{2}[A-Z][A-Z0-9]{2}[A-Z][A-Z0-9]{3}[A-Z]"), "it.codicefiscale"),
}
_IBAN = re.compile(r"[A-Z]{2}[0-9]{2}[A-Z0-9]{11,30}")
_NINO = re.compile(r"[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z][0-9]{6}[A-D]")
_POSTCODE = re.compile(r"[A-Z]{1,2}[0-9][A-Z0-9]?[0-9][A-Z]{2}|[A-Z][0-9][A-Z][0-9][A-Z][0-9]")


@cache
def _checker(module: str) -> Any:
    return import_module(f"stdnum.{module}")


def valid(module: str, code: str) -> bool:
    """Whether the check digits are those that python-stdnum expects."""
    return bool(_checker(module).is_valid(code))


def number_type(text: str) -> str | None:
    """The type of digits joined by hyphens or dots, or None if they are no secret by themselves.

    Every number of seven or more digits is one, except decimal fractions and ranges of years; so is an IP address.
    """
    digits = text.replace("-", "").replace(".", "")
    count = len(digits)
    if text.count(".") == 3 and (found := internet_type(text)):
        return found
    if count < 7 or _YEARS.fullmatch(text):
        return None
    if _PHONE.fullmatch(text):
        return "PHONE"
    lengths = [len(part) for part in re.split("[-.]", text)]
    if _is_identity(lengths, digits):
        return "NATIONAL_ID"
    if 12 <= count <= 19 and lengths[0] in (4, count) and valid("luhn", digits):
        return "CARD"
    if text.count(".") == 1 and "-" not in text:
        return None
    return "POSTCODE" if lengths == [5, 4] else "REFERENCE"


def _is_identity(lengths: list[int], digits: str) -> bool:
    """Whether groups of these lengths are a US, Dutch, German or French number of a person."""
    match lengths:
        case [3, 2, 4]:
            return valid("us.ssn", digits)
        case [4, 2, 3]:
            return valid("nl.bsn", digits)
        case [11]:
            return valid("de.idnr", digits)
        case [13 | 15]:
            return digits[0] in "12" and valid("fr.nir", digits)
    return False


def spaced_type(text: str) -> str:
    """The type of groups of digits with spaces between them; all of the shapes that are looked for are secrets."""
    digits = text.replace(" ", "").replace("-", "")
    count = len(digits)
    if _is_identity([count], digits) or (count == 10 and valid("gb.nhs", digits)):
        return "NATIONAL_ID"
    if 12 <= count <= 19 and valid("luhn", digits):
        return "CARD"
    return "PHONE" if count <= 12 else "REFERENCE"


def code_type(text: str) -> str:
    """The type of a code of capital letters and digits."""
    code = text.replace(" ", "").replace("-", "")
    size = len(code)
    if size < 9:
        return "POSTCODE" if size < 8 and _POSTCODE.fullmatch(code) else "REFERENCE"
    if size == 20 and code.startswith(("AKIA", "ASIA")):
        return "API_KEY"
    if size in _CHECKED and _CHECKED[size][0].fullmatch(code) and valid(_CHECKED[size][1], code):
        return "NATIONAL_ID"
    if size >= 15 and _IBAN.fullmatch(code) and valid("iban", code):
        return "IBAN"
    return "NATIONAL_ID" if size == 9 and _NINO.fullmatch(code) else "REFERENCE"


def internet_type(text: str) -> str | None:
    """IP if it holds a digit and the standard library reads it as an address of version 4 or 6."""
    if text.replace(":", "").isalpha():
        return None
    try:
        ip_address(text)
    except ValueError:
        return None
    return "IP"
