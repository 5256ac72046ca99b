"""Decode a compressed file from the begin of one of its members, in pieces of bounded size.

gzip calls them members, zstd frames, bzip2 and xz streams: each can be decoded on its own, and a file may have many.
The decompressors are those of isal, `compression.zstd` (PEP 784, as a backport), bz2 and lzma, which have the same
interface: `decompress(data, max_length)`, `needs_input`, `eof`, `unused_data`.
"""

from __future__ import annotations

import bz2
import importlib.metadata
import lzma
import platform
from typing import TYPE_CHECKING, Protocol

from dsindex.containers.kinds import detect_container
from dsindex.errors import InputError
from dsindex.readable import open_readable

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsindex.containers.kinds import Container
    from dsindex.readable import Readable

CHUNK_BYTES = 128 << 10
"""Compressed bytes read at a time. What follows a member's end is copied, so small members need small chunks."""
MEASURED_BYTES = 512 << 10
XZ_MEMORY_BYTES = 2 << 30
ZSTD_WINDOW_LOG = 31
"""Largest window of a zstd frame, as for `zstd --long=31`; the frame's header says how much it really needs."""

_MAGIC_BYTES = 10
"""Bytes by which the begin of a member is recognised."""

MEMBER_NAMES: dict[Container, str] = {"gzip": "member", "zstd": "frame", "bzip2": "stream", "xz": "stream"}


class Decompressor(Protocol):
    """The interface of all decompressors."""

    @property
    def eof(self) -> bool:
        """Whether the end of the member was reached."""
        ...

    @property
    def needs_input(self) -> bool:
        """Whether all output for the input so far was returned."""
        ...

    @property
    def unused_data(self) -> bytes:
        """Input after the end of the member."""
        ...

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        """Return at most `max_length` bytes of output."""
        ...


class Decoder:
    """Decodes one member after the other.

    Args:
        path: Path of the file, for messages.
        file: The open file.
        container: How it is compressed.
        begin: Offset at which a member begins.
    """

    def __init__(self, path: str, file: Readable, container: Container, *, begin: int = 0) -> None:
        self._path = path
        self._file = file
        self._container: Container = container
        self._make, self._errors = _library(container)
        self._current: Decompressor | None = None
        self._input = b""
        """Bytes that were read and not yet given to a decompressor."""
        self._position = begin
        """Offset in the file of the next byte to read."""
        self.member_begin = begin
        """Offset of the current member, or between members of the next one."""
        self._num_members = 0
        self.at_end = False
        """Whether the file ended, after the last member."""

    @property
    def is_between_members(self) -> bool:
        """Whether all of the text before `member_begin` was returned, and nothing after it."""
        return self._current is None

    def has_input(self, before: int) -> bool:
        """Whether the file may be read further without reading from `before` on."""
        return bool(self._input) or self._position < before

    def read(self, max_bytes: int, *, before: int | None = None) -> bytes:
        """Return the next bytes of text.

        Args:
            max_bytes: Largest number of bytes to return.
            before: Read no byte of the file from this offset on.

        Returns:
            At least one byte; nothing if a member ended, if nothing more can be decoded without reading from `before`
            on, or at the end of the file (`at_end`).

        Raises:
            InputError: If a member is damaged or cut off, or something else follows it.
        """
        while True:
            if self._current is None and not self._begin_member(before):
                return b""
            decompressor = self._current
            if decompressor is None:  # always one after _begin_member
                return b""
            data = b""
            if decompressor.needs_input:
                data = self._take_input(before)
                if not data and before is not None and self._position >= before:
                    return b""
                if not data:
                    raise self._damaged("is cut off", self._position)
            try:
                text = decompressor.decompress(data, max_bytes)
            except self._errors as error:
                raise self._damaged(f"is damaged ({error})", self._position) from error
            if decompressor.eof:
                self._end_member(decompressor)
            if text or self._current is None:
                return text

    def _begin_member(self, before: int | None) -> bool:
        """Start the next member; return False at the end of the file or if `before` comes first."""
        data = self._take_input(before)
        if self._container in ("gzip", "xz") and self._num_members:
            while data and not data.strip(b"\0"):  # padding
                self.member_begin += len(data)
                data = self._take_input(before)
            padding = len(data) - len(data.lstrip(b"\0"))
            self.member_begin += padding
            data = data[padding:]
        if not data:
            self.at_end = before is None or self._position < before
            return False
        self._input = data + self._input
        if len(self._input) >= _MAGIC_BYTES and detect_container(self._input) != self._container:
            raise self._damaged("is something else", self._position - len(self._input))
        self._current = self._make()
        self._num_members += 1
        return True

    def _end_member(self, decompressor: Decompressor) -> None:
        self._input = decompressor.unused_data + self._input
        self._current = None
        self.member_begin = self._position - len(self._input)

    def _take_input(self, before: int | None) -> bytes:
        """Return compressed bytes: those that are left, otherwise the next ones of the file; nothing at its end."""
        if self._input:
            data, self._input = self._input, b""
            return data
        wanted = CHUNK_BYTES if before is None else min(CHUNK_BYTES, before - self._position)
        if wanted <= 0:
            return b""
        try:
            data = self._file.read_at(wanted, self._position)
        except OSError as error:
            msg = f"{self._path}: cannot be read ({error.strerror}) at byte {self._position}"
            raise InputError(msg) from error
        self._position += len(data)
        return data

    def _damaged(self, what: str, position: int) -> InputError:
        name = MEMBER_NAMES[self._container]
        return InputError(
            f"{self._path}: expected {self._container} data, but the {name} that begins at byte {self.member_begin} "
            f"{what}, at about byte {position}; fetch the file again, or leave it out"
        )


