"""Records: rows of a corpus come in; small texts with ids come out, and the mark that stands for a masked secret.

Literal masks are escaped at intake, once, so that the mark can never have been in the input.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson
import pyarrow as pa

from .errors import BadInput

MARK = "\ufdd0"  # stands for a masked secret until the very end: a code point that no text may hold
MASK = "<MASK>"
MAX_LINE = 32 << 20  # bytes of one line, or of a file that is one document; a longer one is a bad row

USUAL_TEXT = (
    "text", "content", "body", "message", "dialogue", "utterance", "sentence", "messages", "conversations",
)  # fmt: skip
ROLES = frozenset({"system", "user", "assistant", "tool", "developer", "function"})
SHAREGPT_ROLES = {"human": "user", "gpt": "assistant"}
# Scripts that put no space between words: there a secret may begin and end anywhere.
UNSPACED = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF), (0x3400, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))  # fmt: skip

_BROKEN = object()  # a value that is not UTF-8
_LITERAL = re.compile(r"<(mask)>", re.IGNORECASE)


class Turn(NamedTuple):
    """One message of a chat inside a record's text: who speaks, and where the words are."""

    role: str
    start: int
    end: int


class Record(NamedTuple):
    """One text: a document as read, or a training example after splitting. `group` is the document it came from."""

    id: str
    text: str
    group: str
    turns: tuple[Turn, ...] = ()  # of a chat with roles; empty for plain text


def escape(text: str) -> str:
    """Take literal masks and our own mark out of the input.

    *Formal guarantees.* The result holds neither the mark nor the rendered mask in any case; escaping twice changes
    nothing more. Hence a mask in screened text always stands for a masked secret or a duplicate.
    """
    return _LITERAL.sub(r"‹\1›", text.replace(MARK, "\ufffd")) if "<" in text or MARK in text else text


def render(text: str) -> str:
    """The mark as people and models see it."""
    return text.replace(MARK, MASK)


@dataclass(frozen=True)
class Fields:
    """Which columns hold the text, the id, the group and the label, as the user says; None: found by usual names, but
    for group and label, which are then not read."""

    text: str | None = None
    id: str | None = None
    group: str | None = None
    label: str | None = None


class Columns(NamedTuple):
    """The columns of one file that are read; without an id column ids are made of file name and row."""

    text: str
    id: str | None
    group: str | None
    label: str | None = None


class Row(NamedTuple):
    """A usable row: its number in the file, from 1, its record, and the class of the document if it has one."""

    row: int
    record: Record
    label: str | None = None


class Bad(NamedTuple):
    """A row that cannot be used, and why. Holds no text of the corpus.

    >>> print(Bad("chats.jsonl", 17, "text is null"))
    chats.jsonl, row 17: text is null
    """

    name: str
    row: int
    reason: str

    def __str__(self) -> str:
        return f"{self.name}, row {self.row}: {self.reason}"


@dataclass(frozen=True)
class Chunk:
    """A piece of one file for one worker. Rows are lines in JSONL and text files, and rows below the header in tables."""

    number: int
    source: int
    name: str
    stem: str
    first_row: int
    kind: str  # jsonl, line, paragraph, file, arrow or rows
    columns: Columns
    payload: Any = field(repr=False)  # bytes, or rows as lists of strings
    offset: int = 0  # of the payload in the file, once decompressed
    bad: tuple[Bad, ...] = ()  # rows found unusable while cutting

    @property
    def ids_given(self) -> bool:
        """Whether ids come from the data. The made ones differ from each other by construction."""
        return self.columns.id is not None


class Unusable(ValueError):
    """A row that cannot become a record. The message is the reason and holds no text of the corpus."""


def choose_columns(names: Iterable[str], fields: Fields, file: str) -> Columns:
    """The columns to read from a file that has these: the ones the user named, else the ones with usual names."""
    names = list(names)
    if len(set(names)) < len(names):
        raise BadInput(
            f"{file} has two columns of one name, or no header; give it a first line in which each column has its own name"
        )
    wanted_columns = (("text", fields.text), ("id", fields.id), ("group", fields.group), ("label", fields.label))
    for option, wanted in wanted_columns:
        if wanted is not None and wanted not in names:
            raise BadInput(f"{file} has no column {wanted!r} for --{option}-field; it has {_listed(names)}")
    text = fields.text
    if text is None:
        usual = [name for name in USUAL_TEXT if name in names]
        if len(usual) != 1:
            found = f"several columns that may hold the text ({', '.join(usual)})" if usual else _listed(names)
            raise BadInput(f"{file} has {found}; say which one holds the text with --text-field")
        text = usual[0]
    return Columns(text, fields.id or ("id" if "id" in names and text != "id" else None), fields.group, fields.label)


