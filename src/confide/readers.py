"""Readers: the files of a corpus come in; chunks small enough for one worker go out.

`chunks` streams through them in the main process and only cuts: `records.parse` reads a chunk in a worker. Memory is
bounded by the size of a chunk and by the longest line allowed.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from typing import IO, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from . import records
from .arrow_sizes import MAGIC, packed_parts
from .errors import BadInput
from .records import Bad, Chunk, Columns, Fields, choose_columns, decode_json, too_long
from .sources import File, cause

LARGEST_RATIO = 200  # of what is unpacked to what is packed, in parts beyond MAX_LINE
TEXT_AS = ("file", "line", "paragraph")

_ENDS = {"jsonl": (b"\n",), "line": (b"\n",), "paragraph": (b"\n\n", b"\n\r\n"), "file": ()}
_ANY = Columns("text", None, None)


class _Piece(NamedTuple):
    """What a cutter makes of a file: the part of a chunk that depends on the format."""

    first_row: int
    kind: str
    columns: Columns
    payload: Any
    offset: int = 0
    bad: tuple[Bad, ...] = ()


def chunks(files: Sequence[File], fields: Fields, text_as: str = "file", size: int = 1 << 20) -> Iterator[Chunk]:
    """Cut the files into chunks of about `size` bytes, in order, in bounded memory.

    The rows do not depend on `size`. A text file is one document (`text_as` "file"), or one for each line or
    paragraph. Columns are chosen by the header or the schema, in JSONL by the first object of each file.
    """
    if text_as not in TEXT_AS:
        raise BadInput(f"a text file is read as {', '.join(TEXT_AS)}; not as {text_as!r}")
    if size < 64:
        raise BadInput(f"a chunk has at least 64 bytes, not {size}")
    number = 0
    for index, file in enumerate(files):
        empty = True
        with _readable(file):
            for piece in _pieces(file, fields, text_as, size):
                yield Chunk(number, index, file.name, file.stem, *piece)
                number, empty = number + 1, False
        if empty:
            bad = (Bad(file.name, 1, "the file holds no rows"),)
            yield Chunk(number, index, file.name, file.stem, 1, "rows", _ANY, [], bad=bad)
            number += 1


def _pieces(file: File, fields: Fields, text_as: str, size: int) -> Iterator[_Piece]:
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(file.filesystem.open(file.path, "rb"))
        if file.format == "parquet":
            yield from _parquet(file, stream, fields, size)
        elif file.format == "arrow":
            yield from _arrow(file, stream, fields, size)
        else:
            if file.compression == "gzip":
                stream = stack.enter_context(gzip.GzipFile(fileobj=stream))
            elif file.compression == "zstd":
                stream = stack.enter_context(pa.CompressedInputStream(stream, "zstd"))
            blocks = _blocks(file, stream, min(size, records.MAX_LINE))
            if file.format in ("csv", "tsv"):
                yield from _table(file, blocks, fields, size)
            else:
                yield from _lines(file, blocks, fields, text_as if file.format == "text" else "jsonl")


@contextlib.contextmanager
def _readable(file: File) -> Iterator[None]:
    """Say which file cannot be read."""
    try:
        yield
    except BadInput:
        raise
    except Exception as error:  # file systems and codecs raise what they like
        raise BadInput(f"{file.name} cannot be read: {cause(error)}") from None


def _blocks(file: File, stream: IO[bytes], size: int) -> Iterator[bytes]:
    """The bytes of a file in blocks of `size`; only the last one may be shorter."""
    first = True
    while parts := _read(stream, size):
        if first and parts.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise BadInput(f"{file.name} is UTF-16; convert it to UTF-8, for example with iconv")
        first = False
        yield parts


def _read(stream: IO[bytes], size: int) -> bytes:
    block = stream.read(size)
    while len(block) < size and (more := stream.read(size - len(block))):
        block += more
    return block


class _Cut(NamedTuple):
    offset: int
    length: int
    lines: int  # line ends in it
    data: bytes | None  # None: too long, passed over


def _whole(blocks: Iterable[bytes], ends: tuple[bytes, ...]) -> Iterator[_Cut]:
    """Join blocks and cut them after an end, as far right as possible; what is too long is not held in memory."""
    held: list[bytes] = []
    offset = length = lines = 0
    for block in blocks:
        tail = held[-1][-2:] if held else b""  # an end may lie across two blocks
        near = tail + block
        first = min((at + len(end) for end in ends if (at := near.find(end)) >= 0), default=0) - len(tail)
        last = max((at + len(end) for end in ends if (at := near.rfind(end)) >= 0), default=0) - len(tail)
        if last <= 0:
            held.append(block)
            length, lines = length + len(block), lines + block.count(b"\n")
            if length > records.MAX_LINE:
                held = [block[-2:]]
            continue
        if length + first > records.MAX_LINE:
            yield _Cut(offset, length + first, lines + block.count(b"\n", 0, first), None)
            offset, length, lines, held = offset + length + first, 0, 0, []
            block, last = block[first:], last - first
        if last:
            data = b"".join([*held, block[:last]])
            yield _Cut(offset, len(data), data.count(b"\n"), data)
            offset += len(data)
        held = [block[last:]] if last < len(block) else []
        length, lines = len(block) - last, block.count(b"\n", last)
    if length:
        yield _Cut(offset, length, lines, None if length > records.MAX_LINE else b"".join(held))


def _lines(file: File, blocks: Iterable[bytes], fields: Fields, kind: str) -> Iterator[_Piece]:
    """JSONL and text: bytes, cut at line ends (or blank lines, or not at all)."""
    columns = None if kind == "jsonl" else _ANY
    row = 1
    for cut in _whole(blocks, _ENDS[kind]):
        data, offset = cut.data, cut.offset
        if data is None:
            yield _Piece(row, kind, _ANY, b"", offset, (Bad(file.name, row, too_long(cut.length)),))
        else:
            if offset == 0 and data.startswith(b"\xef\xbb\xbf"):
                data, offset = data[3:], 3
            if columns is None:
                columns = _first_object(file, data, fields)
            if kind == "file" or (data and not data.isspace()):
                # before the first object there are only bad rows, for which any columns will do
                yield _Piece(row, kind, columns or _ANY, data, offset)
        row += cut.lines


def _first_object(file: File, data: bytes, fields: Fields) -> Columns | None:
    for line in BytesIO(data):
        if line.strip() == b"[" or line.startswith(b"[{"):
            raise BadInput(f"{file.name} holds a JSON list; write one object a line, for example with jq -c '.[]'")
        try:
            found = decode_json(line.decode())
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return choose_columns(found, fields, file.name)
    return None


def _table(file: File, blocks: Iterable[bytes], fields: Fields, size: int) -> Iterator[_Piece]:
    """CSV and TSV: quotes may span lines, so rows are told apart here; only the columns needed go on."""
    broken: list[int] = []  # offsets of what is not UTF-8 in the lines of the current row
    csv.field_size_limit(records.MAX_LINE)
    reader = csv.reader(
        _text_lines(file, blocks, broken), "excel-tab" if file.format == "tsv" else "excel", strict=True
    )
    header: list[str] = []
    row = first = 1
    rows: list[list[str]] = []
    bad: list[Bad] = []
    held = 0
    try:
        header = next(filter(None, reader), [])
        if broken:
            raise BadInput(f"{file.name}: the header is not UTF-8 at byte {broken[0]}; convert the file to UTF-8")
        columns = choose_columns(header, fields, file.name) if header else _ANY
        places = [header.index(name) for name in dict.fromkeys(columns) if name in header]
        for values in reader:
            if not values:
                continue
            if broken:
                bad.append(Bad(file.name, row, f"not UTF-8 at byte {broken[0]}"))
                broken.clear()
                rows.append([])
            elif len(values) != len(header):
                bad.append(Bad(file.name, row, f"has {len(values)} columns, the header has {len(header)}"))
                rows.append([])
            else:
                rows.append([values[place] for place in places])
                held += sum(map(len, rows[-1]))
            row += 1
            if held > size or len(rows) > size >> 4:
                yield _Piece(first, "rows", columns, rows, bad=tuple(bad))
                first, rows, bad, held = row, [], [], 0
    except csv.Error:
        where = f"row {row}" if header else "header"
        raise BadInput(
            f"{file.name}, {where}: quotes or line ends are not those of a {file.format.upper()} file; mend that row, or write the file anew"
        ) from None
    if rows:
        yield _Piece(first, "rows", columns, rows, bad=tuple(bad))


def _text_lines(file: File, blocks: Iterable[bytes], broken: list[int]) -> Iterator[str]:
    number = 0
    for cut in _whole(blocks, (b"\n",)):
        if cut.data is None:
            raise BadInput(f"{file.name}, line {number + 1}: {too_long(cut.length)}")
        offset = cut.offset
        for line in BytesIO(cut.data):
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                broken.append(offset + error.start)
                text = line.decode(errors="replace")
            yield text.removeprefix("\ufeff") if offset == 0 else text
            offset += len(line)
            number += 1


def _parquet(file: File, stream: IO[bytes], fields: Fields, size: int) -> Iterator[_Piece]:
    table = pq.ParquetFile(stream)
    columns = choose_columns(table.schema_arrow.names, fields, file.name)
    groups = [table.metadata.row_group(i) for i in range(table.metadata.num_row_groups)]
    for group in groups:
        for column in map(group.column, range(group.num_columns)):
            if column.path_in_schema.partition(".")[0] in columns:
                _refuse_bomb(file, column.total_compressed_size, column.total_uncompressed_size)
    total = sum(group.total_byte_size for group in groups)
    batch = max(1, min(size * max(1, table.metadata.num_rows) // max(1, total), 1 << 16))
    names = [name for name in dict.fromkeys(columns) if name is not None]
    yield from _batches(table.iter_batches(batch, columns=names), columns, size)


def _refuse_bomb(file: File, packed: int, unpacked: int) -> None:
    """Refuse what is small on disk and would not fit into memory, before it is unpacked."""
    if unpacked > max(records.MAX_LINE, LARGEST_RATIO * packed):
        raise BadInput(
            f"{file.name} unpacks to more than {LARGEST_RATIO} times its size ({unpacked >> 20} MB), as no text does; write it anew"
        )


def _arrow(file: File, stream: IO[bytes], fields: Fields, size: int) -> Iterator[_Piece]:
    """Arrow as Hugging Face datasets write it (a stream), or as a file with a footer."""
    for packed, unpacked in packed_parts(stream):
        _refuse_bomb(file, packed, unpacked)
    stream.seek(0)
    magic = stream.read(len(MAGIC))
    stream.seek(0)
    if magic == MAGIC:
        reader = pa.ipc.open_file(stream)
        batches: Iterable[Any] = (reader.get_batch(i) for i in range(reader.num_record_batches))
    else:
        batches = reader = pa.ipc.open_stream(stream)
    columns = choose_columns(reader.schema.names, fields, file.name)
    names = [name for name in dict.fromkeys(columns) if name is not None]
    yield from _batches((_intact(batch.select(names)) for batch in batches), columns, size)


def _intact(batch: Any) -> Any:
    """Arrow trusts the offsets that it reads; wrong ones would read other memory."""
    batch.validate(full=True)
    return batch


def _batches(batches: Iterable[Any], columns: Columns, size: int) -> Iterator[_Piece]:
    row = 1
    for batch in batches:
        if not batch.num_rows:
            continue
        step = max(1, min(batch.num_rows, size * batch.num_rows // max(1, batch.nbytes)))
        for start in range(0, batch.num_rows, step):
            part = batch.slice(start, step)
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, part.schema) as writer:
                writer.write_batch(part)
            yield _Piece(row, "arrow", columns, sink.getvalue().to_pybytes())
            row += part.num_rows
