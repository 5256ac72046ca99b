"""A build whose records are rows in memory, which come block by block, such as those of a Ray Data pipeline.

A block is tokenized on the node that has it, into a shard of the build's work folder. Once all are there, the build
goes on as any other: its plan has one input, `<ray.data>`, with the number and a digest of all rows. What a block
became is found by a digest of its rows and of the settings, so a pipeline that is run again tokenizes what is missing:

    shards/0042/<digest>.<folder's id><digest>.rows     a line as in the ledger: the shard's files and counts
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from dsindex.engine.input_paths import ROWS_INPUT
from dsindex.engine.inputs import InputFile
from dsindex.engine.ledger import encode_entry, parse_shard, read_entry, stored_files
from dsindex.engine.manifest import read_manifest
from dsindex.engine.outputs import find_finished, look_at_output
from dsindex.engine.shards.attempt import SHARDS_PER_FOLDER, shard_folder
from dsindex.engine.shards.tokenize import ShardTask, tokenize_shard
from dsindex.engine.source import TextSource, open_tokenizer
from dsindex.engine.tokenize import are_whole
from dsindex.engine.work_folder import discard_unused_folder, own_work_folder, read_unfinished
from dsindex.errors import DsindexError, InputError, OutputError, PlanError, RecordError
from dsindex.execution.progress.reporter import Reporter
from dsindex.jobs.build import BuildJob, BuildResult
from dsindex.json_text import encode_json
from dsindex.store.journal import MOST_LINE_BYTES
from dsindex.store.ownership import new_file_id, read_folder_id, read_named
from dsindex.store.reading import input_status
from dsindex.store.storage import replace_file
from dsindex.store.urls import joined
from dsindex.text.forms import InputForm, TextPart
from dsindex.text.selection import select_keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from dsindex.engine.frame import JobOutcome, Made
    from dsindex.engine.shards.tokenize import ShardResult, ShardSettings
    from dsindex.engine.start import Work
    from dsindex.options.build import BuildConfig

_PIECE_BYTES = 64 << 20
"""About the largest shard."""
_SHOWN_CHARACTERS = 100
_WAY_ON = "run again with --on-bad-record quarantine to set such rows aside, or leave them out before"
_ROWS = InputForm(format="arrow-stream")
_FACTOR = 0x9E3779B97F4A7C15
"""Of the digest of rows: odd, so that it has an inverse modulo 2**64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsDigest:
    """A digest of consecutive rows, which does not depend on how they are cut into blocks.

    It is the sum of each row's XXH3 times a power of `_FACTOR`, modulo 2**64, the last row's times 1.
    """

    num_rows: int = 0
    num_bytes: int = 0
    """Size of the rows as lines of JSON."""
    value: int = 0

    def then(self, other: RowsDigest) -> RowsDigest:
        """Return the digest of these rows and others after them."""
        return RowsDigest(
            num_rows=self.num_rows + other.num_rows,
            num_bytes=self.num_bytes + other.num_bytes,
            value=(self.value * pow(_FACTOR, other.num_rows, 1 << 64) + other.value) % (1 << 64),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeBlock:
    """What consecutive rows became."""

    digest: RowsDigest
    result: ShardResult | None
    """None if the output is complete, so that the rows were only looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowShards:
    """Makes shards of rows, on any node; sent there with the tasks."""

    settings: ShardSettings
    identity: str
    """Of all settings on which a shard depends."""
    outputs: tuple[str, ...]
    replaces: bool
    """Whether finished outputs may be replaced, so that rows are tokenized in any case."""

    def make(self, table: pa.Table) -> list[MadeBlock]:
        """Tokenize the rows of a block, unless an earlier run has done so.

        Raises:
            DsindexError: As `tokenize_shard`; or if this node does not see the work folder.
        """
        if self.replaces or not self.outputs or not all(map(read_manifest, self.outputs)):
            folder_id = read_folder_id(self.settings.work_dir)
            if folder_id is None:
                raise OutputError(
                    f"{self.settings.work_dir}: expected the work folder of the build, got none on node "
                    f"{os.uname().nodename}; write to storage that all nodes share, or to a bucket"
                )
        else:
            folder_id = None
        paths = (self.settings.selection or select_keys(self.settings.keys)).paths
        wanted = list(dict.fromkeys(path[0] for path in paths.values())) if paths else table.column_names
        if set(wanted) <= set(table.column_names):  # else the reader names the missing ones
            table = table.select(wanted)
        return [self._make_piece(piece, folder_id) for piece in _cut(table)]

    def _make_piece(self, table: pa.Table, folder_id: str | None) -> MadeBlock:
        with _as_file(table) as path:
            hashes, num_bytes = _hash_rows(path)
            value = int((hashes * _powers(len(hashes))).sum(dtype=np.uint64))
            digest = RowsDigest(num_rows=len(hashes), num_bytes=num_bytes, value=value)
            if folder_id is None:
                return MadeBlock(digest=digest, result=None)
            identity = xxhash.xxh3_128_hexdigest(self.identity.encode() + hashes.tobytes())
            shard = int(identity[:8], 16) % (100 * SHARDS_PER_FOLDER)
            name = f"{shard_folder(shard)}/{identity}.{folder_id}{identity[:16]}.rows"
            try:
                result = self._find(name) or self._tokenize(path, shard, name, folder_id)
            except RecordError as error:
                row = table.slice(error.part[1] if error.part else 0, 1).to_pylist()[0]
                place = f"{ROWS_INPUT}, row {str(row)[:_SHOWN_CHARACTERS]}"
                raise InputError(f"{place}: {error.reason}; {_WAY_ON}") from None
            except DsindexError as error:
                error.args = tuple(str(word).replace(path, ROWS_INPUT) for word in error.args)
                raise
            return MadeBlock(digest=digest, result=result)

    def _find(self, name: str) -> ShardResult | None:
        """Return what an earlier attempt at the same rows has made, if it is whole."""
        work_dir = self.settings.work_dir
        content = read_named(work_dir, name, most_bytes=MOST_LINE_BYTES)
        result = None if content is None else parse_shard(read_entry(content))
        return result if result is not None and are_whole(work_dir, stored_files(result)) else None

    def _tokenize(self, path: str, shard: int, name: str, folder_id: str) -> ShardResult:
        status = input_status(path)
        task = ShardTask(
            shard=shard,
            input=0,
            path=path,
            begin=0,
            end=1,
            form=_ROWS,
            input_size_bytes=status.size_bytes,
            input_version=status.version,
        )
        result = replace(tokenize_shard(task, self.settings), input_fingerprint=None, requests=None)
        target = joined(self.settings.work_dir, name)
        temporary = f"{target.removesuffix('.rows')}.{new_file_id(folder_id)}.tmp"
        replace_file(target, encode_entry({"kind": "shard", "task": name, "result": result}), temporary=temporary)
        return result


def _cut(table: pa.Table) -> Iterator[pa.Table]:
    """Yield rows of about `_PIECE_BYTES` bytes."""
    step = max(1, -(-table.num_rows * _PIECE_BYTES // max(table.nbytes, _PIECE_BYTES)))
    for begin in range(0, table.num_rows, step):
        yield table.slice(begin, step).combine_chunks()


@contextlib.contextmanager
def _as_file(table: pa.Table) -> Iterator[str]:
    """Write rows to a temporary file of the node, so that they are read as those of any table; yield its path."""
    import pyarrow as pa

    with tempfile.NamedTemporaryFile(prefix="dsindex-rows-") as file:
        with pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
        file.flush()
        yield file.name


def _hash_rows(path: str) -> tuple[np.ndarray[Any, np.dtype[np.uint64]], int]:
    """Return the XXH3 of each row as a line of JSON, and the size of all lines."""
    from dsindex.text.tables.lines import read_table_lines

    part, hashes, num_bytes = TextPart(path=path, begin=0, end=1, form=_ROWS), [], 0
    for block in read_table_lines(part):
        hashes += [xxhash.xxh3_64_intdigest(block.text(number)) for number in range(len(block.starts))]
        num_bytes += block.num_bytes
    return np.array(hashes, np.uint64), num_bytes


def _powers(number: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    factors = np.full(number, _FACTOR, np.uint64)
    factors[:1] = 1
    return np.multiply.accumulate(factors)[::-1]


# In the driver: before the first block, and after the last.


@dataclass(frozen=True, slots=True, kw_only=True)
class _RowSource(TextSource):
    """Rows whose shards are made."""

    blocks: tuple[MadeBlock, ...] = ()
    said: tuple[str, ...] = ()
    """What should be known before the work begins; a temporary tokenizer is gone by then."""

    def first_notes(self, **_: bool) -> tuple[str, ...]:
        return self.said

    def settings(self) -> dict[str, Any]:
        """Return the settings of a plan, which is none of files."""
        return {**TextSource.settings(self), "input": ROWS_INPUT}

    def tasks(self) -> list[ShardTask]:
        """Return a task for each block, which is made already."""
        tasks, begin = [], 0
        for shard, block in enumerate(self.blocks):
            [file], end = self.inputs, begin + block.digest.num_rows
            task = ShardTask(
                shard=shard,
                input=0,
                path=ROWS_INPUT,
                begin=begin,
                end=end,
                form=_ROWS,
                stored_bytes=block.digest.num_bytes,
                input_size_bytes=file.size_bytes,
                input_version=file.version,
            )
            tasks.append(task)
            begin = end
        return tasks


class _RowJob(BuildJob):
    source: _RowSource

    def examine(self) -> None:
        """The shards are made: there is nothing to try."""

    def carry_out(self, *, encodes: bool = True, **own: Any) -> JobOutcome:  # noqa: ANN401 - fields of Job
        return super().carry_out(encodes=encodes, **{**own, "check_nodes": None, "require_same_inputs": None})

    def make(self, work: Work) -> Made:
        for task, block in zip(self.source.tasks(), self.source.blocks, strict=True):
            if block.result is None:
                prefix = self._config.output_prefix
                raise PlanError(f"{prefix}: the output was removed while rows were read; run the pipeline again")
            work.ledger.record_shard(task, block.result)
        return super().make(work)


class RowBuild:
    """A build of rows: `begin` in the driver, `shards.make` on any node, then `finish` or `give_up` in the driver.

    Args:
        config: The options of the build, whose only input is ROWS_INPUT.
        index: As for `run_build`.

    Raises:
        TokenizerError: If the tokenizer cannot be used.
    """

    def __init__(self, config: BuildConfig, index: Mapping[str, Any] | None = None) -> None:
        self._config, self._index = config, index
        tokenizer, engine, eod_id = open_tokenizer(config, append_eod=config.append_eod)
        source = _RowSource(config=config, inputs=(), tokenizer=tokenizer, engine=engine, eod_id=eod_id, shard_sizes=())
        said = TextSource.first_notes(source, encodes=config.token_ids is None)
        self._source = replace(source, said=said)
        self._job = _RowJob(config, Reporter(), index, source=self._source)
        self._held = contextlib.ExitStack()
        settings = self._job.shard_settings()
        self.shards = RowShards(
            settings=settings,
            identity=xxhash.xxh3_128_hexdigest(encode_json(self._job.plan.settings, sort_keys=True)),
            outputs=tuple(str(output.prefix) for output in self._job.outputs),
            replaces=config.fresh or config.replace,
        )

    def begin(self) -> None:
        """Hold the work folder while rows come.

        Raises:
            PlanError: If another driver works there, or it or the output is one of other settings.
        """
        plan, work_dir, fresh = self._job.plan, self._job.work_dir, self._config.fresh
        if not fresh:
            standings = [look_at_output(output) for output in self._job.outputs]
            replaces, read = self._config.replace, partial(read_unfinished, work_dir)
            find_finished(standings, plan, replaces=replaces, read_unfinished=read)
        self._held.enter_context(own_work_folder(work_dir, plan, fresh=fresh, keep=True, access=self._config.access))

    def give_up(self) -> None:
        """Leave what is made to the next run."""
        self._held.close()
        discard_unused_folder(self._job.work_dir)

    def finish(self, blocks: Sequence[MadeBlock], reporter: Reporter) -> BuildResult:
        """Merge and publish, with all blocks in the order of the output.

        Raises:
            DsindexError: If the build cannot be done as asked.
        """
        self._held.close()
        digest = RowsDigest()
        for block in blocks:
            digest = digest.then(block.digest)
        if not digest.num_rows:
            raise InputError(f"{ROWS_INPUT}: expected at least one row, got none; check the pipeline")
        file = InputFile(
            path=ROWS_INPUT,
            absolute_path=ROWS_INPUT,
            size_bytes=digest.num_bytes,
            version=f"{digest.num_rows} rows, {digest.value:016x}",
            form=_ROWS,
        )
        source = replace(self._source, inputs=(file,), shard_sizes=(_PIECE_BYTES,), blocks=tuple(blocks))
        return _RowJob(self._config, reporter, self._index, source=source).run()