def measure_compression(path: str, container: Container, *, begin: int = 0) -> float:
    """Return the compressed bytes per byte of text, measured on MEASURED_BYTES from where a member begins.

    Raises:
        InputError: If the file cannot be read or is damaged there.
    """
    with open_readable(path) as file:
        end = min(begin + MEASURED_BYTES, file.size_bytes)
        file.expect_forwards(begin, end)
        decoder = Decoder(path, file, container, begin=begin)
        text_bytes = 0
        while not decoder.at_end:
            text = decoder.read(CHUNK_BYTES, before=end)
            if not text and not decoder.has_input(end):
                break
            text_bytes += len(text)
    return (end - begin) / max(1, text_bytes)


def require_whole(path: str, container: Container, *, begin: int = 0, end: int | None = None) -> None:
    """Decode a file from where a member begins to where one ends at `end` or after it; None: to the end of the file.

    Raises:
        InputError: If it cannot be read, is damaged or cut off.
    """
    with open_readable(path) as file:
        file.expect_forwards(begin, file.size_bytes if end is None else end)
        decoder = Decoder(path, file, container, begin=begin)
        while not decoder.at_end:
            decoder.read(CHUNK_BYTES)
            if end is not None and decoder.is_between_members and decoder.member_begin >= end:
                return


def can_decode(data: bytes, container: Container) -> bool:
    """Tell whether data begins with a member: all of it, or the end of the member, is reached without an error."""
    make, errors = _library(container)
    decompressor = make()
    try:
        decompressor.decompress(data, CHUNK_BYTES)
        while not decompressor.eof and not decompressor.needs_input:
            decompressor.decompress(b"", CHUNK_BYTES)
    except errors:
        return False
    return True


def decoder_version(container: Container) -> str:
    """Return a name for what decides how much text each compressed byte adds: the decompressor and its version.

    >>> decoder_version("bzip2").startswith("Python 3.")
    True
    """
    package = {"gzip": "isal", "zstd": "backports.zstd"}.get(container)
    if package is None:
        return f"Python {platform.python_version()}"
    return f"{package} {importlib.metadata.version(package)}"


def _library(container: Container) -> tuple[Callable[[], Decompressor], tuple[type[Exception], ...]]:
    """Return a function that makes decompressors, and the errors they raise. Libraries are loaded when needed."""
    if container == "gzip":
        from isal import igzip_lib

        return lambda: igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP), (
            igzip_lib.IsalError,  # type: ignore[return-value]  # its stub says that it is an instance
            MemoryError,
        )
    if container == "zstd":
        from backports import zstd

        options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: ZSTD_WINDOW_LOG}
        return lambda: zstd.ZstdDecompressor(options=options), (zstd.ZstdError, MemoryError)
    if container == "bzip2":
        return bz2.BZ2Decompressor, (OSError, ValueError, MemoryError)
    if container == "xz":
        return lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY_BYTES), (lzma.LZMAError, MemoryError)
    msg = f"expected a compressed container, got {container!r}"
    raise ValueError(msg)
