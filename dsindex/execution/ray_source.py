"""A dataset's documents as a source of ray.data. Only this module imports ray.data."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from ray.data import Datasource, ReadTask
from ray.data.block import BlockMetadata

from dsindex.datasets.indexed import IndexedDataset, plan_ranges, read_range


class DocumentSource(Datasource):  # type: ignore[misc]  # Ray's types are not read
    """Source of read tasks, each with a range of documents."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = os.path.abspath(prefix)
        self._dataset = IndexedDataset(self._prefix)

    def get_name(self) -> str:
        """Return the name that ray.data shows."""
        return "dsindex"

    def estimate_inmemory_data_size(self) -> int:
        """Return the size of all tokens and document numbers in bytes."""
        return self._dataset.num_tokens * self._dataset.dtype.itemsize + 16 * self._dataset.num_documents

    def get_read_tasks(
        self,
        parallelism: int,
        per_task_row_limit: int | None = None,
        data_context: Any = None,  # noqa: ANN401, ARG002 - Ray's own
    ) -> list[ReadTask]:
        """Return a read task for each range of documents."""
        return [
            ReadTask(
                partial(read_range, documents),
                BlockMetadata(
                    num_rows=documents.end - documents.begin,
                    size_bytes=documents.size_bytes + 16 * (documents.end - documents.begin),
                    input_files=(f"{self._prefix}.bin",),
                    exec_stats=None,
                ),
                per_task_row_limit=per_task_row_limit,
            )
            for documents in plan_ranges(self._dataset, max(1, parallelism), prefix=self._prefix)
        ]
