"""The papers' data sets as they were published: the files of one split come in; its records, with what is known of their secrets, go out.

`find` gives the files of a name, or refuses. Errors name the file, the line and the field, never a word of the data.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO, cast

from ..errors import BadInput
from ..policies.customersim import CustomerSim
from . import customersim

Span = tuple[int, int, str]
Find = Callable[..., list[Path]]
CANARY = "My ID is 341752"


class Text(NamedTuple):
    """A record. `secrets`: (start, end, type) in the text by ground truth; None: nobody knows."""

    id: str
    text: str
    secrets: tuple[Span, ...] | None
    label: str | None = None


# -- reading files ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    """A file's text; whatever goes wrong while reading is said without the text."""
    try:
        opener = gzip.open if path.suffix == ".gz" else open
        with cast(TextIO, opener(path, "rt", encoding="utf-8-sig", newline="\n")) as file:
            yield file
    except UnicodeDecodeError:
        raise BadInput(f"{path} is not UTF-8") from None
    except (EOFError, zlib.error):
        raise BadInput(f"{path} is cut off or damaged") from None
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror or 'it is damaged'}") from None


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Where a line is, and the line without its end."""
    with _opened(path) as file:
        for number, line in enumerate(file, 1):
            yield f"{path}, line {number}", line.rstrip("\r\n")


def _objects(path: Path) -> Iterator[tuple[str, Any]]:
    """The objects of a JSONL file, and where each is."""
    for where, line in _lines(path):
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            raise BadInput(f"{where}: not JSON") from None
        yield where, found


def _json(path: Path, hook: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    with _opened(path) as file:
        try:
            return json.load(file, object_hook=hook)
        except UnicodeDecodeError:
            raise
        except (ValueError, RecursionError):
            raise BadInput(f"{path} is not JSON, or is cut off") from None


_KINDS: dict[type, str] = {str: "text", list: "a list", dict: "an object"}


def _get(row: Any, name: str, kind: type, where: str) -> Any:
    if not isinstance(row, dict) or name not in row:
        raise BadInput(f"{where}: no field {name}")
    return _of_kind(row[name], kind, f"{where}: {name}")


def _of_kind(value: Any, kind: type, where: str) -> Any:
    if not isinstance(value, kind):
        raise BadInput(f"{where} is not {_KINDS[kind]}")
    return value


def _span(start: Any, end: Any, length: int, where: str) -> tuple[int, int]:
    if type(start) is not int or type(end) is not int or not 0 <= start < end <= length:
        raise BadInput(f"{where}: the place of a label is outside the text")
    return start, end


def _shares(read: Callable[[], Iterator[Text]], split: str) -> Iterator[Text]:
    """One split of a file that has none: the first eight tenths are for training, one validates, the last one tests."""
    count = sum(1 for _ in read())
    low, high = {"train": (0, 8), "valid": (8, 9), "test": (9, 10)}[split]
    return islice(read(), count * low // 10, count * high // 10)


# -- dialogues --------------------------------------------------------------------------------------------------------

_LINE_ENDS = re.compile("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")


def _joined(turns: Iterable[tuple[str, str, Iterable[Span]]], between: str = "\n") -> tuple[str, list[Span]]:
    """A dialogue, one turn a line, of (tag, words, spans in the words); and the spans in the dialogue."""
    lines: list[str] = []
    secrets: list[Span] = []
    length = 0
    for tag, words, spans in turns:
        at = length + len(tag)
        secrets += [(at + start, at + end, kind) for start, end, kind in spans]
        lines.append(tag + _LINE_ENDS.sub(" ", words))  # one character for one: spans stay where they are
        length += len(lines[-1]) + len(between)
    return between.join(lines), secrets


def _places(text: str, patterns: Iterable[tuple[str, str]]) -> list[Span]:
    """Where (pattern, type) match, in any case."""
    return [(*match.span(), kind) for one, kind in patterns for match in re.finditer(one, text, re.IGNORECASE)]


def _disjoint(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Sorted; overlapping ones are joined and have the longer one's type."""
    found: list[Span] = []
    for start, end, kind in sorted(spans, key=lambda span: (span[0], -span[1])):
        if found and start < found[-1][1]:
            low, high, before = found[-1]
            found[-1] = low, max(high, end), before if high - low >= end - start else kind
        else:
            found.append((start, end, kind))
    return tuple(found)