def parse(chunk: Chunk) -> tuple[list[Row], list[Bad]]:
    """The usable and the unusable rows of a chunk.

    *Formal guarantees.* A record depends on its own row and the chosen columns only. Whatever the bytes of a row are,
    it becomes one record or one bad row; no reason holds text of the corpus.
    """
    rows: list[Row] = []
    bad = list(chunk.bad)
    columns, stem = chunk.columns, chunk.stem
    for row, values in _PARSERS[chunk.kind](chunk):
        try:
            if isinstance(values, Unusable):
                raise values
            record = make_record(values, columns, f"{stem}-{row}")
            rows.append(Row(row, record, _class(values, columns.label)))
        except Unusable as error:
            bad.append(Bad(chunk.name, row, str(error)))
    return rows, sorted(bad, key=lambda one: one.row)


_Values = Iterator[tuple[int, dict[str, Any] | Unusable]]


def _lines_of(chunk: Chunk) -> Iterator[tuple[int, str | Unusable]]:
    """The lines of a chunk that are not blank, with their numbers."""
    try:
        lines: Iterable[str | Unusable] = chunk.payload.decode().split("\n")
    except UnicodeDecodeError:
        lines = _decoded(chunk)
    for row, line in enumerate(lines, chunk.first_row):
        if line and not (isinstance(line, str) and line.isspace()):
            yield row, line


def _decoded(chunk: Chunk) -> Iterator[str | Unusable]:
    offset = chunk.offset
    for line in chunk.payload.split(b"\n"):
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            yield Unusable(f"not UTF-8 at byte {offset + error.start}")
        offset += len(line) + 1


def _parse_jsonl(chunk: Chunk) -> _Values:
    text = chunk.columns.text
    offset = chunk.offset
    for row, line in enumerate(chunk.payload.split(b"\n"), chunk.first_row):
        try:
            found = orjson.loads(line)
        except orjson.JSONDecodeError:
            found = None if not line or line.isspace() else _why(line, offset)
        offset += len(line) + 1
        if isinstance(found, dict):
            yield row, found if text in found else Unusable(f"has no {text}")
        elif found is not None or line == b"null":
            yield row, found if isinstance(found, Unusable) else Unusable("not a JSON object")


def _why(line: bytes, offset: int) -> Any:
    """What is wrong with a line that is no JSON."""
    try:
        return decode_json(line.decode())
    except UnicodeDecodeError as error:
        return Unusable(f"not UTF-8 at byte {offset + error.start}")
    except json.JSONDecodeError as error:
        return Unusable(f"not JSON from column {error.colno} on")
    except Unusable as error:
        return error
    except (ValueError, RecursionError):
        return Unusable("JSON with a number too long or nested too deeply")


def _parse_line(chunk: Chunk) -> _Values:
    for row, line in _lines_of(chunk):
        yield row, line if isinstance(line, Unusable) else {"text": line.removesuffix("\r")}


def _parse_paragraph(chunk: Chunk) -> _Values:
    """Lines that follow each other without a blank one; a paragraph has the number of its first line."""
    for first, lines in _paragraphs(chunk):
        broken = [line for line in lines if isinstance(line, Unusable)]
        yield first, broken[0] if broken else {"text": "\n".join(str(line).removesuffix("\r") for line in lines)}


def _paragraphs(chunk: Chunk) -> Iterator[tuple[int, list[str | Unusable]]]:
    first = 0
    lines: list[str | Unusable] = []
    for row, line in _lines_of(chunk):
        if lines and row != first + len(lines):
            yield first, lines
            lines = []
        first = first if lines else row
        lines.append(line)
    if lines:
        yield first, lines


def _parse_file(chunk: Chunk) -> _Values:
    try:
        yield chunk.first_row, {"text": chunk.payload.decode()}
    except UnicodeDecodeError as error:
        yield chunk.first_row, Unusable(f"not UTF-8 at byte {chunk.offset + error.start}")


def _parse_rows(chunk: Chunk) -> _Values:
    known = {bad.row for bad in chunk.bad}
    names = list(dict.fromkeys(name for name in chunk.columns if name is not None))
    for row, values in enumerate(chunk.payload, chunk.first_row):
        if row not in known:
            yield row, dict(zip(names, values, strict=True))


def _parse_arrow(chunk: Chunk) -> _Values:
    batch = pa.ipc.open_stream(chunk.payload).read_next_batch()
    columns = [_values(column) for column in batch.columns]
    for row, values in enumerate(zip(*columns, strict=True), chunk.first_row):
        broken = any(value is _BROKEN for value in values)
        yield row, Unusable("not UTF-8") if broken else dict(zip(batch.schema.names, values, strict=True))


def _values(column: Any) -> list[Any]:
    """Python values of an Arrow column."""
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        return [_value(value) for value in column]


def _value(value: Any) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError:
        return _BROKEN


_PARSERS: dict[str, Callable[[Chunk], _Values]] = {
    "jsonl": _parse_jsonl, "line": _parse_line, "paragraph": _parse_paragraph, "file": _parse_file,
    "rows": _parse_rows, "arrow": _parse_arrow,
}  # fmt: skip


