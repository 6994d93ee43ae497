"""A screening's manifest comes in; its policies, made again, say what no reviewer can see: which found secrets masking would
still show, and which secrets are of the class that the conservative policy flags by construction.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import BadInput
from ..policies import Finding, Policy, load
from ..records import MARK
from .records import Secret, Shown, joined

Span = tuple[int, int]


def _spans(secrets: Iterable[Secret]) -> list[Span]:
    return [(one.start, one.end) for one in secrets]


class Policies:
    """The policies of one screening. `unfit` says why what is counted with them cannot be evidence; None: it can.

    *Formal guarantees.* Where something cannot be known, counts err on the side of a larger bound: a found secret counts as
    missed, and only missed secrets count as being of the class.
    """

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        facts = manifest["certificate"]
        self.unfit: str | None = unfit_screening(manifest)
        self._whole_documents = _reads_groups(manifest)
        self._classes: list[Policy] | None = None
        self._policy: Policy | None = None
        self._conservative: Policy | None = None
        self._showing: dict[int, frozenset[Secret]] = {}
        self.consistent = bool(facts["mask_consistent"])
        # The class in force: None where δ₂ is 0 for all secrets, or for none, by construction.
        self.recall_class: str | None = None if facts["conservative"] == "everything" else facts["recall_class"]
        if not self.consistent and not self._whole_documents:
            self._policy = self._load(manifest["policy"]["spec"])
        if self.recall_class is not None:
            self._conservative = self._load(manifest["conservative"]["spec"])
            self._classes = None if self._conservative is None else list(_by_construction(self._conservative))
        self._in_class = functools.lru_cache(1 << 16)(self._flagged_alone)

    def _load(self, spec: str) -> Policy | None:
        try:
            return load(spec)
        except BadInput as error:
            self._say(
                f"the policy {spec} of the screening cannot be made again, which tells what masking a secret would change "
                f"({error}); bring it back, or work in the folder where the corpus was screened"
            )
            return None

    def _say(self, why: str) -> None:
        self.unfit = self.unfit or why

    def showing(self, record: int, shown: Shown) -> frozenset[Secret]:
        """The found secrets of a record whose masking would change what screening makes of it: they count as missed.

        *Formal guarantees.* A found secret x that is not returned has t(s) = t(s[x→MASK]) (guarantees §3): for mask-consistent
        policies by their own guarantee; for others because the policy, run on both texts, puts masks at the same places and
        nowhere else. Masks depend on where findings begin and end, never on what they hold, so that this holds for the turns
        of a chat as well; only a finding that reaches across a line might reach across turns too, and counts as missed.
        Both texts are private, since x was found in one and the other holds the mark.
        """
        if record not in self._showing:
            if not self._same(shown):
                found = shown.found
            else:
                found = () if self.consistent else tuple(one for one in shown.found if self._shows(shown, one))
            self._showing[record] = frozenset(found)
        return self._showing[record]

    def _same(self, shown: Shown) -> bool:
        """Whether the policies do with a record what they did when it was screened, as far as they are needed here."""
        if self._whole_documents:
            return self.consistent
        same = self.consistent or (self._policy is not None and self._masks(shown.text) == _spans(shown.found))
        if self._conservative is not None and not shown.found:
            same = same and bool(self._find(self._conservative, shown.text)) == shown.private
        if not same:
            self._say(
                "the policies find other secrets in a record now than when it was screened; bring them back as they were, or "
                "screen and review again"
            )
        return same

    def _shows(self, shown: Shown, one: Secret) -> bool:
        if shown.chat and "\n" in shown.text[one.start : one.end]:
            return True
        masked = shown.text[: one.start] + MARK + shown.text[one.end :]
        less = one.end - one.start - len(MARK)
        before = [at for at in _spans(shown.found) if at[0] < one.start]
        after = [(start - less, end - less) for start, end in _spans(shown.found) if start > one.start]
        return self._masks(masked) != [*before, (one.start, one.start + len(MARK)), *after]

    def _masks(self, text: str) -> list[Span]:
        """Where redaction would put masks."""
        assert self._policy is not None
        marks = [Finding(at, at + 1, "", "") for at, sign in enumerate(text) if sign == MARK]
        return _spans(joined([*self._find(self._policy, text), *marks], text))

    def _find(self, policy: Policy, text: str) -> list[Finding]:
        try:
            return policy.find(text)
        except BadInput as error:
            self._say(f"a policy of the screening fails now ({error}); mend it")
            return []

    def in_class(self, secret: str, missed: bool) -> bool:
        """Whether a secret is of the class that the conservative policy flags by construction; all are, if that is no part.

        *Formal guarantees.* A secret is of the class if a member that has a class finds something in the secret's own text.
        """
        if self.recall_class is None:
            return True
        return missed if self._classes is None else self._in_class(secret)

    def _flagged_alone(self, secret: str) -> bool:
        return any(self._find(policy, secret) for policy in self._classes or ())


def _by_construction(policy: Policy) -> Iterable[Policy]:
    """The members of a union that flag a class by construction; a policy of any other kind is its only member."""
    members = getattr(policy, "_members", None)
    if members is None:
        return [policy] if policy.recall_class is not None else []
    return [one for member in members for one in _by_construction(member)]


def unfit_screening(manifest: Mapping[str, Any]) -> str | None:
    """Why no review of this screening can be evidence; None if one can."""
    facts = manifest["certificate"]
    if manifest["public_duplicates"]:
        return (
            f"screening left out {manifest['public_duplicates']:,} public duplicates, which nobody can draw; screen with "
            "--public-dedup off for a review"
        )
    if facts["order"] == "dedup-redact" and facts["dedup"] != "off":
        return (
            "in the order dedup-redact a secret that was found still decides what counts as a duplicate, which no review can "
            "see; screen with --order redact-dedup for a review"
        )
    if _reads_groups(manifest):
        return (
            "the policy read whole documents, so that masking a found secret may change other records, which no review of "
            "single records can see; screen with --context record for a review"
        )
    return None


def _reads_groups(manifest: Mapping[str, Any]) -> bool:
    """Whether the policies saw whole documents that were split into several records."""
    return bool(
        manifest["context"] == "group" and (manifest["unit"] != "document" or manifest["max_words"] is not None)
    )
