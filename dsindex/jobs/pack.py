"""The driver of `dsindex pack`: from JSONL to a `.pbin`, with the same shards, executors and work folder as a build."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dsindex.amounts import count
from dsindex.engine.dispatch import run_in_order
from dsindex.engine.executors import Call
from dsindex.engine.merge import read_lengths
from dsindex.engine.output import Dataset, Output, PbinEnds, TokenSource, identify_parts
from dsindex.engine.plan import Plan
from dsindex.engine.report import show_datasets
from dsindex.engine.room import check_room
from dsindex.engine.sample import examine_sample
from dsindex.engine.source import (
    count_reference_texts,
    open_source,
    piped_input_named,
)
from dsindex.engine.tasks import Piece
from dsindex.engine.worker import Attempt, ShardSettings
from dsindex.errors import TokenizerError
from dsindex.formats.pbin import PBIN_VERSIONS, PbinHeader, token_bytes_for_vocabulary, write_pbin_index
from dsindex.jobs.conversion import TYPE_OF_SIZE
from dsindex.jobs.text_job import Made, TextJob, TextResult, make_text_shards
from dsindex.options.config import work_folder_path
from dsindex.store.urls import absolute, folder_of, joined
from dsindex.text.selection import open_pattern
from dsindex.text.tokenizer import shared_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any

    from dsindex.engine.job import JobOutcome
    from dsindex.engine.manifest import Content
    from dsindex.engine.progress import Reporter
    from dsindex.engine.tasks import Part
    from dsindex.engine.work import Work
    from dsindex.formats.pbin import PbinVersion
    from dsindex.jobs.text_job import MadeShards
    from dsindex.options.pack import PackConfig
    from dsindex.store.storage import Bytes, StoredFile
    from dsindex.text.tokenizer import Tokenizer


# The parts of a `.pbin` besides its tokens: the token size, the header before them, the pickled index after them.
#
# Header and index are written to the work folder, on a disk or in an object store, and the output is then assembled
# from them by ranges. The index is cut into files of INDEX_FILE_BYTES, as a worker has each of them in memory.

INDEX_FILE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PbinIndexTask:
    """Writing the index of a `.pbin` from the lengths in the shards' `.idx` files."""

    parts: tuple[Part, ...]
    """The shards, in output order."""
    header: PbinHeader
    work_dir: str


def choose_token_bytes(tokenizer: Tokenizer, version: PbinVersion) -> int:
    """Return the size of a token by Modalities' rule, which counts the vocabulary without added tokens.

    Raises:
        TokenizerError: If an added token's id does not fit that size.
    """
    loaded = shared_tokenizer(tokenizer)
    vocabulary_size = loaded.get_vocab_size(with_added_tokens=False)
    try:
        token_bytes = token_bytes_for_vocabulary(vocabulary_size) if version.names_token_size else 4
    except ValueError as error:
        raise TokenizerError(f"{tokenizer.name}: {error}; choose another tokenizer") from error
    token, largest = max(loaded.get_vocab(with_added_tokens=True).items(), key=lambda item: (item[1], item[0]))
    if largest >= 1 << 8 * token_bytes:
        raise TokenizerError(
            f"{tokenizer.name}: expected ids that fit {token_bytes} bytes, the size of a token in Modalities for a "
            f"vocabulary of {vocabulary_size} entries without added tokens, got {largest} for {token!r}; "
            f"`dsindex build` and then `dsindex convert` make a .pbin with larger tokens"
        )
    return token_bytes


def make_ends(
    header: PbinHeader,
    parts: Sequence[Part],
    *,
    work_dir: str,
    identity: str,
    run_tasks: Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]],
) -> PbinEnds:
    """Write the header and the index of a `.pbin` to files of their own.

    Args:
        header: The header of the `.pbin`.
        parts: The shards, in output order, with one sequence per document.
        work_dir: The marked work folder.
        identity: Id of the parts, so that ranges merged from other parts are not reused.
        run_tasks: Runs `_write_index`.

    Raises:
        OutputError: If the work folder cannot be written.
    """

    def piece(file: StoredFile, name: str) -> Piece:
        path = joined(work_dir, file.name)
        return Piece(path=path, identity=f"{identity}.{name}", offset=0, size_bytes=file.size_bytes)

    head = _write_file(work_dir, "head", header.to_bytes())
    [index] = run_tasks(_write_index, [PbinIndexTask(parts=tuple(parts), header=header, work_dir=work_dir)])
    return PbinEnds(
        head=piece(head, "head"),
        index=tuple(piece(file, f"index{number}") for number, file in enumerate(index)),
    )


def _write_index(task: PbinIndexTask) -> tuple[StoredFile, ...]:
    """Write the index of a `.pbin` to files of the work folder, under names unique to this attempt.

    Raises:
        InputError: If a shard is missing.
        OutputError: If the work folder cannot be written.
    """
    lengths = np.concatenate([np.empty(0, np.int32), *read_lengths(task.parts)])
    file = io.BytesIO()
    write_pbin_index(file, task.header, lengths)
    content = file.getbuffer()
    pieces = (content[begin : begin + INDEX_FILE_BYTES] for begin in range(0, len(content), INDEX_FILE_BYTES))
    return tuple(_write_file(task.work_dir, "index", piece) for piece in pieces)


def _write_file(work_dir: str, suffix: str, content: Bytes) -> StoredFile:
    """Write a file of the work folder under a name that is used once."""
    with Attempt(work_dir, folder="shards/ends", name="ends") as attempt, attempt.errors_named():
        file = attempt.open(suffix)
        file.write(memoryview(content))
        return file.finish()


