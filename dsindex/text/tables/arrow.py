"""Read Arrow IPC files and streams; find and measure their messages by the headers, without the bodies.

pyarrow reads a stream's messages with their bodies, of which a plan needs nothing, and does not say where they are.

Source: the columnar format's "Serialization and Interprocess Communication", and its _Message.fbs and File.fbs. Headers
are flatbuffers: a table begins with the distance back to its vtable, which holds the offset of each field, or 0.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dsindex.errors import InputError
from dsindex.text.forms import ARROW_FILE_MAGIC, CONTINUATION
from dsindex.text.tables.columns import check_names, joined_fields
from dsindex.text.tables.files import RowGroup, check_range, errors_named, part_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dsindex.text.tables.files import Content, TableFile

_SCHEMA, _DICTIONARY, _RECORD_BATCH = 1, 2, 3
"""Types of headers."""
_PREFIX_BYTES = 8
_BLOCK_BYTES = 24
_FILE_BEGIN_BYTES = 8
_FILE_END_BYTES = 4 + len(ARROW_FILE_MAGIC)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Message:
    """Where a message is in its file."""

    kind: int
    begin: int
    """Position of its first byte."""
    body: int
    """Position of its body."""
    end: int
    """Position after its body."""


def read_arrow_schema(file: TableFile) -> pa.Schema:
    """Return all columns of a file or stream.

    Raises:
        InputError: If it is damaged or cut off.
    """
    data = file.content()
    return _read_schema(file.path, data, _find_messages(file.path, data))


def measure_arrow(file: TableFile, schema: pa.Schema, wanted: Sequence[int]) -> list[RowGroup]:
    """Return the rows of each record batch, and the bytes of the columns of these numbers.

    The bytes are uncompressed, as the header and the first bytes of each buffer claim it.

    Raises:
        InputError: If a header is damaged, or its buffers are not inside the body.
    """
    data = file.content()
    messages = _find_messages(file.path, data)
    return [
        _measure_batch(file.path, data, message, schema, wanted)
        for message in messages
        if message.kind == _RECORD_BATCH
    ]


def read_arrow(
    file: TableFile, begin: int, end: int, fields: Sequence[tuple[str, ...]] | None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the record batches [begin, end), which are not validated, with their numbers.

    Their memory is the mapped file unless they are compressed.
    """
    data = file.content()
    messages = _find_messages(file.path, data)
    batches = [number for number, message in enumerate(messages) if message.kind == _RECORD_BATCH]
    check_range(file.path, end, len(batches), "record batches")
    if begin == end:
        return
    # Dictionaries may be replaced on the way: all those before a record batch count.
    skipped = [message for message in messages[: batches[begin]] if message.kind in {_SCHEMA, _DICTIONARY}]
    pieces = _Pieces(data, [*skipped, *messages[batches[begin] : batches[end - 1] + 1]])
    schema = _read_schema(file.path, data, messages)
    file.expect_forwards([(messages[batches[begin]].begin, messages[batches[end - 1]].end)])
    with errors_named(file.path, "an Arrow file with a readable schema"):
        reader = pa.ipc.open_stream(pa.PythonFile(pieces, mode="r"), options=_wanted(schema, fields))
    for group, number in enumerate(batches[begin:end], begin):
        file.check_size()
        with errors_named(file.path, f"an Arrow file with a readable record batch {group}"):
            rows = next(reader, None)
            if rows is None:
                raise pa.ArrowInvalid("the end of the stream")
            rows.validate()
        yield group, rows
        file.release(messages[number].begin, messages[number].end)


def _read_schema(path: str, data: Content, messages: Sequence[_Message]) -> pa.Schema:
    with errors_named(path, "an Arrow file with a readable schema"):
        schema = pa.ipc.open_stream(pa.PythonFile(_Pieces(data, messages[:1]), mode="r")).schema
        check_names(schema)
        return schema


class _Pieces:
    """Messages of a stream, one after the other, as a file that pyarrow reads without copies."""

    def __init__(self, data: Content, messages: Sequence[_Message]) -> None:
        self.closed = False
        self._data = data
        self._ranges = [(message.begin, message.end) for message in reversed(messages)]

    def read(self, num_bytes: int) -> memoryview:
        """Return up to `num_bytes` bytes, not beyond the end of a message: pyarrow reads no more of one than it has."""
        if not self._ranges:
            return self._data[:0]
        begin, end = self._ranges.pop()
        cut = min(end, begin + num_bytes)
        if cut < end:
            self._ranges.append((cut, end))
        return self._data[begin:cut]

    read_buffer = read

    def close(self) -> None:
        """Do nothing."""


