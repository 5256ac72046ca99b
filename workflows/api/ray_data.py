"""`dsindex.ray_datasource`: the documents of a dataset as rows of a `ray.data.Dataset`.

ray.data needs pandas, which dsindex itself does not; it is imported when the function is called.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsindex.datasets.indexed import IndexedDataset
from dsindex.datasets.tensors import MissingPackageError
from workflows.api.boundary import OptionsError, api_function
from workflows.api.subjects import list_text_prefixes

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from workflows.api.subjects import Subject

BLOCK_BYTES = 32 << 20
"""Of tokens, in one block that a task yields; a longer document is a block of its own."""


@api_function
def ray_datasource(prefix: Subject) -> Any:  # noqa: ANN401 - ray.data is not there for type checkers
    """Return a `ray.data.Datasource` of a dataset's documents, for `ray.data.read_datasource`.

    Its rows have two columns: `document`, the number of the document, and `tokens`, a list in the type of the dataset.
    The order of rows is the order of documents. Each reading task has a range of documents, of about as many bytes as
    the others, and reads the files itself: all nodes must see them under the same path, and have dsindex.

    Args:
        prefix: An MMIDIDX dataset, or a result with one.

    Raises:
        OptionsError: If it is no such dataset.
        FormatError: If it is damaged.
        MissingPackageError: If ray.data cannot be imported, for which pandas must be installed.
    """
    found = list_text_prefixes("prefix", prefix)
    if len(found) > 1:
        msg = f"prefix: expected one dataset, got {len(found)} ({', '.join(found)}); choose one"
        raise OptionsError(msg)
    try:
        from workflows.api.ray_source import DocumentSource
    except ImportError as error:
        msg = f"ray_datasource needs ray.data, which cannot be imported ({error}); install it: pip install pandas"
        raise MissingPackageError(msg) from error
    return DocumentSource(found[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentRange:
    """The documents [begin, end) of a dataset."""

    prefix: str
    """Absolute: the task may run in another folder."""
    begin: int
    end: int
    size_bytes: int
    """Of their tokens."""


def plan_ranges(dataset: IndexedDataset, num_ranges: int, *, prefix: str) -> list[DocumentRange]:
    """Cut the documents into ranges of about equal bytes; at most so many, none of them empty."""
    total = dataset.num_tokens * dataset.dtype.itemsize
    count = dataset.num_documents
    cuts = [
        bisect_left(range(count), -(-total * number // num_ranges), key=lambda document: _first_byte(dataset, document))
        for number in range(num_ranges)
    ]
    bounds = sorted({0, *cuts, count})
    return [
        DocumentRange(
            prefix=prefix,
            begin=begin,
            end=end,
            size_bytes=_first_byte(dataset, end) - _first_byte(dataset, begin),
        )
        for begin, end in itertools.pairwise(bounds)
    ]


def read_range(documents: DocumentRange) -> Iterator[pa.Table]:
    """Read the documents of a range, as tables of about BLOCK_BYTES."""
    dataset = IndexedDataset(documents.prefix, check=False)
    begin = documents.begin
    while begin < documents.end:
        end = bisect_left(
            range(documents.end),
            _first_byte(dataset, begin) + BLOCK_BYTES,
            lo=begin + 1,
            key=lambda document: _first_byte(dataset, document),
        )
        yield _make_table(dataset, begin, end)
        begin = end


def _make_table(dataset: IndexedDataset, begin: int, end: int) -> pa.Table:
    import numpy as np
    import pyarrow as pa

    first = _first_byte(dataset, begin) // dataset.dtype.itemsize
    starts = np.array([_first_byte(dataset, document) for document in range(begin, end + 1)], np.int64)
    offsets = starts // dataset.dtype.itemsize - first
    values = dataset.token_columns()[0][first : first + int(offsets[-1])]
    tokens = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values))
    return pa.table({"document": pa.array(np.arange(begin, end)), "tokens": tokens})


def _first_byte(dataset: IndexedDataset, document: int) -> int:
    """Return where a document begins in the `.bin`; its size for the one after the last."""
    _, lengths, pointers, _ = dataset.token_columns()
    sequence = int(dataset.document_indices[document])
    return int(pointers[sequence]) if sequence < len(lengths) else dataset.num_tokens * dataset.dtype.itemsize
