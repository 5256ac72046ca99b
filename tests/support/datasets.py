"""Small datasets for tests, written with the project's own writer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.formats.mmididx import IndexBuilder
from dsindex.store.storage import atomic_writer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray


def write_dataset(
    prefix: Path,
    documents: Sequence[Sequence[Sequence[int]]],
    *,
    dtype: Any = np.uint16,
    modes: Sequence[int] | None = None,
) -> str:
    """Write documents, each a list of sequences of tokens, and give the prefix."""
    sequences = [np.array(sequence, np.dtype(dtype)) for document in documents for sequence in document]
    write_arrays(
        prefix,
        sequences,
        np.array([len(document) for document in documents], np.int64),
        dtype=np.dtype(dtype),
        modes=None if modes is None else np.array(modes, np.int8),
    )
    return str(prefix)


def write_arrays(
    prefix: Path,
    sequences: Sequence[NDArray[Any]],
    sequences_per_document: NDArray[np.int64],
    *,
    dtype: np.dtype[Any],
    modes: NDArray[np.int8] | None = None,
) -> None:
    with atomic_writer(f"{prefix}.bin") as file:
        for sequence in sequences:
            file.write(sequence.tobytes())
    builder = IndexBuilder(dtype, folder=str(prefix.parent), modes=modes is not None)
    try:
        lengths = np.array([len(sequence) for sequence in sequences], np.int64)
        builder.add_documents(lengths, sequences_per_document, modes=modes)
        with atomic_writer(f"{prefix}.idx") as file:
            builder.write(file)
    finally:
        builder.close()
