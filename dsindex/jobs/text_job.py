"""What `build`, `pack` and `instruct` share: text that becomes shards, and shards that become datasets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsindex.amounts import count, format_size
from dsindex.engine.job import Job, JobOutcome, open_job
from dsindex.engine.manifest import Content, RecordCounts
from dsindex.engine.output import Dataset, assemble, shard_part, shard_provenance, shard_quarantine
from dsindex.engine.report import Report
from dsindex.engine.shards import make_shards
from dsindex.engine.source import count_records
from dsindex.engine.tasks import keep_only
from dsindex.options.config import work_folder_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.datasets.provenance import ShardProvenance
    from dsindex.engine.manifest import Run
    from dsindex.engine.output import Output, TokenSource
    from dsindex.engine.plan import Plan
    from dsindex.engine.progress import Reporter
    from dsindex.engine.source import TextSource
    from dsindex.engine.tasks import KeyResult, ShardResult, ShardTask
    from dsindex.engine.work import Work
    from dsindex.engine.worker import ShardQuarantine
    from dsindex.options.config import RecordsConfig
    from dsindex.store.storage import StoredFile

    Results = list[tuple[ShardTask, ShardResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextResult(Report):
    """What the results of every kind have."""

    already_complete: bool
    counts: RecordCounts
    """Record counts of all datasets together."""
    input_bytes: int
    made_bytes: int
    """The part of the inputs whose shards this run made."""
    seconds: float
    run: Run
    input_notes: tuple[str, ...]
    """Sentences about inputs that are given more than once."""

    def first_lines(self, *, complete: str, engine: str | None = None, quarantined: Sequence[str] = ()) -> list[str]:
        """Return what was read, how fast, and what became of the records.

        Args:
            complete: The first line if nothing was done.
            engine: Name of the engine.
            quarantined: Lines about bad records.
        """
        run, counts = self.run, self.counts
        made = f" ({format_size(self.made_bytes)} in this run)" if 0 < self.made_bytes < self.input_bytes else ""
        facts = [
            f"done in {self.seconds:.1f} s: {format_size(self.input_bytes)} of input{made}",
            *([f"{format_size(self.made_bytes / max(self.seconds, 1e-6))}/s"] if self.made_bytes else []),
            count(run.shards, "shard"),
            f"{run.executor} executor",
            count(run.workers, "worker"),
            *filter(None, [engine]),
        ]
        filtered = [f"{counts.filtered:,} filtered"] if counts.filtered else []
        parts = [f"{counts.kept:,} kept", *filtered, f"{counts.quarantined:,} quarantined", f"{counts.blank:,} blank"]
        return [
            complete if self.already_complete else ", ".join(facts),
            f"{count(counts.lines, 'line')} = {' + '.join(parts)}",
            *quarantined,
            *self.input_notes,
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The datasets of a job, ready to be assembled."""

    groups: tuple[tuple[Dataset, ...], ...]
    """Datasets that belong together; if the first one's last file exists, the others of its group are complete."""
    num_shards: int
    """Number of shards."""
    num_reference_texts: int = 0
    """Texts that the reference encoded while a faster engine encoded the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeShards:
    """Every shard of a job, and what of them becomes part of its datasets."""

    source: TextSource
    results: Results
    """Every shard with its task, in plan order."""
    made_bytes: int
    """Size of the inputs whose shards this run made."""

    def part_numbers(self, key: str) -> list[int | None]:
        """Return the number of a key's part in each shard's `keys`; None where there is none."""
        return [
            next((number for number, part in enumerate(result.keys) if part.key == key), None)
            for _, result in self.results
        ]

    def find_parts(self, numbers: Sequence[int | None]) -> list[KeyResult | None]:
        """Return the parts of all shards that have these numbers."""
        pairs = zip(self.results, numbers, strict=True)
        return [None if number is None else result.keys[number] for (_, result), number in pairs]

    def dataset(self, source: TokenSource, **own: Any) -> Dataset:  # noqa: ANN401 - fields of Dataset
        """Return the dataset that has a part of every shard."""
        found = self.find_parts(self.part_numbers(source.key))
        work_dir = source.work_dir
        return Dataset(
            output=source.output,
            parts=tuple(shard_part(part, work_dir, source.dtype) for part in found if part is not None),
            provenance=self.provenance(found, work_dir),
            quarantine=self.quarantine(work_dir),
            **own,
        )

    def provenance(self, parts: Sequence[KeyResult | None], work_dir: str) -> tuple[ShardProvenance, ...] | None:
        """Return the provenance of a part of each shard; None if none is wanted."""
        no_provenance = self.source.config.no_provenance
        return None if no_provenance else shard_provenance(self.results, work_dir, parts)

    def quarantine(self, work_dir: str) -> tuple[ShardQuarantine, ...]:
        """Return the bad records of all shards."""
        return shard_quarantine(self.results, work_dir, [file.path for file in self.source.inputs])

    def content(
        self,
        numbers: Sequence[int | None],
        *,
        with_tokens: int,
        empty: int,
        filters: bool = False,
        of_group: bool = False,
        of_texts: bool = False,
        **own: Any,  # noqa: ANN401 - fields of Content
    ) -> Content:
        """Return the content of a manifest.

        Args:
            numbers: Number of the dataset's part in each shard's `keys`; None where it has none.
            with_tokens: Number of documents with tokens.
            empty: Number of texts without tokens.
            filters: Whether options leave out records.
            of_group: Whether the dataset has a group of the records, such as those of a sample.
            of_texts: Whether the parts are made of texts.
            own: Fields in which the kind of the job differs.
        """
        source, parts = self.source, self.find_parts(numbers)
        counts = [result for _, result in self.results]
        if of_group:
            kept = [0 if part is None else part.num_documents for part in parts]
            counts = list(map(keep_only, counts, kept))
        return Content(
            inputs=source.describe_inputs(
                self.results,
                work_folder_path(source.config),
                filters=filters,
                parts=numbers,
                of_group=of_group,
                of_texts=of_texts,
            ),
            account=RecordCounts(
                **count_records(counts, filters=filters),
                documents_with_tokens=with_tokens,
                empty_documents=empty,
            ),
            tokens=sum(part.num_tokens for part in parts if part is not None),
            eod_in_text=sum(part.eod_in_text for part in parts if part is not None),
            tokenizer=source.describe_tokenizer(),
            **own,
        )


def make_text_shards(
    work: Work,
    source: TextSource,
    settings: object,
    targets: Sequence[TokenSource],
    **own: Any,  # noqa: ANN401 - options of make_shards
) -> MadeShards:
    """Make every shard of a source that the ledger does not have.

    Args:
        work: The job's executor, ledger and reporter.
        source: The inputs.
        settings: The settings that all shards share.
        targets: Datasets that are made of shards alone.
        own: Options of `make_shards`.
    """
    tasks = source.tasks()
    earlier = [work.ledger.shard(task) for task in tasks]
    limit = source.config.max_bad_records
    made = make_shards(work, tasks, settings, sources=targets, max_bad_records=limit, **own)
    each = zip(tasks, made, earlier, strict=True)
    made_bytes = sum(task.stored_bytes for task, result, known in each if result is not known)
    return MadeShards(source=source, results=list(zip(tasks, made, strict=True)), made_bytes=made_bytes)


class TextJob(ABC):
    """A job that tokenizes records. Its kind opens the source, and sets plan and outputs.

    Args:
        config: Options of the job.
        reporter: Shows progress.
    """

    source: TextSource
    plan: Plan
    outputs: Sequence[Output]

    def __init__(self, config: RecordsConfig, reporter: Reporter) -> None:
        self._options = config
        self.reporter = reporter
        self.work_dir = work_folder_path(config)
        self.shards: MadeShards | None = None
        """Every shard, once they are made."""

    @abstractmethod
    def examine(self) -> None:
        """Check for problems before any work is done."""

    @abstractmethod
    def make(self, work: Work) -> Made:
        """Make the parts of all datasets."""

    @abstractmethod
    def describe(self, made: Made, files: Sequence[dict[str, StoredFile]]) -> list[Content]:
        """Return the content of each manifest, in the order of the outputs."""

    def carry_out(self, *, encodes: bool = True, holds_gil: bool = False) -> JobOutcome:
        """Run the job, which encodes texts or not, continuing an interrupted run of the same plan."""
        source = self.source
        with open_job(
            self._options,
            self.plan,
            self.outputs,
            reporter=self.reporter,
            text_bytes=source.text_bytes,
            holds_gil=holds_gil,
        ) as job:
            if job.work is not None:
                for note in source.first_notes(encodes=encodes):
                    self.reporter.say(note)
                self.examine()
                made = self.make(job.work)
                files = assemble([dataset for group in made.groups for dataset in group], job.work)
                job.publish(
                    made.groups,
                    self.describe(made, files),
                    num_shards=made.num_shards,
                    engine=source.engine if encodes else None,
                    num_reference_texts=made.num_reference_texts,
                    tokenizer_path=source.config.tokenizer_model,
                )
            self.conclude(job)
        return job.published

    def conclude(self, job: Job) -> None:  # noqa: B027 - few kinds make more
        """Make what follows once everything is published, by this run or an earlier one."""

    def outcome_fields(self, outcome: JobOutcome) -> dict[str, Any]:
        """Return the fields that the result of every kind has."""
        return {
            "already_complete": outcome.already_complete,
            "counts": outcome.contents[0].record_counts,
            "input_bytes": self.source.total_bytes,
            "made_bytes": 0 if self.shards is None else self.shards.made_bytes,
            "seconds": outcome.seconds,
            "run": outcome.run,
            "input_notes": self.source.notes,
        }
