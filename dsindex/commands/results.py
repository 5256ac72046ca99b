"""What jobs return: the datasets that they made, and of jobs that read records, what became of these."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import msgspec

from dsindex.formats.quarantine import QUARANTINE_SUFFIX, summarize_quarantines

if TYPE_CHECKING:
    from dsindex.formats.manifest import Content, RecordCounts, Run
    from dsindex.formats.quarantine import BadRecords
    from dsindex.runtime.job import Job
    from dsindex.runtime.source import TextSource
    from dsindex.store.local import StoredFile


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeDataset:
    """A published dataset."""

    prefix: str
    """Its path without `.bin` and `.idx`, or a `.pbin`."""
    num_documents: int
    num_sequences: int
    num_tokens: int
    token_dtype: str
    files: dict[str, StoredFile] = field(default_factory=dict, repr=False)
    """Its files by suffix; none of a conversion, which writes no manifest."""

    @classmethod
    def of(cls, prefix: str, content: Content) -> Self:
        """Return a dataset as its manifest has it."""
        return cls(
            prefix=prefix,
            num_documents=content.documents,
            num_sequences=content.sequences,
            num_tokens=content.tokens,
            token_dtype=content.token_dtype,
            files=content.digests,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """What the results of every job have."""

    datasets: tuple[MadeDataset, ...]

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The datasets' paths, by which a result can stand for them."""
        return tuple(dataset.prefix for dataset in self.datasets)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextResult(JobResult):
    """What the results of every job have that reads records; their `repr` has the facts that fit on a line."""

    already_complete: bool
    counts: RecordCounts = field(repr=False)
    """Record counts of all datasets together."""
    input_bytes: int
    made_bytes: int
    """The part of the inputs whose shards this run made."""
    seconds: float
    run: Run = field(repr=False)
    quarantines: tuple[str, ...]
    """The files with the bad records: one for each dataset that has some, of the first key."""
    bad_records: tuple[BadRecords, ...]
    notes: tuple[str, ...]
    """Sentences about inputs that are given more than once."""


def outcome_fields(source: TextSource, job: Job, *, num_keys: int = 1, num_datasets: int = 1) -> dict[str, Any]:
    """Return the fields of TextResult but the datasets.

    Args:
        source: The inputs.
        job: The job.
        num_keys: Number of datasets of each sample or split, which are made of the same records.
        num_datasets: Number of groups of consecutive inputs.
    """
    counts = [manifest.content.record_counts for manifest in job.manifests[::num_keys]]
    num_groups = len(counts) // num_datasets
    total, more = counts[0], sum(each.kept for number, each in enumerate(counts) if number % num_groups)
    for each in counts[num_groups::num_groups]:
        sums = {name: getattr(total, name) + getattr(each, name) for name in total.__struct_fields__}
        total = msgspec.structs.replace(total, **sums)
    step = len(job.outputs) // num_datasets
    firsts = zip(job.outputs[::step], job.manifests[::step], strict=True)
    has_bad = (output.prefix for output, manifest in firsts if manifest.content.record_counts.quarantined)
    quarantines = tuple(f"{prefix}.{QUARANTINE_SUFFIX}" for prefix in has_bad)
    return {
        "already_complete": job.already_complete,
        "counts": msgspec.structs.replace(total, kept=total.kept + more, filtered=total.filtered - more),
        "input_bytes": source.total_bytes,
        "made_bytes": job.made_bytes,
        "seconds": time.time() - job.began,
        "run": job.manifests[0].run,
        "quarantines": quarantines,
        "bad_records": summarize_quarantines(quarantines),
        "notes": source.notes,
    }
