"""Documents that occur more than once, found by 128-bit digests of their tokens in bounded memory.

Digests are sorted in parts of about PART_DOCUMENTS. If there are several parts, they wait in files without a name,
which the system removes however the process ends.
"""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Self

import numpy as np
import xxhash

from dsindex.storage import output_error

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from numpy.typing import NDArray

DOCUMENTS = np.dtype([("high", "<u8"), ("low", "<u8"), ("first", "<i8"), ("num_tokens", "<i8"), ("copies", "<i8")])
"""Equal documents: their digest, the number of the first, its length, and how many there are."""

PART_DOCUMENTS = 1 << 20
"""Documents whose digests are sorted at once; a part of them takes about 100 MiB."""
MOST_PARTS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedDocument:
    """A document that occurs several times."""

    first: int
    """Number of its first occurrence."""
    num_tokens: int
    copies: int
    """Number of occurrences, at least 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """The documents of a dataset that occur more than once; empty ones do not count."""

    num_repeated: int
    """Different documents that occur several times."""
    num_extra: int
    """Documents that would go if each were kept once."""
    extra_tokens: int
    """Tokens of those."""
    most: tuple[RepeatedDocument, ...]
    """Those with the most copies, then the longest, then the first."""


def group_documents(tokens: NDArray[Any], ends: NDArray[np.int64], first: int) -> NDArray[np.void]:
    """Return the different documents of a block, by ascending digest, without empty ones.

    Args:
        tokens: Contiguous tokens of the block.
        ends: End of each document in `tokens`, ascending, shape [documents].
        first: Number of the first document.

    Returns:
        Array of type DOCUMENTS.
    """
    size = tokens.itemsize
    data = memoryview(tokens.view(np.uint8))  # type: ignore[arg-type]  # numpy's stubs lack the buffer of slices
    digest = xxhash.xxh3_128_digest
    digests, begin = [], 0
    for end in (ends * size).tolist():
        digests.append(digest(data[begin:end]))
        begin = end
    words = np.frombuffer(b"".join(digests), ">u8").reshape(-1, 2).astype("<u8")
    found = np.empty(len(ends), DOCUMENTS)
    found["high"], found["low"] = words[:, 0], words[:, 1]
    found["first"] = np.arange(first, first + len(ends))
    found["num_tokens"] = np.diff(ends, prepend=0)
    found["copies"] = 1
    return _group(found[found["num_tokens"] > 0])


class RepeatFinder:
    """Collects the documents of blocks, and finds those that are equal.

    Args:
        num_documents: Documents that will be added.
        folder: Where files without a name may be made.
        part_documents: As PART_DOCUMENTS.
    """

    def __init__(self, num_documents: int, *, folder: str, part_documents: int = PART_DOCUMENTS) -> None:
        parts = -(-num_documents // part_documents)
        self._bits = min((max(parts, 1) - 1).bit_length(), MOST_PARTS.bit_length() - 1)
        self._folder = folder
        self._files: list[IO[bytes]] = []
        self._held: list[NDArray[np.void]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for file in self._files:
            with contextlib.suppress(OSError):  # a full disk was reported by `add`
                file.close()

    def add(self, documents: NDArray[np.void]) -> None:
        """Add the documents of a block, as `group_documents` returns them.

        Raises:
            OutputError: If the folder or the disk refuses.
        """
        if not self._bits:
            self._held.append(documents)
            return
        parts = (documents["high"] >> np.uint64(64 - self._bits)).astype(np.int64)
        bounds = np.searchsorted(parts, np.arange((1 << self._bits) + 1)).tolist()
        try:
            while len(self._files) < 1 << self._bits:
                self._files.append(tempfile.TemporaryFile(dir=self._folder))  # noqa: SIM115 - closed on exit
            for file, begin, end in zip(self._files, bounds[:-1], bounds[1:], strict=True):
                file.write(documents[begin:end].tobytes())
        except OSError as error:
            raise output_error(self._folder, error) from error

    def find(self, most: int) -> Repeats:
        """Return what is repeated.

        Args:
            most: The largest number of documents to name.

        Raises:
            OutputError: If a file cannot be written.
        """
        num_repeated = num_extra = extra_tokens = 0
        top = np.empty(0, DOCUMENTS)
        for part in self._parts():
            groups = _group(part)
            groups = groups[groups["copies"] > 1]
            num_repeated += len(groups)
            num_extra += int((groups["copies"] - 1).sum())
            extra_tokens += int(((groups["copies"] - 1) * groups["num_tokens"]).sum())
            top = np.concatenate([top, groups])
            order = np.lexsort((top["first"], -top["num_tokens"], -top["copies"]))
            top = top[order[:most]]
        return Repeats(
            num_repeated=num_repeated,
            num_extra=num_extra,
            extra_tokens=extra_tokens,
            most=tuple(
                RepeatedDocument(
                    first=int(each["first"]), num_tokens=int(each["num_tokens"]), copies=int(each["copies"])
                )
                for each in top
            ),
        )

    def _parts(self) -> Iterator[NDArray[np.void]]:
        """Yield documents so that equal ones are in the same part."""
        if not self._bits:
            yield np.concatenate([np.empty(0, DOCUMENTS), *self._held])
        for file in self._files:
            try:
                file.seek(0)
                yield np.frombuffer(file.read(), DOCUMENTS)
            except OSError as error:
                raise output_error(self._folder, error) from error


def _group(documents: NDArray[np.void]) -> NDArray[np.void]:
    """Return one entry for equal documents, by ascending digest."""
    if not len(documents):
        return documents
    order = np.lexsort((documents["first"], documents["low"], documents["high"]))
    high, low = documents["high"][order], documents["low"][order]
    begins = np.flatnonzero(np.concatenate([[True], (high[1:] != high[:-1]) | (low[1:] != low[:-1])]))
    groups = documents[order[begins]]
    groups["copies"] = np.add.reduceat(documents["copies"][order], begins)
    return groups
