"""The new files of a repair: refused where they exist, whole or not there at all, the `.idx` last."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsindex.errors import FormatError, InputError, OutputError
from dsindex.storage import atomic_writer, digest_file, remove_if_present

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dsindex.storage import DigestingWriter

COPY_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairAccount:
    """How a repair ended."""

    way: str
    """What the new files were made of."""
    is_certain: bool
    """False for what only a guess makes of the `.bin`."""
    outputs: tuple[str, ...]
    num_documents: int
    num_sequences: int
    num_tokens: int
    lost: tuple[str, ...]
    """What could not be saved, in sentences."""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a repair writes."""

    prefix: str
    index_only: bool
    """Write no `.bin`: the one that is there is whole and stays."""
    digests: Mapping[str, str]
    """What the new files must be, by suffix, where that is known."""

    @property
    def idx_path(self) -> str:
        """The new index."""
        return f"{self.prefix}.idx"

    @property
    def bin_path(self) -> str:
        """The new tokens."""
        return f"{self.prefix}.bin"

    @property
    def paths(self) -> tuple[str, ...]:
        """All that is written."""
        return (self.idx_path,) if self.index_only else (self.bin_path, self.idx_path)

    @property
    def folder(self) -> str:
        """Where temporary files go."""
        return os.path.dirname(self.prefix) or "."


def refuse_existing(target: Target) -> None:
    """Refuse to write where anything is.

    Raises:
        OutputError: If one of the files exists.
    """
    for path in target.paths:
        if os.path.lexists(path):
            msg = (
                f"{path}: expected a new name, and the file exists; a repair never overwrites, choose another --output"
            )
            raise OutputError(msg)


def write_dataset(
    target: Target, *, tokens: Callable[[DigestingWriter], None], index: Callable[[DigestingWriter], None]
) -> None:
    """Write the `.bin`, unless the target is an index only, then the `.idx`.

    Raises:
        FormatError: If what came out has not the digest that it must have; nothing is then left.
        OutputError: If the disk refuses.
    """
    if not target.index_only:
        with atomic_writer(target.bin_path) as file:
            tokens(file)
            _check_digest(target, "bin", file)
    try:
        with atomic_writer(target.idx_path) as file:
            index(file)
            _check_digest(target, "idx", file)
    except BaseException:
        if not target.index_only:
            remove_if_present(target.bin_path)
        raise


def _check_digest(target: Target, suffix: str, file: DigestingWriter) -> None:
    expected = target.digests.get(suffix)
    if expected is not None and file.hexdigest() != expected:
        msg = (
            f"{target.prefix}.{suffix}: expected the digest {expected} of the manifest, and what was restored has "
            f"{file.hexdigest()}; it was not written"
        )
        raise FormatError(msg)


def require_digest(path: str, expected: str) -> None:
    """See that a file that a repair builds on is whole.

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
        InputError: If it cannot be read or is shorter.
    """
    buffer = memoryview(bytearray(max(1, min(COPY_BYTES, size_bytes))))
    left = size_bytes
    try:
        with open(path, "rb", buffering=0) as source:
            while left:
                count = source.readinto(buffer[: min(len(buffer), left)])
                if not count:
                    msg = f"{path}: expected {size_bytes} bytes, and it ends {left} bytes earlier; it changed meanwhile"
                    raise InputError(msg)
                file.write(buffer[:count])
                left -= count
    except OSError as error:
        msg = f"{path}: cannot be read ({error.strerror})"
        raise InputError(msg) from error
