"""Ray Data: a dataset's documents as a source, and a sink of blocks. Only this module imports ray.data."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa
from ray.data import DataContext, Datasink, Datasource, ReadTask
from ray.data.block import BlockAccessor, BlockMetadata
from ray.data.extensions import ArrowVariableShapedTensorType
from ray.exceptions import RayError

from dsindex.datasets.indexed import IndexedDataset, plan_ranges, read_range
from dsindex.errors import DsindexError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Made = TypeVar("Made")
Result = TypeVar("Result")


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


class BlockSink(Datasink, Generic[Made, Result]):  # type: ignore[misc]  # Ray's types are not read
    """Sink that makes something of each block where it is, and something of all of it, in order, in the driver.

    Args:
        begin: Called in the driver before the first block.
        make: Called with each block on the node that has it; sent there.
        finish: Called in the driver with what was made of all blocks, in the order of the dataset.
        give_up: Called in the driver if the pipeline or `finish` fails.
    """

    def __init__(
        self,
        *,
        begin: Callable[[], None],
        make: Callable[[pa.Table], list[Made]],
        finish: Callable[[list[Made]], Result],
        give_up: Callable[[], None],
    ) -> None:
        self.begin, self.make, self.finish, self.give_up = begin, make, finish, give_up
        self.result: Result | None = None
        """What `finish` returned; None before."""

    def __getstate__(self) -> dict[str, Any]:
        return {"make": self.make}

    def get_name(self) -> str:
        """Return the name that ray.data shows."""
        return "dsindex"

    def on_write_start(self, _: object = None) -> None:
        """Begin."""
        self.begin()

    def write(self, blocks: Iterable[Any], _: object) -> list[Made] | None:
        """Return what is made of some blocks; None if Ray Data would leave out blocks that fail, and so an error.

        Raises:
            UsageError: If Ray Data would return blocks in any order.
        """
        context = DataContext.get_current()  # in a task, the dataset's
        if context.max_errored_blocks:
            return None
        if not context.execution_options.preserve_order:
            raise UsageError(
                "ray.data: expected preserve_order, without which the order of documents is not reproducible; set "
                "ray.data.DataContext.get_current().execution_options.preserve_order = True before the dataset is made"
            )
        return [made for block in blocks for made in self.make(_with_lists(BlockAccessor.for_block(block).to_arrow()))]

    def on_write_complete(self, write_result: Any) -> None:  # noqa: ANN401 - Ray's WriteResult
        """Finish, with what was made of all blocks.

        Raises:
            UsageError: If blocks may be missing.
        """
        if None in write_result.write_returns:
            raise UsageError(
                "ray.data: expected max_errored_blocks 0, since blocks that fail would be missing in silence; leave "
                "out bad records with --on-bad-record quarantine"
            )
        self.result = self.finish([made for each in write_result.write_returns for made in each])

    def on_write_failed(self, _: Exception) -> None:
        """Give up."""
        self.give_up()


def _with_lists(table: pa.Table) -> pa.Table:
    """Return a table with lists in place of the tensors that arrays of different lengths become."""
    for number, field in enumerate(table.schema):
        if isinstance(field.type, ArrowVariableShapedTensorType) and field.type.ndim == 1:
            chunks = [chunk.storage.flatten()[0] for chunk in table.column(number).chunks]
            lists = pa.chunked_array(chunks, type=field.type.storage_type.field(0).type)
            table = table.set_column(number, field.name, lists)
    return table


def write_rows(dataset: Any, sink: BlockSink[Made, Result]) -> Result | None:  # noqa: ANN401 - a Dataset
    """Write a Dataset of Ray Data to a sink in its order; return the sink's result.

    Raises:
        DsindexError: The sink's own, out of Ray's.
    """
    with _own_errors(), _in_order(dataset.context.execution_options):
        dataset.write_datasink(sink)
    return sink.result


@contextlib.contextmanager
def _in_order(options: Any) -> Iterator[None]:  # noqa: ANN401 - Ray's ExecutionOptions
    before, options.preserve_order = options.preserve_order, True
    try:
        yield
    finally:
        options.preserve_order = before


@contextlib.contextmanager
def _own_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and (isinstance(cause, RayError) or not isinstance(cause, DsindexError)):
            cause = getattr(cause, "cause", None) or cause.__cause__  # a task's is of both kinds
        if cause is None:
            raise
        cause.args = (str(cause).partition("\n")[0],)  # Ray Data adds lines about its retries
        raise cause from None
