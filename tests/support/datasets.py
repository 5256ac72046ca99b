"""Small datasets for tests, written with the project's own writer."""

import numpy as np

from dsindex.formats.mmididx import IndexBuilder
from dsindex.store.local import atomic_writer
from dsindex.store.read import input_status
from dsindex.text.input_format import TextPart
from dsindex.text.reader import TaskReader


def part_of(path, **fields):
    """Return a whole file as a TextPart; `fields` override its fields, such as `begin` and `end`."""
    status = input_status(str(path))
    defaults = {"size_bytes": status.size_bytes, "version": status.version, "begin": 0, "end": status.size_bytes}
    return TextPart(path=str(path), **defaults | fields)


def read_part(part, selection, **options):
    """Yield the records of a part in blocks."""
    return TaskReader([part]).records(selection, **options)


def write_dataset(prefix, documents, *, dtype=np.uint16, modes=None):
    """Write documents, each a list of token sequences, as a dataset; return its prefix."""
    sequences = [np.array(sequence, np.dtype(dtype)) for document in documents for sequence in document]
    with atomic_writer(f"{prefix}.bin") as file:
        for sequence in sequences:
            file.write(sequence.tobytes())
    builder = IndexBuilder(np.dtype(dtype), folder=str(prefix.parent))
    try:
        lengths = np.array([len(sequence) for sequence in sequences], np.int64)
        per_document = np.array([len(document) for document in documents], np.int64)
        builder.add_documents(lengths, per_document)
        with atomic_writer(f"{prefix}.idx") as file:
            builder.write(file)
            file.write(np.array(modes or [], np.int8).tobytes())  # the modes are the last section of an .idx
    finally:
        builder.close()
    return str(prefix)
