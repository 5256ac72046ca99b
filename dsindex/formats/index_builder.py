"""Build the `.idx` of an MMIDIDX dataset document by document, in bounded memory."""

from __future__ import annotations

import contextlib
import tempfile
from typing import IO, TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from dsindex.storage import DigestingWriter


from dsindex.formats.mmididx import BOUNDARY, CHUNK_ITEMS, LENGTH, MODE, IndexHeader, write_index


class IndexBuilder:
    """Collect the lengths and boundaries of a dataset that is being written, then write its index, in bounded memory.

    Sections are spooled to unnamed temporary files, since their positions depend on counts known only at the end.
    """

    def __init__(self, dtype: np.dtype[Any], *, folder: str, modes: bool = False) -> None:
        self._dtype = dtype
        self._lengths: IO[bytes] = _spool(folder)
        self._boundaries: IO[bytes] = _spool(folder)
        self._modes: IO[bytes] | None = _spool(folder) if modes else None
        self.num_sequences = 0
        self.num_documents = 0
        self.num_tokens = 0
        self._boundaries.write(bytes(BOUNDARY.itemsize))

    def add_documents(
        self,
        sequence_lengths: NDArray[np.integer[Any]],
        sequences_per_document: NDArray[np.integer[Any]],
        *,
        modes: NDArray[np.int8] | None = None,
    ) -> None:
        """Append documents.

        Args:
            sequence_lengths: Tokens of each sequence, shape [sequences], each in [0, 2**31).
            sequences_per_document: Shape [documents], summing to `sequences`; 0 for a document without tokens.
            modes: Shape [sequences]; passed if and only if the builder was made with modes.

        Raises:
            ValueError: If the shapes do not agree, or a length is below 0.
            OverflowError: If a sequence is longer than the format can store.
        """
        if int(sequences_per_document.sum()) != len(sequence_lengths):
            msg = f"expected {sequences_per_document.sum()} sequences for the documents, got {len(sequence_lengths)}"
            raise ValueError(msg)
        if (modes is None) != (self._modes is None) or (modes is not None and len(modes) != len(sequence_lengths)):
            msg = f"expected a mode for each of {len(sequence_lengths)} sequences if and only if the dataset has modes"
            raise ValueError(msg)
        if len(sequence_lengths) and int(sequence_lengths.min()) < 0:
            msg = f"expected no sequence of less than 0 tokens, got {sequence_lengths.min()}"
            raise ValueError(msg)
        if len(sequence_lengths) and int(sequence_lengths.max()) > np.iinfo(LENGTH).max:
            msg = f"expected sequences of at most 2**31 - 1 tokens, as MMIDIDX requires, got {sequence_lengths.max()}"
            raise OverflowError(msg)
        self._lengths.write(sequence_lengths.astype(LENGTH).data)
        self._boundaries.write((self.num_sequences + np.cumsum(sequences_per_document)).astype(BOUNDARY).data)
        if self._modes is not None and modes is not None:
            self._modes.write(modes.astype(MODE).data)
        self.num_sequences += len(sequence_lengths)
        self.num_documents += len(sequences_per_document)
        self.num_tokens += int(sequence_lengths.sum(dtype=np.int64))

    def write(self, file: DigestingWriter) -> None:
        """Write the index of all documents that were added."""
        header = IndexHeader(
            dtype=self._dtype,
            num_sequences=self.num_sequences,
            num_boundaries=self.num_documents + 1,
            has_modes=self._modes is not None,
        )
        spooled_modes = self._modes
        write_index(
            file,
            header,
            lengths=lambda: _spooled(self._lengths, LENGTH),
            boundaries=lambda: _spooled(self._boundaries, BOUNDARY),
            modes=None if spooled_modes is None else lambda: _spooled(spooled_modes, MODE),
        )

    def close(self) -> None:
        """Release the temporary files."""
        for spool in (self._lengths, self._boundaries, self._modes):
            if spool is not None:
                with contextlib.suppress(OSError):  # buffered data may not fit a full disk, and is not needed
                    spool.close()


def _spool(folder: str) -> IO[bytes]:
    return tempfile.TemporaryFile(dir=folder)


def _spooled(file: IO[bytes], dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
    file.seek(0)
    while data := file.read(CHUNK_ITEMS * dtype.itemsize):
        yield np.frombuffer(data, dtype=dtype)
