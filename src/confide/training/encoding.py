"""Examples, one for each record, come in; tokens go out, with what counts as a target and what is private.

The encoder holds public parameters only, and what it makes of a record depends on that record alone.
"""

from __future__ import annotations

import re
import secrets as entropy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..dp.losses import IGNORED
from ..errors import BadInput
from ..models.templates import Unrendered, render
from ..models.tokens import unpanicked
from ..policies import Finding, merged
from ..records import MASK, Turn

NO_LABEL = -1  # of a record that is not classified
View = Literal["screened", "raw", "anonymized", "segments"]
VIEWS: tuple[View, ...] = ("screened", "raw", "anonymized", "segments")

_SENTINEL = re.compile("\ufdd1([0-9]{1,9})\ufdd2")  # noncharacters: no template and no role holds them


class Tokens(NamedTuple):
    """One record as the model sees it."""

    ids: NDArray[np.int32]
    target: NDArray[np.bool_]  # this token counts in the loss, as the one to be predicted
    private: NDArray[np.bool_]  # S-DP calls it private
    label: int = NO_LABEL  # its class


class Example(NamedTuple):
    """One record as a view shows it; turns and findings are places in this text."""

    text: str
    view: View = "raw"
    turns: Sequence[Turn] = ()
    findings: Sequence[Finding] = ()
    label: str | None = None
    where: str = "the record"  # for messages: part and row, never an id


class Segment(NamedTuple):
    """A piece of a record that is tokenised by itself, or a token that stands for itself."""

    text: str
    token: int = -1
    private: bool = False
    target: bool = True
    ends: bool = False  # it ends what was said: its beginning is a target even if the rest is none
    template: bool = False  # text of the chat template, in which special tokens are what they say


def _roles(example: Example) -> tuple[str, ...]:
    return tuple(turn.role for turn in example.turns)