@dataclass(frozen=True, slots=True, kw_only=True)
class PackResult(TextResult):
    """The result of packing."""

    path: str
    num_documents: int
    num_tokens: int
    num_empty: int
    """Number of records whose text has no tokens; they make no documents."""
    token_dtype: str
    files: dict[str, StoredFile]
    engine: str
    """Name of the engine."""

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The path of the `.pbin`."""
        return (self.path,)

    def __repr__(self) -> str:
        return show_datasets(self, [(self.prefixes[0], self.num_documents, self.num_tokens)])

    def lines(self) -> list[str]:
        """Return the summary: what was packed, how fast, and the digest by which two jobs are compared."""
        complete = "already complete: the same plan was packed before, nothing was done"
        lines = self.first_lines(complete=complete, engine=self.engine)
        lines.append(
            f"{self.path}: {count(self.num_documents, 'document')}, "
            f"{count(self.num_tokens, 'token')} of type {self.token_dtype}; "
            f"{count(self.num_empty, 'text')} without tokens"
        )
        return [*lines, f"  .pbin {self.files['pbin'].digest}"]


def run_pack(config: PackConfig, *, reporter: Reporter) -> PackResult:
    """Pack JSONL into a `.pbin`, continuing an interrupted run of the same plan.

    Raises:
        DsindexError: If the input cannot be packed as asked; final names then never refer to incomplete files.
    """
    with piped_input_named(work_folder_path(config), config.input):
        return _Pack(config, reporter).run()


class _Pack(TextJob):
    def __init__(self, config: PackConfig, reporter: Reporter) -> None:
        self._selection = open_pattern(config.jq_pattern)
        super().__init__(config, reporter)
        self._config = config
        self._prefix = absolute(config.output_prefix)
        self.source = open_source(config, append_eod=True, reporter=reporter)
        self._version = PBIN_VERSIONS[config.pbin_era]
        self._token_bytes = choose_token_bytes(self.source.tokenizer, self._version)
        settings = self.source.settings()
        own = {
            "eod-token": settings.pop("append-eod"),
            "jq-pattern": config.jq_pattern,
            "output": str(absolute(config.output)),
            "pbin-era": config.pbin_era,
        }
        self.plan = Plan(settings=settings | own, inputs=self.source.inputs)
        self._output = Output(
            prefix=self._prefix,
            plan_id=self.plan.plan_id,
            bound_bytes=self.source.text_bytes * self._token_bytes,
            header_bytes=self._version.header_bytes,
            swapped_bytes=self._token_bytes if self._version.byte_order == ">" else 1,
        )

        self.outputs = [self._output]
        dtype = TYPE_OF_SIZE[self._token_bytes]
        key = self._selection.names[0]
        self._source = TokenSource(output=self._output, key=key, dtype=dtype, work_dir=self.work_dir)

    def run(self) -> PackResult:
        return self._report(self.carry_out(holds_gil=self._selection.needs_jq))

    def examine(self) -> None:
        """Check a sample of the input, and the disk space."""
        source = self.source
        estimate = examine_sample(source.inputs, self._selection, source.tokenizer, source.engine)
        check_room(
            estimate,
            itemsize=self._token_bytes,
            num_keys=1,
            output_folder=folder_of(self._prefix),
            work_dir=self.work_dir,
            unfinished=[self._output.token_file],
        )

    def make(self, work: Work) -> Made:
        settings = ShardSettings(
            tokenizer=self.source.tokenizer,
            engine=self.source.engine,
            keys=self._selection.names,
            selection=self._selection,
            dtype=TYPE_OF_SIZE[self._token_bytes].str,
            eod_id=self.source.eod_id,
            layout="pbin",
            **self.source.shard_options(),
        )
        self.shards = shards = make_text_shards(work, self.source, settings, [self._source])
        return Made(
            groups=((self._dataset(work, shards),),),
            num_shards=len(shards.results),
            num_reference_texts=count_reference_texts(shards.results),
        )

    def _dataset(self, work: Work, shards: MadeShards) -> Dataset:
        parts = tuple(self._source.part_of(result) for _, result in shards.results)
        header = PbinHeader(
            version=self._version, token_bytes=self._token_bytes, data_bytes=sum(part.bin_bytes for part in parts)
        )

        def run_tasks(function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
            calls = (
                Call(name="pack-index", place=self.work_dir, function=function, arguments=(task,)) for task in tasks
            )
            return run_in_order(work.executor, calls, policy=work.policy)

        ends = make_ends(header, parts, work_dir=self.work_dir, identity=identify_parts(parts), run_tasks=run_tasks)
        return shards.dataset(self._source, pbin=ends)

    def describe(self, made: Made, files: Sequence[dict[str, StoredFile]]) -> list[Content]:  # noqa: ARG002 - one dataset
        if self.shards is None:
            raise ValueError("expected the shards to be made")
        parts = [result.keys[0] for _, result in self.shards.results]
        num_documents = sum(part.num_documents for part in parts)
        content = self.shards.content(
            [0] * len(parts),
            with_tokens=num_documents,
            empty=sum(part.num_empty_documents for part in parts),
            of_texts=True,
            documents=num_documents,
            sequences=num_documents,
            token_dtype=np.dtype(f"u{self._token_bytes}").name,
            options=self.source.describe_options(jq_pattern=self._config.jq_pattern, pbin_era=self._config.pbin_era),
            digests=files[0],
        )
        return [content]

    def _report(self, outcome: JobOutcome) -> PackResult:
        [content] = outcome.contents
        return PackResult(
            path=self._config.output,
            num_documents=content.documents,
            num_tokens=content.tokens,
            num_empty=content.record_counts.empty_documents,
            token_dtype=content.token_dtype,
            files=content.digests,
            engine=self.source.engine.name,
            **self.outcome_fields(outcome),
        )