def _wanted(schema: pa.Schema, fields: Sequence[tuple[str, ...]] | None) -> pa.ipc.IpcReadOptions:
    """Return options to read the wanted columns only, and in one thread."""
    if fields is None:
        return pa.ipc.IpcReadOptions(use_threads=False)
    names = {joined_fields(schema, path)[0] for path in fields}
    numbers = [number for number, name in enumerate(schema.names) if name in names]
    return pa.ipc.IpcReadOptions(use_threads=False, included_fields=numbers)


def _find_messages(path: str, data: Content) -> list[_Message]:
    """Find the messages of an Arrow file or stream, the schema first."""
    is_file = data[: len(ARROW_FILE_MAGIC)] == ARROW_FILE_MAGIC
    return (_find_file_messages if is_file else _find_stream_messages)(path, data)


def _find_stream_messages(path: str, data: Content) -> list[_Message]:
    """Find the messages of a stream, up to its end mark or the end of the file.

    Raises:
        InputError: If a message is cut off or is none, or the first is not a schema.
    """
    messages: list[_Message] = []
    position = 0
    while position < len(data):
        place = f"message {len(messages) + 1} at byte {position}"
        if len(data) - position < _PREFIX_BYTES:
            raise _cut_off(path, place)
        if data[position : position + 4] != CONTINUATION:
            msg = f"{path}: expected an Arrow stream, got something else as {place}; fetch or write the file again"
            raise InputError(msg)
        if struct.unpack("<i", data[position + 4 : position + 8])[0] == 0:
            break
        messages.append(_read_message(path, data, position, place))
        position = messages[-1].end
    if not messages or messages[0].kind != _SCHEMA or any(message.kind == _SCHEMA for message in messages[1:]):
        msg = f"{path}: expected an Arrow stream that begins with its one schema; fetch or write the file again"
        raise InputError(msg)
    return messages