# -- CustomerSim ------------------------------------------------------------------------------------------------------


def simulated(find: Find, split: str, *, count: int, seed: int, crowd: int) -> Iterator[Text]:
    size = count if split == "train" else max(1, count // 10)
    for one in customersim.dialogues(size, seed, split, _people(seed, crowd)):
        yield Text(one.id, one.text.rstrip("\n"), one.secrets)


@lru_cache(maxsize=1)
def _people(seed: int, crowd: int) -> list[customersim.Person]:
    return customersim.people(seed, crowd)


def original(find: Find, split: str) -> Iterator[Text]:
    """The S-DP paper's dialogues: names by the table of people, everything else by its format."""
    policy = CustomerSim(str(find("database_20000.csv")[0]))
    for where, row in _objects(find(f"simdial_{split}.jsonl")[0]):
        name, text = _get(row, "id", str, where), _get(row, "text", str, where).rstrip("\n")
        if not text.startswith(CANARY):
            found = [(start, end, kind.lower()) for start, end, kind, *_ in policy.find(text)]
            yield Text(f"{split}-{name}", text, _disjoint(found))


# -- MultiWOZ ---------------------------------------------------------------------------------------------------------

_SPEAKERS = {"USER": "USR: ", "SYSTEM": "SYS: "}
_SLOTS = {
    "ref": "reference", "phone": "phone", "post": "postcode", "postcode": "postcode", "addr": "address", "address": "address",
}  # fmt: skip
_SHORTEST = 4  # labels such as "yes" and "##" are mistakes
_UNMISTAKABLE = 5  # values at least as long, reference numbers or with a digit, are secrets wherever they stand


def multiwoz22(find: Find, split: str) -> Iterator[Text]:
    """Reference numbers, phones and so on are not in the dialogue files, whose spans are those of the tracked state, but
    in dialog_acts.json."""
    acts = _json(find("dialog_acts.json")[0])
    folder = "dev" if split == "valid" else split
    for path in find(f"{folder}/dialogues_*.json"):
        for number, dialogue in enumerate(_of_kind(_json(path), list, str(path)), 1):
            where = f"{path}, dialogue {number}"
            name = _get(dialogue, "dialogue_id", str, where)
            of_turns = _get(acts, name, dict, "dialog_acts.json")
            turns, values = [], set()
            for turn in _get(dialogue, "turns", list, where):
                key = _get(turn, "turn_id", str, where)
                at, words = f"{where}, turn {key}", _get(turn, "utterance", str, f"{where}, turn {key}")
                spans, said = _labelled(words, of_turns.get(key, {}), f"dialog_acts.json for {at}", by_token=False)
                spans += _framed(words, turn, at)
                turns.append((_speaker(turn, at), words, spans))
                values |= said
            yield _multiwoz(name, turns, values)


def multiwoz21(find: Find, split: str) -> Iterator[Text]:
    return _shares(lambda: _convlab(find("multiwoz21_valtest_convlab2.jsonl")[0]), split)


def _convlab(path: Path) -> Iterator[Text]:
    for where, dialogue in _objects(path):
        turns, values = [], set()
        for number, turn in enumerate(_get(dialogue, "turns", list, where), 1):
            at = f"{where}, turn {number}"
            words = _get(turn, "text", str, at)
            spans, said = _labelled(words, turn, at, by_token=True)
            turns.append((_speaker(turn, at), words, spans))
            values |= said
        yield _multiwoz(_get(dialogue, "id", str, where), turns, values)


def _multiwoz(name: str, turns: list[tuple[str, str, list[Span]]], values: set[tuple[str, str]]) -> Text:
    """A dialogue with its labelled spans, and every other place where a labelled value stands."""
    text, secrets = _joined(turns)
    sure = [
        (re.escape(value), kind)
        for value, kind in sorted(values)
        if len(value) >= _UNMISTAKABLE and (kind == "reference" or re.search(r"\d", value))
    ]
    return Text(name, text, _disjoint(secrets + _places(text, sure)))


def _speaker(turn: Any, where: str) -> str:
    speaker = _get(turn, "speaker", str, where)
    if speaker not in _SPEAKERS:
        raise BadInput(f"{where}: speaker is neither USER nor SYSTEM")
    return _SPEAKERS[speaker]


def _labelled(words: str, acts: Any, where: str, by_token: bool) -> tuple[list[Span], set[tuple[str, str]]]:
    """The secrets that a turn's dialogue acts name: spans in its words, and (value, type)."""
    spans: list[Span] = []
    values: set[tuple[str, str]] = set()
    tokens = [match.span() for match in re.finditer(r"\S+", words)]
    labels = acts.get("span_info", []) if isinstance(acts, dict) else []
    if not isinstance(labels, list):
        raise BadInput(f"{where}: span_info is not a list")
    for label in labels:
        if not isinstance(label, list) or len(label) != 5 or not isinstance(label[1], str):
            raise BadInput(f"{where}: span_info is not a list of [act, slot, value, start, end]")
        _, slot, _, start, end = label
        if kind := _SLOTS.get(slot.lower()):
            if by_token:
                first, last = _span(start, end + 1 if type(end) is int else end, len(tokens), where)
                start, end = tokens[first][0], tokens[last - 1][1]
            start, end = _span(start, end, len(words), where)
            if end - start >= _SHORTEST:
                spans.append((start, end, kind))
                values.add((words[start:end], kind))
    named = acts.get("dialog_act", {}) if isinstance(acts, dict) else {}
    for pairs in named.values() if isinstance(named, dict) else ():
        for pair in _of_kind(pairs, list, f"{where}: dialog_act"):
            if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
                raise BadInput(f"{where}: dialog_act does not hold lists of [slot, value]")
            if kind := _SLOTS.get(pair[0].lower()):
                values.add((pair[1], kind))
    return spans, values


def _framed(words: str, turn: Any, where: str) -> list[Span]:
    """The secrets among the spans of the dialogue files; slots that are copied from others have none."""
    spans: list[Span] = []
    for frame in _get(turn, "frames", list, where):
        for slot in _get(frame, "slots", list, where):
            kind = _SLOTS.get(_get(slot, "slot", str, where).rpartition("-")[2])
            if kind and "start" in slot:
                spans.append((*_span(slot["start"], slot.get("exclusive_end"), len(words), where), kind))
    return spans


def single_turns(find: Find, split: str) -> Iterator[Text]:
    return _shares(lambda: _utterances(find("multiwoz22_train_dialogues_001_utterances.tsv")[0]), split)


def _utterances(path: Path) -> Iterator[Text]:
    for number, (where, line) in enumerate(_lines(path), 1):
        values = line.split("\t")
        if len(values) != 3 or values[0] not in _SPEAKERS:
            raise BadInput(f"{where}: not three columns, the first of them USER or SYSTEM")
        yield Text(f"turn-{number}", _SPEAKERS[values[0]] + values[1], None)


# -- WikiText ---------------------------------------------------------------------------------------------------------


def wikitext(find: Find, split: str) -> Iterator[Text]:
    for number, (_, line) in enumerate(_lines(find(f"{split}.txt", f"wiki.{split}.raw")[0]), 1):
        if line.strip():
            yield Text(f"{split}-{number}", line, None)


# -- ABCD -------------------------------------------------------------------------------------------------------------

_TAGS = {"agent": "SYS:", "customer": "USR:", "action": "ACT:"}
_CUSTOMER = {
    "personal": {
        "customer_name": "name", "email": "email", "phone": "phone", "username": "username", "account_id": "account",
        "pin_number": "pin",
    },
    "order": {"order_id": "order", "street_address": "address", "full_address": "address", "zip_code": "postcode"},
}  # fmt: skip
_END = "<|endoftext|>"


def abcd(find: Find, split: str) -> Iterator[Text]:
    path = find("abcd_v1.1.json")[0]
    # Candidate answers are most of the file and are dropped while it is read.
    conversations = _json(path, lambda found: None if "candidates" in found else found)
    folder = "dev" if split == "valid" else split
    for number, one in enumerate(_get(conversations, folder, list, str(path)), 1):
        where = f"{path}, {folder} conversation {number}"
        turns: list[tuple[str, str, tuple[Span, ...]]] = []
        for turn in _get(one, "original", list, where):
            if not isinstance(turn, list) or list(map(type, turn)) != [str, str] or turn[0] not in _TAGS:
                raise BadInput(f"{where}: a turn is not [agent, customer or action; text]")
            turns.append((_TAGS[turn[0]], turn[1], ()))
        text, _ = _joined(turns, "\n\n")
        if type(one.get("convo_id")) is not int:
            raise BadInput(f"{where}: convo_id is not a whole number")
        card = _customer(_get(one, "scenario", dict, where), where)
        yield Text(f"{folder}-{one['convo_id']}", text, _disjoint(_places(text, card)))


def _customer(scenario: dict[str, Any], where: str) -> list[tuple[str, str]]:
    """What the customer's card says, as patterns: punctuation and spacing do not matter; nor does half of a name."""
    found: list[tuple[str, str]] = []
    for part, fields in _CUSTOMER.items():
        for name, value in _of_kind(scenario.get(part, {}), dict, f"{where}: {part}").items():
            words = re.findall(r"\w+", str(value))
            if (kind := fields.get(name)) and words:
                whole = r"[^\w\n]{0,3}".join(map(re.escape, words))
                parts = [re.escape(word) for word in words if len(word) > 1] if kind == "name" else []
                found += [(rf"(?<!\w)\(?{one}(?!\w)", kind) for one in (whole, *parts)]
    return found


def abcd_text(find: Find, split: str) -> Iterator[Text]:
    return _shares(lambda: _conversations(find("abcd_original_valid.txt")[0]), split)


def _conversations(path: Path) -> Iterator[Text]:
    number, held = 1, []
    for where, line in _lines(path):
        before, *others = line.split(_END)
        if not all(piece.startswith(tuple(_TAGS.values())) for piece in (before, *others) if piece):
            raise BadInput(f"{where}: begins with none of {', '.join(_TAGS.values())}")
        held.append(before)
        for other in others:
            if any(held):
                yield Text(f"conversation-{number}", "\n".join(held).strip("\n"), None)
                number += 1
            held = [other]
    if any(held):
        yield Text(f"conversation-{number}", "\n".join(held).strip("\n"), None)


# -- GLUE -------------------------------------------------------------------------------------------------------------

HELD_OUT = 2000


def glue(
    find: Find, split: str, *, task: str, columns: tuple[str, ...], label: str, labels: tuple[str, ...],
    dev: str = "dev", torn: int = 0,
) -> Iterator[Text]:  # fmt: skip
    """GLUE's own test labels are secret: its dev rows test, and the last rows of train validate."""
    source = dev if split == "test" else "train"
    path = find(f"{task}_{source}.tsv", f"{source}.tsv")[0]
    read = partial(_table, path, source, columns, label, labels, torn)
    if split == "test":
        return read()
    count = sum(1 for _ in read())
    if count < 2:
        raise BadInput(f"{path} has {count} rows, too few to train on some and validate on others")
    border = count - (HELD_OUT if count >= 10 * HELD_OUT else max(1, count // 10))
    return islice(read(), 0, border) if split == "train" else islice(read(), border, None)


def _table(
    path: Path, source: str, columns: tuple[str, ...], label: str, labels: tuple[str, ...], torn: int
) -> Iterator[Text]:
    """The rows of a TSV file in which quotation marks mean nothing; at most `torn` rows of the wrong length are left out."""
    lines = _lines(path)
    header = next(lines, ("", ""))[1].split("\t")
    if missing := [name for name in (*columns, label) if name not in header]:
        raise BadInput(f"{path}, line 1: no column {', '.join(missing)}")
    places, at = [header.index(name) for name in columns], header.index(label)
    for number, (where, line) in enumerate(lines, 1):
        values = line.split("\t")
        if len(values) != len(header):
            torn -= 1
            if torn < 0:
                raise BadInput(f"{where}: {len(values)} columns, the header has {len(header)}")
        elif values[at] not in labels:
            raise BadInput(f"{where}: {label} is none of {', '.join(labels)}")
        else:
            yield Text(f"{source}-{number}", "\n".join(values[place] for place in places), None, values[at])