@dataclass(frozen=True)
class Encoder:
    """How records become tokens.

    `ignore_mask`: masks are no targets. `fillings`: one of them, drawn at random, stands in place of each mask, but for a
    record that is nothing but a mask; with `ignore_mask` it is no target either. `drop_masked`: a record that holds a mask
    has no target at all and no class (guarantees §1c). `assistant_only`: of a chat, only what the assistant says and the end of its turn are targets.
    `chat` "auto": a record with roles goes through the tokenizer's template if there is one. `placeholders`: the token
    of each type of finding. `classes`: the labels by their number; they are public, and never read off the corpus.
    """

    tokenizer: Any = field(repr=False)
    max_length: int
    task: Literal["causal", "classify"] = "causal"
    ignore_mask: bool = False
    fillings: tuple[str, ...] = ()
    drop_masked: bool = False
    assistant_only: bool = False
    chat: Literal["auto", "never"] = "auto"
    placeholders: Mapping[str, int] = field(default_factory=dict)
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not getattr(self.tokenizer, "is_fast", False):
            raise BadInput("the tokenizer has no fast version (tokenizer.json); convert it, or choose another")
        if self.tokenizer.mask_token_id is None:
            raise BadInput("the tokenizer has no mask token; prepare it with confide.models.tokens.prepare")
        if self.task == "causal" and self.tokenizer.eos_token_id is None:
            raise BadInput("the tokenizer has no token for the end of a text (eos_token)")
        if self.task not in ("causal", "classify") or self.chat not in ("auto", "never"):
            raise BadInput("a task is causal or classify, and chat is auto or never")
        if self.task == "classify" and len(set(self.classes)) < max(2, len(self.classes)):
            raise BadInput("a classifier needs at least two classes, all different: name them with --classes")
        if self.max_length < 1 + sum(map(len, self._frame)):
            raise BadInput(f"records of at most {self.max_length} tokens leave no room for text; raise the length")
        added = self.tokenizer.added_tokens_decoder
        for token in (self.tokenizer.mask_token_id, *self.placeholders.values()):
            if token not in added or not added[token].special:
                raise BadInput("masks and placeholders must be special tokens, else a text could hold them literally")
        special = set(self.tokenizer.all_special_ids) - {self.tokenizer.unk_token_id}
        names = [added[token].content for token in sorted(special & added.keys())]
        if any(special & set(ids) for ids in self._tokenise(names, template=False)):
            raise BadInput("this tokenizer finds special tokens such as its mask in ordinary text; choose another")

    @cached_property
    def _frame(self) -> tuple[list[int], list[int]]:
        """What stands before and behind a text; of a classifier, the tokenizer's own special tokens."""
        if self.task == "causal":
            first, last = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
            return [last if first is None else first], [last]
        framed, bare = (
            self.tokenizer("a", add_special_tokens=special, verbose=False)["input_ids"] for special in (True, False)
        )
        for at in range(len(framed) - len(bare) + 1):
            if framed[at : at + len(bare)] == bare:
                return framed[:at], framed[at + len(bare) :]
        raise BadInput("this tokenizer changes a text when it adds its special tokens; choose another")

    @cached_property
    def _special(self) -> frozenset[int]:
        added = self.tokenizer.added_tokens_decoder
        named = set(self.tokenizer.all_special_ids) | {token for token, one in added.items() if one.special}
        return frozenset(named - {self.tokenizer.unk_token_id})

    @property
    def uses_chat(self) -> bool:
        """Whether roles go through the tokenizer's template."""
        return self.chat == "auto" and self.task == "causal" and bool(getattr(self.tokenizer, "chat_template", None))

    @property
    def reads_turns(self) -> bool:
        return self.task == "causal" and (self.uses_chat or self.assistant_only)

    def encode(self, examples: Sequence[Example]) -> list[Tokens]:
        """The tokens of each example, in order.

        *Formal guarantees.* What becomes of an example depends on that example and the public parameters alone, not on
        what is encoded beside it. With `fillings` it depends on coins besides, drawn afresh for every mask from the operating
        system's entropy. Equal screened records get draws from one distribution, independent of all else: if two corpora differ
        in k screened records, their encodings can be coupled so that they differ in at most k, and a record that is the same
        whether a secret or `<MASK>` stood there is encoded with the same probabilities. What holds for each outcome of the coins
        holds for their mixture (guarantees §2). Special tokens are never parsed out of a record's text. One mask in screened
        text is one mask token, unless it is filled, and no other text becomes one. With `drop_masked`, a record whose screened text holds a mask has
        no target wherever the mask lies, also behind the place where the record is cut (guarantees §1c). In the view
        "segments" the text is cut where findings begin and end and every segment is tokenised by itself: a merge of
        characters across a border would make a public token depend on private characters, and S-DP's neighbours, which
        differ in private characters only, would not share their public tokens (guarantees §5). How many tokens a private
        segment has, and so where an over-long record is cut, belongs to the pattern that S-DP's neighbours share.
        """
        chats = [self.uses_chat and bool(example.turns) and example.view != "segments" for example in examples]
        templates = self._templates([example for example, chat in zip(examples, chats, strict=True) if chat])
        segments: list[list[Segment]] = []
        for example, chat in zip(examples, chats, strict=True):
            segments.append(list(self._chat(example, templates[_roles(example)]) if chat else self._plain(example)))
        flat = [segment for one in segments for segment in one]
        ids: list[list[int]] = [[segment.token] if segment.token >= 0 else [] for segment in flat]
        for template in (False, True):
            at = [i for i, one in enumerate(flat) if one.token < 0 and one.text and one.template == template]
            for i, found in zip(at, self._tokenise([flat[i].text for i in at], template), strict=True):
                ids[i] = found
        out: list[Tokens] = []
        place = 0
        for example, mine, chat in zip(examples, segments, chats, strict=True):
            out.append(self._joined(example, mine, ids[place : place + len(mine)], framed=not chat))
            place += len(mine)
        return out

    def _tokenise(self, texts: list[str], template: bool) -> list[list[int]]:
        if not texts:
            return []
        with unpanicked():
            found: list[list[int]] = self.tokenizer(
                texts,
                add_special_tokens=False,
                split_special_tokens=not template,
                padding=False,
                truncation=False,
                return_attention_mask=False,
                return_token_type_ids=False,
                verbose=False,
            )["input_ids"]
        return found

    def _plain(self, example: Example) -> Iterator[Segment]:
        """A text as it is; roles are words of it."""
        if not (self.assistant_only and example.turns):
            yield from self._segments(example, 0, len(example.text), True)
            return
        place, spoken = 0, False
        for role, start, end in example.turns:
            yield Segment(example.text[place:start], target=False, ends=spoken)
            spoken, place = role == "assistant", end
            yield from self._segments(example, start, end, spoken)
        yield Segment(example.text[place:], target=False, ends=spoken)

    def _chat(self, example: Example, template: list[str | int]) -> Iterator[Segment]:
        """A chat through the template, which is rendered without the words: they can neither steer nor break it."""
        spoken = False
        for part in template:
            if isinstance(part, str):
                yield Segment(part, target=not self.assistant_only, ends=spoken, template=True)
                spoken = False
            else:
                role, start, end = example.turns[part]
                spoken = role == "assistant" and self.assistant_only
                yield from self._segments(example, start, end, spoken or not self.assistant_only)

    def _templates(self, examples: Sequence[Example]) -> dict[tuple[str, ...], list[str | int]]:
        """For all roles in their order: the template's text, and the number of each message where its words belong."""
        where: dict[tuple[str, ...], str] = {}
        for example in examples:
            where.setdefault(_roles(example), example.where)
        texts = render(
            self.tokenizer,
            [[{"role": role, "content": f"\ufdd1{i}\ufdd2"} for i, role in enumerate(roles)] for roles in where],
        )
        return {roles: self._parts(texts, roles, where[roles]) for roles in where}

    def _parts(self, texts: Iterator[str], roles: Sequence[str], where: str) -> list[str | int]:
        try:
            text = next(texts)
        except Unrendered as problem:
            raise BadInput(
                f"{where}: the tokenizer's chat template does not accept the roles {', '.join(roles)} in this order "
                f"({problem}). If screening cut the turns apart, screen again with --unit document; else name a "
                "tokenizer without a chat template with --tokenizer: roles are then words of the text"
            ) from None
        found = _SENTINEL.split(text)
        times = Counter(map(int, found[1::2]))
        if not times or max(times) >= len(roles) or max(times.values()) > 2:
            raise BadInput(
                f"{where}: the tokenizer's chat template leaves all messages out, or repeats them; name a tokenizer without a "
                "chat template with --tokenizer: roles are then words of the text"
            )
        return [int(part) if i % 2 else part for i, part in enumerate(found) if part]

    def _segments(self, example: Example, low: int, high: int, target: bool) -> Iterator[Segment]:
        """The part of a text between two places, cut as its view wants it."""
        text = example.text
        if example.view == "screened":
            yield from self._masked(text[low:high].split(MASK), target, bool(self.fillings) and text.strip() != MASK)
        elif example.view == "raw":
            yield Segment(text[low:high], target=target)
        else:
            place = low
            for start, end in merged(list(example.findings)):
                start, end = max(start, low), min(end, high)
                if start < end:
                    yield Segment(text[place:start], target=target)
                    if example.view == "segments":
                        yield Segment(text[start:end], private=True, target=target)
                    else:
                        yield Segment("", self._placeholder(example, start, end), target=target)
                    place = end
            yield Segment(text[place:high], target=target)

    def _masked(self, pieces: Sequence[str], target: bool, filled: bool) -> Iterator[Segment]:
        """The pieces of a text between its masks, and what stands for these."""
        if filled and not self.ignore_mask:  # of one piece, so that it is tokenised like any text
            yield Segment(
                pieces[0] + "".join(entropy.choice(self.fillings) + piece for piece in pieces[1:]), target=target
            )
            return
        for i, piece in enumerate(pieces):
            if i and filled:
                yield Segment(entropy.choice(self.fillings), target=False)
            elif i:
                yield Segment("", self.tokenizer.mask_token_id, target=target and not self.ignore_mask)
            yield Segment(piece, target=target)

    def _placeholder(self, example: Example, start: int, end: int) -> int:
        kind = min(finding for finding in example.findings if finding.start < end and finding.end > start).type
        if kind not in self.placeholders:
            raise BadInput(f"there is no placeholder for findings of the type {kind}")
        return self.placeholders[kind]

    def _joined(
        self, example: Example, segments: Sequence[Segment], ids: Sequence[Sequence[int]], framed: bool
    ) -> Tokens:
        head, tail = self._frame if framed else ([], [])
        counts = [len(part) for part in ids]
        joined = [token for part in ids for token in part]
        target = np.repeat(np.array([s.target for s in segments], bool), counts)
        starts = np.cumsum([0, *counts])
        for at, part, segment in zip(starts, ids, segments, strict=False):
            if segment.ends:
                target[at : at + self._end(part, segment.template)] = True
        private = np.repeat(np.array([s.private for s in segments], bool), counts)
        if self.task == "classify":
            room = self.max_length - len(head) - len(tail)
            joined, target, private = joined[:room], target[:room], private[:room]
        silent = self.assistant_only and bool(example.turns) and example.turns[-1].role != "assistant"
        end = self.task == "causal" and not silent
        target = np.concatenate([np.zeros(len(head), bool), target, np.full(len(tail), end)])[: self.max_length]
        private = np.concatenate([np.zeros(len(head), bool), private, np.zeros(len(tail), bool)])[: self.max_length]
        label = self._class(example) if self.task == "classify" else NO_LABEL
        target[:1] = False  # nothing comes before it from which it could be predicted
        if self.drop_masked and example.view == "screened" and MASK in example.text:
            target[:] = False
            label = IGNORED if self.task == "classify" else NO_LABEL
        return Tokens(np.array([*head, *joined, *tail][: self.max_length], np.int32), target, private, label)

    def _end(self, ids: Sequence[int], template: bool) -> int:
        """How many tokens behind the assistant's words say that they are over.

        Of a template, all up to its first special token: in Llama 2's `{content} </s>` a space comes before it. Without a
        special token, or in a plain text, where none is parsed: the first token.
        """
        found = (at for at, token in enumerate(ids, 1) if token in self._special) if template else iter(())
        return next(found, min(1, len(ids)))

    def _class(self, example: Example) -> int:
        if example.label is None:
            raise BadInput(f"{example.where} has no label; screen a corpus in which every document has one")
        try:
            return self.classes.index(example.label)
        except ValueError:
            raise BadInput(
                f"{example.where} has a label that is not among the {len(self.classes)} classes; name all labels of the corpus with --classes"
            ) from None
