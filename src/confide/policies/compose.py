"""Policies made of policies: union, exclude, miss, a choice of types; user-written expressions and functions."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import sys
import time
from bisect import bisect_right
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import re2

from ..errors import BadInput
from .base import Finding, Policy, merged, register

PATIENCE = 10  # seconds that a user's pattern may take on one record
MEMORY = 8 << 20  # bytes that one may take
_TYPE = re.compile(r"\w{1,40}", re.ASCII)  # types go into the manifest, which holds no text


class Union(Policy):
    """What any of several policies finds."""

    name = "union"

    def __init__(self, members: Sequence[Policy]) -> None:
        if not members:
            raise BadInput("union() needs at least one policy")
        self.members = tuple(members)
        if len(members) == 1:
            self.consistency = members[0].consistency
        elif all(member.consistency == "local" for member in members):
            self.consistency = "local"
        classes = [member.recall_class for member in members if member.recall_class]
        self.recall_class = "; or ".join(classes) or None
        self.warnings = tuple(warning for member in members for warning in member.warnings)
        self.files = tuple(path for member in members for path in member.files)
        self.pipeline = ", ".join(member.pipeline for member in members if member.pipeline)
        self.whole_group = any(member.whole_group for member in members)

    def find(self, text: str) -> list[Finding]:
        return [finding for member in self.members for finding in member.find(text)]


class Exclude(Policy):
    """A policy's findings, but for those that lie wholly inside a finding of another (say, of public names)."""

    name = "exclude"

    def __init__(self, policy: Policy, public: Policy) -> None:
        self._policy, self._public = policy, public
        self.warnings = policy.warnings
        self.files = policy.files + public.files
        self.pipeline = policy.pipeline
        self.whole_group = policy.whole_group or public.whole_group

    def find(self, text: str) -> list[Finding]:
        found = self._policy.find(text)
        if not found:
            return []
        public = merged(self._public.find(text))
        return [f for f in found if not _inside(f, public)]


class Miss(Policy):
    """A policy that misses a known share of what it would find, on purpose.

    *Formal guarantees.* Findings that overlap or touch are missed together. Their coin is a keyed hash of the text that they
    cover: each distinct text is missed with probability `rate` over the key, the same text always alike, and no coin
    depends on another record. Redrawing a secret into a slot therefore redraws its coin (guarantees §4.3).
    """

    name = "miss"

    def __init__(self, policy: Policy, rate: float, seed: int = 0) -> None:
        if not 0 <= rate <= 1:
            raise BadInput(f"miss(policy, rate): the rate must lie between 0 and 1, got {rate:g}")
        self._policy, self._rate, self._key = policy, rate, str(seed).encode()[:64]
        self.consistency = "none" if policy.consistency == "none" else "alone"
        self.warnings = (*policy.warnings, f"misses a share of {rate:g} of its findings on purpose")
        self.files = policy.files
        self.pipeline = policy.pipeline
        self.whole_group = policy.whole_group

    def find(self, text: str) -> list[Finding]:
        found = self._policy.find(text)
        kept = [span for span in merged(found) if self._coin(text[slice(*span)]) >= self._rate]
        return [f for f in found if _inside(f, kept)]

    def _coin(self, secret: str) -> float:
        digest = blake2b(secret.encode("utf-8", "surrogatepass"), digest_size=7, key=self._key).digest()
        return int.from_bytes(digest, "big") / 2**56


class Types(Policy):
    """A policy's findings of some types only, or of all but some."""

    name = "types"

    def __init__(self, policy: Policy, only: frozenset[str] | None, without: frozenset[str]) -> None:
        self._policy, self._only, self._without = policy, only, without
        self.consistency = "local" if policy.consistency == "local" else "none"
        self.files = policy.files
        self.pipeline = policy.pipeline
        self.warnings = policy.warnings
        self.whole_group = policy.whole_group

    def find(self, text: str) -> list[Finding]:
        return [
            f
            for f in self._policy.find(text)
            if f.type not in self._without and (self._only is None or f.type in self._only)
        ]


