"""Arrow's schema of values at paths, and the column of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dsindex.text.fields import Path


def are_disjoint(paths: Sequence[Path]) -> bool:
    """Tell whether no path leads through the value of another.

    >>> are_disjoint([("a",), ("b", "c"), ("b", "d")]), are_disjoint([("a",), ("a", "b")])
    (True, False)
    """
    leaves = set(paths)
    return not any(path[:depth] in leaves for path in paths for depth in range(1, len(path)))


def nested_fields(types: Mapping[Path, pa.DataType]) -> list[pa.Field]:
    """Return the fields of an object with values of these types at disjoint paths.

    >>> nested_fields({("a", "b"): pa.string(), ("a", "c"): pa.int64()})
    [pyarrow.Field<a: struct<b: string, c: int64>>]
    """
    inner: dict[str, dict[Path, pa.DataType]] = {}
    for path, kind in types.items():
        inner.setdefault(path[0], {})[path[1:]] = kind
    return [
        pa.field(key, below[()] if () in below else pa.struct(nested_fields(below))) for key, below in inner.items()
    ]


def find_column(table: pa.Table, path: Path) -> pa.Array | None:
    """Return the values at a path; None if one is null, or an object on the way to it."""
    array = _join(table.column(path[0]))
    for key in path[1:]:
        if array.null_count:
            return None
        array = array.field(key)
    return None if array.null_count else array


def _join(chunks: pa.ChunkedArray) -> pa.Array:
    """Return the chunks as one array, without a copy if there is only one, as pyarrow returns for one block."""
    return chunks.chunk(0) if chunks.num_chunks == 1 else pa.concat_arrays(chunks.chunks)