def _find_file_messages(path: str, data: Content) -> list[_Message]:
    """Find the messages of an Arrow file by its footer: the schema, all dictionaries, and the record batches in order.

    Such a file holds a stream, after its magic, and the footer tells where its messages are.

    Raises:
        InputError: If the footer or a message that it names is cut off or is none.
    """
    if data[-len(ARROW_FILE_MAGIC) :] != ARROW_FILE_MAGIC or len(data) < 2 * _FILE_END_BYTES:
        msg = f"{path}: expected an Arrow file that ends with a footer; it is cut off, fetch or write it again"
        raise InputError(msg)
    (size,) = struct.unpack("<i", data[len(data) - _FILE_END_BYTES :][:4])
    begin = len(data) - _FILE_END_BYTES - size
    if size <= 0 or begin < 0:
        msg = f"{path}: expected an Arrow file whose footer is inside it, got a footer of {size} bytes; fetch it again"
        raise InputError(msg)
    try:
        footer = _root(data[begin : begin + size])
        blocks = {kind: footer.vector(field, _BLOCK_BYTES) for kind, field in ((_DICTIONARY, 2), (_RECORD_BATCH, 3))}
    except struct.error as error:
        msg = f"{path}: expected an Arrow file with a whole footer; it is damaged, fetch or write it again"
        raise InputError(msg) from error
    messages = [_message_of_kind(path, data, _FILE_BEGIN_BYTES, _SCHEMA, "the schema")]
    for kind, what in ((_DICTIONARY, "dictionary"), (_RECORD_BATCH, "record batch")):
        offsets = np.frombuffer(blocks[kind], "<i8").reshape(-1, _BLOCK_BYTES // 8)[:, 0].tolist()
        for number, offset in enumerate(offsets):
            messages.append(_message_of_kind(path, data, offset, kind, f"{what} {number}"))
    return messages


def _measure_batch(path: str, data: Content, message: _Message, schema: pa.Schema, wanted: Sequence[int]) -> RowGroup:
    try:
        header = _root(data[message.begin + _PREFIX_BYTES : message.body]).table(2)
        if header is None:
            raise struct.error("no header")
        num_rows = header.scalar(0, "<q")
        buffers = np.frombuffer(header.vector(2, 16), "<i8").reshape(-1, 2).tolist()
        is_compressed = header.table(3) is not None
        variadic = iter(np.frombuffer(header.vector(4, 8), "<i8").tolist())
        body_bytes = message.end - message.body
        if num_rows < 0 or any(not 0 <= begin <= begin + size <= body_bytes for begin, size in buffers):
            raise struct.error(f"sizes of {num_rows} rows that do not fit its {body_bytes} bytes")
    except struct.error as error:
        raise InputError(
            f"{path}: expected a record batch at byte {message.begin}, got a damaged header ({error}); "
            "fetch or write the file again"
        ) from error
    body = part_of(data, message.body, message.end)
    total = position = 0
    for number, field in enumerate(schema):
        num_buffers = _count_buffers(field.type, variadic)
        if number in wanted:
            for begin, size in buffers[position : position + num_buffers]:
                total += _uncompressed_size(body[begin : begin + min(size, 8)], size) if is_compressed else size
        position += num_buffers
    return RowGroup(num_rows=num_rows, text_bytes=total)


def _uncompressed_size(head: memoryview, stored_bytes: int) -> int:
    """Return the size that a compressed buffer claims in its first eight bytes; -1 there means it is not compressed."""
    if len(head) < 8:
        return stored_bytes
    size = _unpack(head, "<q", 0)
    return size if size >= 0 else stored_bytes - 8


def _count_buffers(kind: pa.DataType, variadic: Iterator[int]) -> int:
    """Return the number of buffers of a column: those of its own type, and of those inside it."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _count_buffers(kind.storage_type, variadic)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return 2 + max(0, next(variadic, 0))
    if types.is_null(kind):
        return 0
    if types.is_large_binary(kind) or types.is_large_string(kind) or types.is_string(kind) or types.is_binary(kind):
        return 3
    if not types.is_nested(kind):
        return 2  # validity and values; of a dictionary, the indices
    own = 2
    if types.is_struct(kind) or types.is_fixed_size_list(kind):
        own = 1
    elif types.is_union(kind):
        own = 1 if kind.mode == "sparse" else 2
    elif types.is_run_end_encoded(kind):
        return _count_buffers(kind.run_end_type, variadic) + _count_buffers(kind.value_type, variadic)
    elif types.is_list_view(kind) or types.is_large_list_view(kind):
        own = 3
    return own + sum(_count_buffers(kind.field(number).type, variadic) for number in range(kind.num_fields))


def _message_of_kind(path: str, data: Content, offset: int, kind: int, what: str) -> _Message:
    place = f"{what} at byte {offset}"
    if not 0 <= offset <= len(data) - _PREFIX_BYTES:
        raise _cut_off(path, place)
    message = _read_message(path, data, offset, place)
    if message.kind != kind:
        raise InputError(f"{path}: expected {place}, got another message; the file is damaged, fetch or write it again")
    return message


def _read_message(path: str, data: Content, position: int, place: str) -> _Message:
    if data[position : position + 4] != CONTINUATION:
        raise InputError(f"{path}: expected {place}, got something else; the file is damaged, fetch or write it again")
    (size,) = struct.unpack("<i", data[position + 4 : position + 8])
    body = position + _PREFIX_BYTES + size
    if size <= 0 or body > len(data):
        raise _cut_off(path, place)
    try:
        root = _root(data[position + _PREFIX_BYTES : body])
        kind, body_bytes = root.scalar(1, "<B"), root.scalar(3, "<q")
    except struct.error as error:
        raise InputError(f"{path}: expected {place}, got a damaged header; fetch or write the file again") from error
    if body_bytes < 0 or body_bytes > len(data) - body:
        raise _cut_off(path, place)
    return _Message(kind=kind, begin=position, body=body, end=body + body_bytes)


def _cut_off(path: str, place: str) -> InputError:
    return InputError(f"{path}: expected a whole {place}, got the end of the file; it is cut off, fetch it again")


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of a flatbuffer; every read outside the buffer is a struct.error."""

    data: memoryview
    position: int

    def scalar(self, field: int, code: str) -> int:
        """Return a number, 0 if the field is absent."""
        place = self._place(field)
        return 0 if place is None else _unpack(self.data, code, place)

    def table(self, field: int) -> _Table | None:
        """Return a table inside this one, None if the field is absent."""
        place = self._place(field)
        return None if place is None else _Table(self.data, place + _unpack(self.data, "<I", place))

    def vector(self, field: int, item_bytes: int) -> memoryview:
        """Return the bytes of a vector of structs or numbers, empty if the field is absent."""
        place = self._place(field)
        if place is None:
            return memoryview(b"")
        begin = place + _unpack(self.data, "<I", place)
        end = begin + 4 + item_bytes * _unpack(self.data, "<I", begin)
        if end > len(self.data):
            raise struct.error("a vector that is too long")
        return self.data[begin + 4 : end]

    def _place(self, field: int) -> int | None:
        vtable = self.position - _unpack(self.data, "<i", self.position)
        entry = 4 + 2 * field
        offset = _unpack(self.data, "<H", vtable + entry) if entry < _unpack(self.data, "<H", vtable) else 0
        return self.position + offset if offset else None


def _root(data: memoryview) -> _Table:
    return _Table(data, _unpack(data, "<I", 0))


def _unpack(data: memoryview, code: str, position: int) -> int:
    if position < 0:  # struct would count from the end
        raise struct.error("a position before the start")
    number: int = struct.unpack_from(code, data, position)[0]
    return number
