"""Write tables row group by row group, so that the file depends on the groups alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsindex.store.storage import ArrowSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import pyarrow as pa

    from dsindex.store.storage import DigestingWriter


def write_parquet(
    file: DigestingWriter,
    schema: pa.Schema,
    groups: Iterable[pa.RecordBatch],
    facts: Callable[[], Mapping[str, str]],
) -> None:
    """Write a Parquet file with a row group for each batch.

    Args:
        file: The file.
        schema: The schema of the batches.
        groups: The row groups.
        facts: Returns names and values for the footer, once all groups are written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.PythonFile(ArrowSink(file), mode="w")
    with pq.ParquetWriter(sink, schema, compression="zstd", store_schema=False) as writer:
        for group in groups:
            writer.write_batch(group, row_group_size=max(1, group.num_rows))
        writer.add_key_value_metadata(dict(facts()))