def _constant(name: str) -> None:
    raise Unusable(f"JSON with {name}, which is no number")


_DECODER = json.JSONDecoder(parse_constant=_constant)


def decode_json(line: str) -> Any:
    """Strict JSON: no NaN. The error is a ValueError or a RecursionError."""
    line = line.strip(" \t\r\n")
    found, end = _DECODER.raw_decode(line)
    if end != len(line):
        raise json.JSONDecodeError("more than one value", "", end)
    return found


def make_record(values: Mapping[str, Any], columns: Columns, made_id: str) -> Record:
    """The record of one row; raises `Unusable` with the reason if there is none."""
    text, turns = _content(values.get(columns.text), columns.text)
    if len(text) > MAX_LINE:
        raise Unusable(f"{columns.text} is longer than {_megabytes(MAX_LINE)}")
    name = made_id if columns.id is None else _label(values.get(columns.id), columns.id)
    group = name if columns.group is None else _label(values.get(columns.group), columns.group)
    return Record(name, text, group, turns)


def too_long(length: int) -> str:
    """The reason for passing over a line of this many bytes."""
    return f"{_megabytes(length, 1)}, more than the {_megabytes(MAX_LINE)} a line may have"


def _content(value: Any, column: str) -> tuple[str, tuple[Turn, ...]]:
    if isinstance(value, str):
        return escape(_checked(value, column)), ()
    if isinstance(value, list):
        return _chat(value, column)
    raise Unusable(f"{column} is {_kind(value)}")


def _chat(messages: list[Any], column: str) -> tuple[str, tuple[Turn, ...]]:
    """A chat as one text, `role: words` a line, and where the words are. Roles are public structure."""
    parts: list[str] = []
    turns: list[Turn] = []
    at = 0
    for number, message in enumerate(messages, 1):
        role, words = _message(message, f"message {number} of {column}")
        at += len(role) + 2
        turns.append(Turn(role, at, at + len(words)))
        parts.append(f"{role}: {words}")
        at += len(words) + 1
    if all(turn.start == turn.end or parts[i][len(turn.role) + 2 :].isspace() for i, turn in enumerate(turns)):
        raise Unusable(f"{column} holds no words")
    return "\n".join(parts), tuple(turns)


def _message(message: Any, where: str) -> tuple[str, str]:
    if not isinstance(message, dict):
        raise Unusable(f"{where} is {_kind(message)}, not an object with role and content")
    if message.get("tool_calls") or message.get("function_call"):
        raise Unusable(f"{where} calls a tool; write the call into its content or leave the message out")
    role, content = message.get("role"), message.get("content")
    if role is None and content is None:
        role, content = message.get("from"), message.get("value")
        role = SHAREGPT_ROLES.get(role, role) if isinstance(role, str) else role
    if not isinstance(role, str) or role not in ROLES:
        raise Unusable(f"{where} has a role other than {', '.join(sorted(ROLES))}")
    if isinstance(content, list):
        content = "\n".join(_part(part, where) for part in content)
    if not isinstance(content, str):
        raise Unusable(f"the content of {where} is {_kind(content)}")
    return role, escape(_encodable(content, where))


def _part(part: Any, where: str) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise Unusable(f"{where} has a part that is not text")


def _class(values: Mapping[str, Any], column: str | None) -> str | None:
    """The label of a document, None where there is none (in a table: an empty field)."""
    value = None if column is None else values.get(column)
    return None if value is None or value == "" or column is None else _label(value, column)


def _label(value: Any, column: str) -> str:
    """An id, a group or a label: text or a whole number."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise Unusable(f"{column} is {_kind(value)}")
    return _checked(value, column)


def _checked(text: str, where: str) -> str:
    if not text or text.isspace():
        raise Unusable(f"{where} is empty")
    return _encodable(text, where)


def _encodable(text: str, where: str) -> str:
    """Half of a surrogate pair is no character: it could not be written again."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Unusable(f"{where} holds half of a surrogate pair") from None
    return text


def _kind(value: Any) -> str:
    kinds = {type(None): "null", bool: "true or false", dict: "an object", list: "a list", str: "text", bytes: "bytes"}
    return kinds.get(type(value), "a number" if isinstance(value, int | float) else "no text")


def _listed(names: list[str]) -> str:
    """Column names for a message. What does not look like a name may be a first row without a header: not shown."""
    if not names:
        return "no columns"
    if not all(re.fullmatch(r"[a-z_][a-z_.-]{0,39}[0-9]{0,2}", name) for name in names):
        return f"{len(names)} columns, some of whose names look like text (has it a header?) and are not shown"
    return f"the columns {', '.join(names)}"


def _megabytes(size: int, digits: int = 0) -> str:
    return f"{size / (1 << 20):.{digits}f} MB"
