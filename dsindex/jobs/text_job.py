"""What `build`, `pack` and `instruct` share: text that becomes shards, and shards that become datasets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from dsindex.amounts import count, format_size, format_speed
from dsindex.engine.frame import Job, JobOutcome, Made, run_job
from dsindex.engine.manifest import Content, RecordCounts
from dsindex.engine.publishing import shard_provenance, shard_quarantine
from dsindex.engine.report import Report
from dsindex.engine.shards.tokenize import keep_only
from dsindex.engine.source import count_kept, count_records, require_recorded_inputs
from dsindex.engine.tokenize import make_shards
from dsindex.options.config import work_folder_path
from dsindex.store.requests import RequestCounts, all_requests, describe_requests

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.datasets.provenance import ShardProvenance
    from dsindex.engine.assemble import TokenSource
    from dsindex.engine.identity import Plan
    from dsindex.engine.manifest import Run
    from dsindex.engine.outputs import Output
    from dsindex.engine.progress import Reporter
    from dsindex.engine.shards.tokenize import KeyResult, ShardQuarantine, ShardResult, ShardTask
    from dsindex.engine.source import TextSource
    from dsindex.engine.start import Work
    from dsindex.engine.tokenize import StageSettings
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
    """Sentences about inputs that are repeated or were left out."""
    requests: RequestCounts
    """The requests to object stores."""

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
            *([format_speed(self.made_bytes / max(self.seconds, 1e-6))] if self.made_bytes else []),
            count(run.shards, "shard"),
            f"{run.executor} executor",
            count(run.workers, "worker"),
            *filter(None, [engine]),
        ]
        filtered = [f"{counts.filtered:,} filtered"] if "filtered" in counts.model_fields_set else []
        parts = [f"{counts.kept:,} kept", *filtered, f"{counts.quarantined:,} quarantined", f"{counts.blank:,} blank"]
        return [
            complete if self.already_complete else ", ".join(facts),
            f"{count(counts.lines, 'line')} = {' + '.join(parts)}",
            *quarantined,
            *describe_requests(self.requests),
            *self.input_notes,
        ]


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
        self._requests_before = all_requests()
        self._options = config
        self.reporter = reporter
        self.work_dir = work_folder_path(config)
        self._made_bytes = 0
        self.results: Results = []
        """Every shard with its task, in plan order, once they are made."""
        self._parts: list[dict[str, int]] = []
        """The numbers of each shard's parts, by key."""

    @abstractmethod
    def examine(self) -> None:
        """Check for problems before any work is done."""

    @abstractmethod
    def make(self, work: Work) -> Made:
        """Make the parts of all datasets."""

    @abstractmethod
    def describe(self, made: Made, files: Sequence[dict[str, StoredFile]]) -> list[Content]:
        """Return the content of each manifest, in the order of the outputs."""

    def carry_out(self, *, encodes: bool = True, **own: Any) -> JobOutcome:  # noqa: ANN401 - fields of Job
        """Run the job, which encodes texts or not; `own` are the fields of Job in which its kind differs."""
        source = self.source
        shared: dict[str, Any] = {
            "config": self._options,
            "plan": self.plan,
            "outputs": tuple(self.outputs),
            "text_bytes": source.text_bytes,
            "engine": source.engine if encodes else None,
            "notes": source.first_notes(encodes=encodes),
            "require_same_inputs": partial(require_recorded_inputs, source.inputs),
            "count_kept": partial(count_kept, source),
        }
        job = Job(examine=self.examine, make=self.make, describe=self.describe, **(shared | own))
        return run_job(job, reporter=self.reporter)

    def shard_options(self) -> dict[str, Any]:
        """Return the settings that the shards of every kind have."""
        return {
            "quarantine": self._options.on_bad_record == "quarantine",
            "max_record_bytes": self._options.max_record_size,
            "provenance": not self._options.no_provenance,
            "work_dir": self.work_dir,
        }

    def tokenize(
        self,
        work: Work,
        settings: StageSettings,
        sources: Sequence[TokenSource],
        *,
        tasks: Sequence[ShardTask] | None = None,
        **own: Any,  # noqa: ANN401 - options of make_shards
    ) -> Results:
        """Make every shard, and keep all of them as `results`."""
        tasks = self.source.tasks() if tasks is None else tasks
        earlier = [work.ledger.shard(task) for task in tasks]
        options = self._options
        own |= {"max_bad_records": options.max_bad_records, "keep": options.keep_shards}
        made = make_shards(work, tasks, settings, sources=sources, **own)
        each = zip(tasks, made, earlier, strict=True)
        self._made_bytes = sum(task.stored_bytes for task, result, known in each if result is not known)
        self.results = list(zip(tasks, made, strict=True))
        self._parts = [{part.key: number for number, part in enumerate(result.keys)} for _, result in self.results]
        return self.results

    def part_numbers(self, key: str) -> list[int | None]:
        """Return the number of a key's part in each shard's `keys`; None where there is none."""
        return [numbers.get(key) for numbers in self._parts]

    def find_parts(self, numbers: Sequence[int | None]) -> list[KeyResult | None]:
        """Return the parts of all shards that have these numbers."""
        pairs = zip(self.results, numbers, strict=True)
        return [None if number is None else result.keys[number] for (_, result), number in pairs]

    def provenance(self, parts: Sequence[KeyResult | None]) -> tuple[ShardProvenance, ...] | None:
        """Return the provenance of a part of each shard; None if none is wanted."""
        return None if self._options.no_provenance else shard_provenance(self.results, self.work_dir, parts)

    def quarantine(self) -> tuple[ShardQuarantine, ...]:
        """Return the bad records of all shards."""
        return shard_quarantine(self.results, self.work_dir, [file.path for file in self.source.inputs])

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
                self.results, self.work_dir, filters=filters, parts=numbers, of_group=of_group, of_texts=of_texts
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

    def outcome_fields(self, outcome: JobOutcome) -> dict[str, Any]:
        """Return the fields that the result of every kind has."""
        return {
            "already_complete": outcome.already_complete,
            "counts": outcome.contents[0].record_counts,
            "input_bytes": self.source.total_bytes,
            "made_bytes": self._made_bytes,
            "seconds": outcome.seconds,
            "run": outcome.run,
            "input_notes": self.source.notes,
            "requests": all_requests().since(self._requests_before),
        }
