"""Small datasets for tests, written with the project's own writer."""

import numpy as np

from dsindex.formats.mmididx import IndexBuilder
from dsindex.store.storage import atomic_writer


def write_dataset(prefix, documents, *, dtype=np.uint16, modes=None):
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


def write_arrays(prefix, sequences, sequences_per_document, *, dtype, modes=None):
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
