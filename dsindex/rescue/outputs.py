"""The new files of a repair, which must not exist and appear complete or not at all."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsindex.errors import FormatError, InputError
from dsindex.formats.new_files import NewFiles, new_file_error
from dsindex.regular_files import open_unbuffered
from dsindex.storage import DigestingWriter, digest_file, read_into

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

COPY_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairReport:
    """The result of a repair."""

    way: str
    """The source of the new files."""
    is_certain: bool
    """Whether the result is certain, rather than a guess from the `.bin`."""
    outputs: tuple[str, ...]
    num_documents: int
    num_sequences: int
    num_tokens: int
    lost: tuple[str, ...]
    """Sentences about what is lost."""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairOutputs:
    """The new files of a repair."""

    prefix: str
    index_only: bool
    """Write no `.bin`, since the existing one is intact and kept."""
    digests: Mapping[str, str]
    """The required digests of the new files by suffix, as far as they are known."""

    @property
    def idx_path(self) -> str:
        """Path of the new index."""
        return f"{self.prefix}.idx"

    @property
    def bin_path(self) -> str:
        """Path of the new tokens."""
        return f"{self.prefix}.bin"

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of all new files."""
        return (self.idx_path,) if self.index_only else (self.bin_path, self.idx_path)

    @property
    def folder(self) -> str:
        """Folder for temporary files."""
        return os.path.dirname(self.prefix) or "."


def write_dataset(
    target: RepairOutputs, *, tokens: Callable[[DigestingWriter], None], index: Callable[[DigestingWriter], None]
) -> None:
    """Write the `.bin`, unless only an index is wanted, and the `.idx`; they appear together.

    Raises:
        FormatError: If a file does not have the required digest; nothing is then kept.
        OutputError: If a file exists or cannot be written.
    """
    parts = (("bin", tokens), ("idx", index))
    with NewFiles(target.paths) as files:
        for new, (suffix, write) in zip(files, parts[-len(files) :], strict=True):
            try:
                writer = DigestingWriter(new.file)
                write(writer)
            except OSError as error:
                raise new_file_error(new.path, error) from error
            _check_digest(target, suffix, writer)


def _check_digest(target: RepairOutputs, suffix: str, file: DigestingWriter) -> None:
    expected = target.digests.get(suffix)
    if expected is not None and file.hexdigest() != expected:
        msg = (
            f"{target.prefix}.{suffix}: expected the digest {expected} of the manifest, got {file.hexdigest()} for the "
            f"restored file; it was not written"
        )
        raise FormatError(msg)


def require_digest(path: str, expected: str) -> None:
    """Check that a file on which a repair is based is intact.

    Raises:
        FormatError: If it is not.
    """
    try:
        got = digest_file(path)
    except InputError as error:
        raise FormatError(str(error)) from error
    if got != expected:
        msg = f"{path}: expected the digest {expected} of the manifest, got {got}; the tokens themselves are damaged"
        raise FormatError(msg)


def copy_bytes(path: str, size_bytes: int, file: DigestingWriter) -> None:
    """Copy the first bytes of a file.

    Raises:
        InputError: If the file cannot be read or is shorter.
        OSError: If the bytes cannot be written.
    """
    for chunk in _read_chunks(path, size_bytes):
        file.write(chunk)


def _read_chunks(path: str, size_bytes: int) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(max(1, min(COPY_BYTES, size_bytes))))
    with contextlib.ExitStack() as opened:
        for begin in range(0, size_bytes, COPY_BYTES):
            chunk = buffer[: min(COPY_BYTES, size_bytes - begin)]
            try:
                if begin == 0:
                    source = opened.enter_context(open_unbuffered(path))
                read_into(source.fileno(), chunk, begin)
            except EOFError as error:
                msg = f"{path}: expected {size_bytes} bytes, but it {error}; it changed during the repair"
                raise InputError(msg) from error
            except OSError as error:
                msg = f"{path}: cannot be read ({error.strerror})"
                raise InputError(msg) from error
            yield chunk
