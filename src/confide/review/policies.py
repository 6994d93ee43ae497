"""A screening's manifest comes in; its policies, made again, say what no reviewer can see: which found secrets masking would
still show, and which secrets are of the class that the conservative policy flags by construction.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..policies import Finding, Policy, load
from ..policies.compose import Union
from ..records import MARK
from ..screening.manifest import policy_files
from .records import Secret, Shown, joined

Span = tuple[int, int]
PARTS = ("digits", "everything")  # policies whose class holds parts of their findings too


def _spans(secrets: Iterable[Secret]) -> list[Span]:
    return [(one.start, one.end) for one in secrets]


class Policies:
    """The policies of one screening. `unfit` says why what is counted with them cannot be evidence; None: it can.

    `folder`: of the screening, with its key.

    *Formal guarantees.* Where something cannot be known, counts err on the side of a larger bound: a found secret counts as
    missed, and only missed secrets count as being of the class. Policies whose files are not those of the screening make no
    evidence.
    """

    def __init__(self, manifest: Mapping[str, Any], folder: Path | None = None) -> None:
        facts = manifest["certificate"]
        self._manifest, self._folder = manifest, folder
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
            self._policy = self._load("policy")
        if self.recall_class is not None:
            self._conservative = self._load("conservative")
            self._classes = None if self._conservative is None else list(_by_construction(self._conservative))
        self._class_spans = functools.lru_cache(8)(self._find_class)

    def _load(self, name: str) -> Policy | None:
        try:
            return self._made(name)
        except BadInput as error:
            self._say(
                f"the policy {self._manifest[name]['spec']} of the screening cannot be made again, which tells what masking a "
                f"secret would change ({error}); bring it back, or work in the folder where the corpus was screened"
            )
            return None

    def _made(self, name: str) -> Policy:
        """A policy of the screening, made from the same files."""
        stated = self._manifest[name]
        policy = load(stated["spec"])
        if not policy.files:
            return policy
        if "files" not in stated:
            raise BadInput("an older confide screened, which kept no digest of its files; screen again")
        then, now = ([one["digest"] for one in some] for some in (stated["files"], policy_files(policy, self._key())))
        if then != now or "" in now:
            changed = [one["path"] for one in stated["files"] if not one["digest"] or one["digest"] not in now]
            raise BadInput(f"{', '.join(changed) or 'the files'} changed since the corpus was screened")
        return policy

    def _key(self) -> bytes:
        try:
            return bytes.fromhex(((self._folder or Path()) / "key").read_text("ascii").strip())
        except (OSError, ValueError):
            raise BadInput(
                "the key in the screened folder, which tells whether its files are the same, is gone"
            ) from None

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

    def hides(self, shown: Shown, start: int, end: int) -> bool:
        """Whether redaction hides a found secret, or this part of one, whole, so that there is nothing to mark.

        *Formal guarantees.* If so, t(s) = t(s[x→MASK]) for the part x, as in `showing`. Where it cannot be known, the answer is
        no, and a mark there counts as missed: the policy cannot be made again, or saw the record in pieces (the turns of a chat,
        the units that dedup compares) that are not known here; pieces are the same to "local" policies, which look no further
        than the next character.
        """
        if self.consistent and (start, end) in _spans(shown.found):
            return True
        if self._whole_documents or (self._policy is None and not self.consistent):
            return False
        if self._policy is None:
            try:
                self._policy = self._made("policy")
            except BadInput:
                return False
        pieces = shown.chat or self._manifest["certificate"]["units_per_record"] == "several"
        if self._policy.consistency == "alone" and pieces:
            return False
        return self._masks(shown.text) == _spans(shown.found) and not self._shows(shown, Secret(start, end, ""))

    def _shows(self, shown: Shown, one: Secret) -> bool:
        """Whether masking a found secret, or a part of one, moves a mask."""
        whole = next(two for two in shown.found if two.start <= one.start and one.end <= two.end)
        if shown.chat and "\n" in shown.text[whole.start : whole.end]:
            return True
        masked = shown.text[: one.start] + MARK + shown.text[one.end :]
        less = one.end - one.start - len(MARK)
        before = [at for at in _spans(shown.found) if at[0] < whole.start]
        after = [(start - less, end - less) for start, end in _spans(shown.found) if start > whole.start]
        return self._masks(masked) != [*before, (whole.start, whole.end - less), *after]

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

    def in_class(self, text: str, start: int, end: int, missed: bool) -> bool:
        """Whether a secret of a record is of the class that the conservative policy flags by construction; all are, if that is
        no part.

        *Formal guarantees.* A secret is of the class if a member that has a class finds something in the whole record that
        lies inside the secret, or, of the policies in `PARTS`, touches it. So the record of such a secret is flagged.
        """
        if self.recall_class is None:
            return True
        if self._classes is None:
            return missed
        return any(
            (low < end and start < high) if part else (start <= low and high <= end)
            for low, high, part in self._class_spans(text)
        )

    def _find_class(self, text: str) -> list[tuple[int, int, bool]]:
        return [
            (one.start, one.end, policy.name in PARTS)
            for policy in self._classes or ()
            for one in self._find(policy, text)
            if one.end > one.start
        ]


def _by_construction(policy: Policy) -> Iterable[Policy]:
    """The members of a union that flag a class by construction; a policy of any other kind is its only member."""
    if isinstance(policy, Union):
        return [one for member in policy.members for one in _by_construction(member)]
    return [policy] if policy.recall_class is not None else []


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
