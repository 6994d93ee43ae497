"""What a policy is: one record's text in, findings out; and the registry from which a policy is made by name.

A policy sees the text of a single record and nothing else, is fixed before it sees the corpus, and gives the same
findings whatever else is screened beside it (guarantees §3). It meets `MARK`, the out-of-band mark of a masked secret,
as an ordinary sign that is neither a letter nor a digit nor white space.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..errors import BadInput


class Finding(NamedTuple):
    """A span of a record that may hold a secret, and why: its type, the policy that says so and how sure it is."""

    start: int
    end: int
    type: str
    policy: str
    score: float = 1.0


class Policy:
    """A rule for what counts as a secret.

    `consistency` says how far a finding depends on the text around it, which decides what may be claimed for a secret
    that was caught (guarantees §3):

    * "local": whether a span is a finding depends on its own characters alone, and on whether the characters beside it
      are letters or digits, where the mark counts as one. Masking a maximal run of findings never changes another, alone or in
      any union of local policies.
    * "alone": the same holds for the whole of this policy's findings, but not in a union with other policies.
    * "none": masking a secret may change what else is found. The guarantee for missed secrets then covers caught ones.
    """

    name: str = ""
    consistency: Literal["local", "alone", "none"] = "none"
    # The secrets that it flags by construction, in words: those inside which it finds something, wherever they stand.
    recall_class: str | None = None
    warnings: tuple[str, ...] = ()  # what a user must know before trusting it
    pipeline: str = ""  # the model that it runs, with its version
    files: tuple[str, ...] = ()  # that it was made from; a resumed screening must find them unchanged
    whole_group: bool = False  # it must see the whole dialogue or document; routing is then by whole groups

    def find(self, text: str) -> list[Finding]:
        """The findings in one record's text, in any order; they may overlap."""
        raise NotImplementedError


@dataclass(frozen=True)
class Entry:
    """A policy in the registry."""

    name: str
    summary: str
    make: Callable[[str | None], Policy]
    argument: str = ""  # how it is written behind the name: ":FILE", "[:FILE]" where it may be left out
    needs: str = ""  # what must be installed for it


REGISTRY: dict[str, Entry] = {}


def register(
    name: str, summary: str, argument: str = "", needs: str = ""
) -> Callable[[Callable[..., Policy]], Callable[..., Policy]]:
    """Enter a policy's class or factory under a name; it is called with the argument after the colon, or None."""

    def enter(make: Callable[..., Policy]) -> Callable[..., Policy]:
        def build(given: str | None) -> Policy:
            if given is not None and not argument:
                raise BadInput(f"the policy {name} takes nothing after a colon")
            return make(given) if argument else make()

        REGISTRY[name] = Entry(name, summary, build, argument, needs)
        return make

    return enter


def merged(findings: Sequence[Finding]) -> list[tuple[int, int]]:
    """The spans that the findings cover together, sorted, overlapping and touching ones joined."""
    if len(findings) == 1:
        start, end, *_ = findings[0]
        return [(start, end)] if end > start else []
    spans: list[tuple[int, int]] = []
    for start, end, *_ in sorted(findings):
        if spans and start <= spans[-1][1]:
            if end > spans[-1][1]:
                spans[-1] = (spans[-1][0], end)
        elif end > start:
            spans.append((start, end))
    return spans