def _inside(finding: Finding, spans: list[tuple[int, int]]) -> bool:
    """Whether a finding lies wholly inside one of the spans, which are sorted and apart."""
    at = bisect_right(spans, (finding.start, sys.maxsize)) - 1
    return at >= 0 and finding.end <= spans[at][1]


class Expression(Policy):
    """A user's regular expression (RE2: no look-around, no back-references).

    One match is found in time linear in the text. Many may each look at all that is left of it, as those of `a*b|a` do in a
    text of a's: a record on which that takes more than `PATIENCE` seconds ends the screening, which names the type.
    """

    name = "expression"

    def __init__(self, expression: str, kind: str) -> None:
        if not _TYPE.fullmatch(kind):
            raise BadInput(f"{kind!a:.60}: a type is a word of at most 40 letters, digits and _")
        options = re2.Options()
        options.log_errors = False
        options.max_mem = MEMORY
        try:
            self._expression = re2.compile(expression, options)
        except (re2.error, UnicodeEncodeError):
            raise BadInput(
                f"the pattern of type {kind} is not a regular expression that RE2 knows (it has no look-around and no "
                "back-references)"
            ) from None
        self._kind = kind

    def find(self, text: str) -> list[Finding]:
        found = []
        end = time.thread_time() + PATIENCE
        for m in self._expression.finditer(text):
            if m.end() > m.start():
                found.append(Finding(m.start(), m.end(), self._kind, self.name))
            if time.thread_time() > end:
                raise BadInput(
                    f"the pattern of type {self._kind} takes more than {PATIENCE} seconds on one record of {len(text):,} characters; "
                    "simplify it (avoid * and + before what seldom follows), or split long records with --unit"
                )
        return found


def _silent() -> contextlib.AbstractContextManager[Any]:
    """What a user's code prints must not get into an answer; it might quote a record."""
    return contextlib.redirect_stdout(io.StringIO())


@register("python", "a function of yours: text in, (start, end, type) tuples out", argument=":MODULE:FUNCTION")
class Python(Policy):
    """A user's function; that it looks at nothing but its argument is taken on trust, and the manifest says so."""

    name = "python"
    warnings = ("a Python function is trusted to look at one record only, and to be fixed before it sees the corpus",)

    def __init__(self, target: str | None) -> None:
        module, _, function = (target or "").partition(":")
        if not module or not function:
            raise BadInput("a Python policy is written python:module:function")
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        try:
            with _silent():
                self._function: Any = getattr(importlib.import_module(module), function)
        except ImportError as error:
            raise BadInput(
                f"python:{target}: cannot import {error.name or module}; is it in this folder or installed?"
            ) from None
        except AttributeError:
            raise BadInput(f"python:{target}: the module {module} has no {function}") from None
        except (Exception, SystemExit) as error:
            raise BadInput(f"python:{target}: the module {module} fails to load with {type(error).__name__}") from None
        self._target = target
        self.files = tuple(filter(None, (getattr(sys.modules[module], "__file__", None),)))
        self.whole_group = bool(getattr(self._function, "whole_group", False))

    def find(self, text: str) -> list[Finding]:
        try:
            with _silent():
                found = [
                    Finding(int(start), int(end), str(kind), self.name, *map(float, more[:1]))
                    for start, end, kind, *more in self._function(text)
                ]
        except (Exception, SystemExit) as error:  # its message may quote the text
            raise BadInput(
                f"python:{self._target}: the function failed with {type(error).__name__} on a record; try it on a few texts by itself"
            ) from None
        if any(not 0 <= f.start <= f.end <= len(text) for f in found):
            raise BadInput(f"python:{self._target}: the function returned a span outside the record")
        if not all(_TYPE.fullmatch(f.type) for f in found):
            raise BadInput(f"python:{self._target}: a type is a word of at most 40 letters, digits and _")
        return found
