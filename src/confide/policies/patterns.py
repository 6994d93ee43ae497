"""The policy `patterns`: secrets that show by their shape or by the words before them. Text in, findings out.

One regular expression, an alternation of all shapes, goes through the text once from left to right. Some shapes are
then told apart by check digits (numbers.py); what fails its check is still a finding if it looks like a reference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from ..errors import BadInput
from .base import Finding, Policy, register
from .numbers import code_type, internet_type, number_type, spaced_type

# Rules for the expressions, on which the proof of mask-consistency below rests:
# * None matches the mark, or looks at more than one character outside of its own match.
# * A run that ends an expression takes in all letters and digits, or holds no place where another match could begin.
# * Runs are possessive (*+, ++) or bounded, so that the time is linear; where a run may begin at many places of itself,
#   what comes before it is bounded, too. A look ahead over signs among which a match could begin is bounded.

STATES = (
    "AA|AE|AK|AL|AP|AR|AS|AZ|CA|CO|CT|DC|DE|FL|FM|GA|GU|HI|IA|ID|IL|IN|KS|KY|LA|MA|MD|ME|MH|MI|MN|MO|MP|MS|MT|NC|ND"
    "|NE|NH|NJ|NM|NV|NY|OH|OK|OR|PA|PR|PW|RI|SC|SD|TN|TX|UT|VA|VI|VT|WA|WI|WV|WY"
)
STREETS = (
    "Alley|Ave|Avenue|Blvd|Boulevard|Circle|Cir|Close|Court|Ct|Crescent|Cres|Drive|Dr|Expressway|Freeway|Gardens|Grove"
    "|Highway|Hwy|Lane|Ln|Loop|Parade|Parkway|Pkwy|Pike|Place|Pl|Plaza|Road|Rd|Row|Square|Sq|Street|St|Terrace|Ter"
    "|Trail|Trl|Turnpike|Way"
)
MONTHS = (
    "Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?"
    "|Nov(?:ember)?|Dec(?:ember)?"
)

STATE_ZIP = f"(?:{STATES}) [0-9]{{5}}(?:-[0-9]{{4}})?"
_GAP = r",?(?: {1,4}|\n)"
_WORD = r"[^\W\d_a-z][\w.'-]*+"
_UNIT = rf"(?:{_GAP}(?:Apt|Apartment|Suite|Ste|Unit|Room|Rm|Floor|Bldg|No)\.? ?#?[0-9][0-9A-Z]*+)?"
_NTH = r"[0-9]{1,3}(?:st|nd|rd|th)(?!\w)"
US_ADDRESS = rf"[0-9]{{1,6}}{_GAP}(?:{_WORD}|{_NTH})(?:{_GAP}(?:{_WORD}|#?[0-9]{{1,5}}(?!\w))){{0,9}}?{_GAP}{STATE_ZIP}"
MILITARY_ADDRESS = (
    rf"(?:(?:USS|USNS|USNV|USCGC) {_WORD}|(?:PSC|Unit|CMR) [0-9]{{1,5}},? Box [0-9]{{1,5}}){_GAP}[AFD]PO,? {STATE_ZIP}"
)
_STREET_ADDRESS = rf"[0-9]{{1,6}}[A-Za-z]?(?: {_WORD}| {_NTH}){{1,3}}? (?:{STREETS})(?!\w){_UNIT}"
_BOX_ADDRESS = rf"P\.? ?O\.? ?Box [0-9]{{1,6}}(?:(?:{_GAP}{_WORD}){{1,4}}?{_GAP}{STATE_ZIP})?"

PHONE = "(?:[0-9]{3}-[0-9]{3}-[0-9]{4}|[0-9]{3}[.][0-9]{3}[.][0-9]{4}|[0-9]{10})"
_EXTENSION = r"(?: ?(?:x|ext)\.? ?[0-9]{1,5})?"
_AMERICAN = rf"(?:(?:1|001)[-. ])?[0-9]{{3}}[-. ][0-9]{{3}}[-. ][0-9]{{4}}{_EXTENSION}"
_BRACKETED = rf"\([0-9]{{2,5}}\)[- ]?[0-9]{{2,4}}(?:[-. ]?[0-9]{{2,4}}){{1,3}}{_EXTENSION}"
_INTERNATIONAL = rf"\+[0-9]{{1,3}}[-. ]?(?:\([0-9]{{1,4}}\))?(?:[-. ]?[0-9]{{1,5}}){{2,6}}{_EXTENSION}"
_TRUNK = "0[0-9]{2,4}(?:(?: [0-9]{2,4}){2,4}|[ /][0-9]{5,8})"  # European numbers, with the leading zero
_GROUPS = "[0-9]{2,4} [0-9]{3} [0-9]{3,4}(?: [0-9]{4})?|[0-9]{3} [0-9]{2} [0-9]{3}"

_DAY = "[0-9]{1,2}(?:st|nd|rd|th)?"
_YEAR = "(?:1[5-9]|20)[0-9]{2}"
_CLOCK = "(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2})?)?"
_DATES = (
    rf"{_YEAR}[-/][0-9]{{1,2}}[-/][0-9]{{1,2}}{_CLOCK}",
    *(f"[0-9]{{1,2}}{mark}[0-9]{{1,2}}{mark}{_YEAR}{_CLOCK}" for mark in ("-", "/", "[.]")),
    "[0-9]{1,2}/[0-9]{1,2}/[0-9]{2}",
    rf"{_DAY}(?: of)? (?:{MONTHS})(?!\w)(?:,? [0-9]{{4}})?",
)
_MONTH_FIRST = rf"(?:{MONTHS})\.? (?:{_DAY}(?:,? [0-9]{{4}})?|[0-9]{{4}})"

_HEX = "[0-9A-Fa-f]{1,4}"
_IP6 = f"{_HEX}(?::{_HEX}){{7}}|{_HEX}(?::{_HEX}){{0,5}}::{_HEX}(?::{_HEX}){{0,5}}"
_CREDIT_CARD = "[0-9]{4}(?: [0-9]{4}){2,3}(?: [0-9]{1,4})?|[0-9]{4}[ -][0-9]{6}[ -][0-9]{5}"
_GERMAN_TAX = "[0-9]{2} [0-9]{3} [0-9]{3} [0-9]{3}"
_FRENCH = "[12] [0-9]{2} [0-9]{2} [0-9]{2} [0-9]{3} [0-9]{3}(?: [0-9]{2})?"
_BRITISH = "[A-Z]{2} [0-9]{2} [0-9]{2} [0-9]{2} [A-D]"
_SPACED_IBAN = "[A-Z]{2}[0-9]{2}(?: [A-Z0-9]{4}){2,7}(?: [A-Z0-9]{1,3})?"
_CODE = "(?=[A-Z]*+[0-9])(?=[0-9]*+[A-Z])[A-Z0-9]{6,}+(?:-[A-Z0-9]++){0,4}"
_POSTCODE = f"{STATE_ZIP}|[A-Z]{{1,2}}[0-9][A-Z0-9]? [0-9][A-Z]{{2}}|[A-Z][0-9][A-Z] [0-9][A-Z][0-9]"

_DIGIT_IN = "(?=[A-Za-z]*+[0-9])"
_KEY = (
    rf"gh[pousr]_{_DIGIT_IN}[A-Za-z0-9]{{30,}}+|github_pat_(?=\w*?[0-9])\w{{22,}}+|glpat-(?=\w*?[0-9])\w{{16,}}+"
    rf"|npm_{_DIGIT_IN}[A-Za-z0-9]{{30,}}+|[sr]k[-_](?:[a-z]{{1,8}}[-_]){{0,2}}{_DIGIT_IN}[A-Za-z0-9]{{16,}}+"
    r"|xox[abeprs]-[0-9][A-Za-z0-9]{3,}+(?:-[A-Za-z0-9]{4,}+){0,4}"
    r"|(?<!-)eyJ(?=[\w-]*?[0-9])[\w-]{6,}+\.eyJ[\w-]{6,}+(?:\.[\w-]++)?"
)
_PRIVATE_KEY = (
    r"-----BEGIN (?:[A-Z]{2,9} ){0,2}PRIVATE KEY(?:-----[A-Za-z0-9+/=\s]++-----END (?:[A-Z]{2,9} ){0,2}PRIVATE KEY)?"
)
_EMAIL = r"[\w.+%-]{1,64}+@(?:[\w-]{1,63}\.){1,5}[^\W\d_]{2,24}"


def _either_case(*words: str) -> str:
    """An expression for any of the words, in small letters or with a first capital."""
    return "(?:" + "|".join(f"[{word[0].upper()}{word[0]}]{word[1:]}" for word in words) + ")"


# "tracking number, which is ABCDEFGHIJ": a noun, at most five small words, a sign, and what they announce.
_FILLERS = "is|was|are|of|now|number|num|no|id|code|which|that|it|your|my|the|on|file|here|for|has|been|pulled|up|to (?:follow|track) (?:your|the) [a-z]{4,8}"
_IS = rf"(?!\w)(?:,? {{1,3}}(?:#|(?:{_FILLERS})(?!\w)\.?)){{0,5}},? {{0,3}}[:#=]{{0,2}} {{0,3}}[\"']?"
_NOUNS = {
    "PHONE": _either_case("phone", "telephone", "mobile", "cell", "tel", "fax"),
    "POSTCODE": "(?:ZIP|" + _either_case("postcode", "post code", "postal code", "zip", "zipcode") + ")",
    "NATIONAL_ID": "(?:SSN|NHS|BSN|" + _either_case("social security", "national insurance", "passport", "driver's license", "tax") + ")",
    "IBAN": "(?:IBAN|[Ii]ban)",
    "REFERENCE": "(?:ID|" + _either_case("order", "tracking", "reference", "ref", "account", "booking", "confirmation", "invoice", "ticket", "case", "customer", "member", "membership", "number", "id", "username", "user name", "user", "login") + ")",
}  # fmt: skip
_CONTEXT = re.compile(rf"(?<!\w)(?:{'|'.join(f'(?P<{kind}>{nouns})' for kind, nouns in _NOUNS.items())}){_IS}\n?\Z")
_REACH = 80  # how far before a code the words that announce it may begin
# What is a finding only behind such words, and where a type asks for more than the general shape.
_WEAK = {
    "PHONE": re.compile(r"[0-9](?:[ .-]?[0-9]){5,14}"),
    "POSTCODE": re.compile(r"[0-9]{3,5}(?:-[0-9]{3,4})?|[A-Za-z]{1,2}[0-9][0-9A-Za-z]?[0-9][A-Za-z]{2}"),
    "NATIONAL_ID": re.compile(r"[0-9A-Za-z-]{5,20}"),
    "IBAN": re.compile(r"[A-Za-z]{2}[0-9]{2}[A-Za-z0-9]{11,30}"),
    "REFERENCE": re.compile(r"[0-9]{5,}+|(?=[0-9]*+[A-Za-z])[A-Za-z0-9-]{5,}+"),
}
# A password or a key may hold any signs, so the words before it belong to the match.
_LOCKED = _either_case("password", "passwd", "pwd", "passcode", "token", "secret", "api key", "api_key", "apikey", "access key", "secret key")  # fmt: skip
_SIGNS = "!#$%&*+/=?^~-"
_PASSWORD = rf"(?=[\w{_SIGNS}]{{0,99}}?[0-9])(?=[\w{_SIGNS}]{{0,99}}?[A-Za-z])[\w{_SIGNS}]{{6,}}+"
_QUERY = r"[?&](?i:[a-z]{1,12}[_-])?(?i:token|key|apikey|secret|password|passwd|pwd|sig|signature|auth|session|sid)="
_QUERY_VALUE = r"(?=[\w%+/=~-]*?[0-9])[\w%+/=~-]{6,}+"

# The shapes, in the order in which they are tried at a place; the named group is the finding.
_NUMBERS = (  # begin with a digit
    f"(?P<ADDRESS>{US_ADDRESS}|{_STREET_ADDRESS})",
    f"(?P<DATE>{'|'.join(_DATES)})",
    f"(?P<ip>{_IP6})",
    f"(?P<spaced>{_CREDIT_CARD}|{_GERMAN_TAX}|{_FRENCH}|[0-9]{{3}} [0-9]{{3}} [0-9]{{4}})",
    f"(?P<PHONE>{_AMERICAN}|{_TRUNK}|{_GROUPS})",
    f"(?P<code>{_CODE}|[0-9]{{8}}-[A-Z])",
    "(?P<weak_spaced>(?:[0-9]{3,4} [0-9]{4}|[0-9]{2} [0-9]{6})(?!@))",
    "(?P<number>[0-9]++(?:[-.][0-9]++){0,6})",
    "(?P<weak_digits>[0-9]++[A-Za-z][A-Za-z0-9]*+)",
)
_CAPITALS = (  # begin with a capital
    "(?=A)(?P<google>AIza(?=[A-Za-z_-]{0,34}+[0-9])[A-Za-z0-9_-]{34}[A-Za-z0-9])",
    f"(?=[UPC])(?P<military>{MILITARY_ADDRESS}|{_BOX_ADDRESS})",
    "(?=[AS])(?P<suite>(?:Suite|Apt\\.?|Apartment) #?[0-9]{1,5}[A-Z]?)",
    f"(?=[JFMASOND])(?P<month>{_MONTH_FIRST})",
    f"(?=[A-Z]{{1,2}}[0-9 ])(?P<POSTCODE>{_POSTCODE})",
    f"(?=[A-Z]{{2}} )(?P<british>{_BRITISH})",
    f"(?=[A-Z]{{0,20}}+[0-9-])(?P<capitals>{_SPACED_IBAN}|{_CODE}|[A-Z]{{1,6}}-[0-9]{{4,}}+(?:-[A-Z0-9]++){{0,4}})",
    "(?P<weak_capitals>[A-Z]{6,}+)",
)
_LETTERS = (  # begin with any letter
    f"(?=[egnrsx])(?P<API_KEY>{_KEY})",
    f"(?=[AaPpSsTt]){_LOCKED}{_IS}(?P<locked>{_PASSWORD})",
    f"(?=[A-Fa-f])(?=[0-9A-Fa-f]{{1,4}}:)(?P<hex>{_IP6})",
    "(?P<small_postcode>[a-z]{1,2}[0-9]{2,3}[a-z]{2})",
    "(?P<handle>[a-z]{2,20}+[0-9]{3,}+)",
    "(?P<weak_letters>[A-Za-z]++[0-9][A-Za-z0-9]*+)",
)
_WITH_SIGNS = (  # begin anywhere, and hold one of @ + ( = --
    rf"\b(?P<EMAIL>{_EMAIL})(?!\w)",
    rf"(?P<international>{_INTERNATIONAL})(?!\w)",
    rf"(?P<bracketed>{_BRACKETED})(?!\w)",
    r"://(?P<URL_CREDENTIALS>[^\s:/@\ufdd0]{1,99}+:[^\s/@\ufdd0]{1,199}+)@",
    rf"{_QUERY}(?P<query>{_QUERY_VALUE})",
    rf"(?P<private>{_PRIVATE_KEY})(?!\w)",
)
_PLAIN = re.compile(
    rf"\b(?:(?=[0-9])(?:{'|'.join(_NUMBERS)})|(?=[A-Z])(?:{'|'.join(_CAPITALS)})|(?=[A-Za-z])(?:{'|'.join(_LETTERS)}))(?!\w)"
)
SCANNER = re.compile(f"{'|'.join(_WITH_SIGNS)}|{_PLAIN.pattern}")
ANCHOR = re.compile(r"[0-9@A-Z](?:(?<=[0-9@])|[A-Z]{5}|S(?:S|NS|NV|CGC) )")  # in the first line of every match

_NAMED = {  # groups of one type; a name may stand only once in an expression, so some types have several
    **{kind: kind for kind in ("ADDRESS", "API_KEY", "DATE", "EMAIL", "PHONE", "POSTCODE", "URL_CREDENTIALS")},
    **dict.fromkeys(("military", "suite"), "ADDRESS"),
    **dict.fromkeys(("google", "locked", "private"), "API_KEY"),
    **dict.fromkeys(("international", "bracketed"), "PHONE"),
    "british": "NATIONAL_ID",
    "handle": "REFERENCE",
    "month": "DATE",
    "query": "URL_CREDENTIALS",
    "small_postcode": "POSTCODE",
}
_CHECKED: dict[str, Callable[[str], str | None]] = {
    "ip": internet_type,
    "hex": internet_type,
    "spaced": spaced_type,
    "code": code_type,
    "capitals": code_type,
    "number": number_type,
}
TYPES = ("ADDRESS", "API_KEY", "CARD", "DATE", "EMAIL", "IBAN", "IP", "NATIONAL_ID", "PHONE", "POSTCODE", "REFERENCE", "URL_CREDENTIALS")  # fmt: skip


def scan(text: str) -> Iterator[tuple[int, int, str]]:
    """Start, end and type of the secrets, from left to right, without reading lines that can hold none.

    A match holds an anchor, and only an address, which begins in the line of its first digit, goes over the end of a
    line. So it is enough to begin at the line of the next anchor.
    """
    anchor = ANCHOR.search(text)
    if not anchor:
        return
    signs = "@" in text or "+" in text or "(" in text or "=" in text or "--" in text
    search = SCANNER.search if signs else _PLAIN.search
    end, line = 0, text.rfind("\n", 0, anchor.start())
    while anchor:
        match = search(text, max(end, line))
        if match is None:
            return
        group = match.lastgroup or ""
        if kind := _type(match, group, end):
            yield *match.span(group), kind
        end = match.end()
        # An anchor that is far away is looked for once
        if anchor.start() < end and (anchor := ANCHOR.search(text, end)):
            line = text.rfind("\n", end, anchor.start())


def _type(match: re.Match[str], group: str, last: int) -> str | None:
    """The type of a match: by its shape, its check digits or the words between the last finding and it."""
    if group in _NAMED:
        return _NAMED[group]
    check = _CHECKED.get(group)
    return (check(match[group]) if check else None) or _announced(match, last)


def _announced(match: re.Match[str], last: int) -> str | None:
    start, end = match.span()
    words = _CONTEXT.search(match.string, max(last, start - _REACH), start)
    kind = words.lastgroup if words else None
    return kind if kind and _WEAK[kind].fullmatch(match.string, start, end) else None


@register(
    "patterns",
    f"secrets with a shape, of all types or those named with commas between: {', '.join(TYPES)}",
    argument="[:TYPES]",
)
class Patterns(Policy):
    """Secrets that show by their shape or by the words before them.

    >>> [(f.type, f.start, f.end) for f in Patterns().find("Call 542-016-4074, order number is ABCDEFGH.")]
    [('PHONE', 5, 17), ('REFERENCE', 35, 43)]

    *Formal guarantees.* Mask-consistent by itself: masking a merged span c of its findings leaves all others as they
    were. The matches of one left-to-right scan are disjoint, and what a match holds is never looked at again, whether
    it is a finding or not; c is made of whole findings, each inside one match.

    * No expression matches the mark, so none reaches over it. Outside of itself a match sees at most the character
      before and the one after it, and only whether that is a letter or digit (or an @, which begins no finding). Two
      letters or digits never meet at the edge of a finding. Hence, before and behind c, nothing that failed can match
      now and nothing that matched can fail.
    * The words that make a weak match a finding lie between the last match and it: behind c, or before c and then out of
      reach, as they cannot go over the mark either.
    * The words that belong to a match ("password:") hold no digit, no @ and no six capitals in a row; every match holds
      one of these, so none fits into the words that are left when the finding is gone.

    Switching types off only drops findings, never matches.
    """

    name = "patterns"
    consistency = "alone"

    def __init__(self, types: str | None = None) -> None:
        kept = TYPES if types is None else tuple(part.strip().upper() for part in types.split(","))
        if unknown := [kind for kind in kept if kind not in TYPES]:
            raise BadInput(f"patterns knows no type {unknown[0] or '(empty)'}; it knows {', '.join(TYPES)}")
        self.types = frozenset(kept)

    def find(self, text: str) -> list[Finding]:
        """The findings in the text, from left to right; they do not overlap."""
        return [Finding(start, end, kind, self.name) for start, end, kind in scan(text) if kind in self.types]
