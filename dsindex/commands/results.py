"""Results of jobs: the datasets that they made and, for jobs that read text, the counts of records."""

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
    """A dataset that a job wrote."""

    prefix: str
    """Its path without `.bin` and `.idx`, or the path of a `.pbin`."""
    num_documents: int
    num_sequences: int
    num_tokens: int
    token_dtype: str
    files: dict[str, StoredFile] = field(default_factory=dict, repr=False)
    """Its files by suffix; empty for a conversion, which writes no manifest."""

    @classmethod
    def from_content(cls, prefix: str, content: Content) -> Self:
        """Return a dataset as described by its manifest."""
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
    """Fields that the results of all jobs share."""

    datasets: tuple[MadeDataset, ...]

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Paths of the datasets, so that a result can be passed wherever a function takes prefixes."""
        return tuple(dataset.prefix for dataset in self.datasets)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextResult(JobResult):
    """Fields that the results of all jobs that read text share; `repr` shows only those that fit on a line."""

    already_complete: bool
    counts: RecordCounts = field(repr=False)
    """Record counts of all datasets together."""
    input_bytes: int
    made_bytes: int
    """Size of the inputs whose shards this run made."""
    seconds: float
    run: Run = field(repr=False)
    quarantines: tuple[str, ...]
    """Files of bad records: one for each dataset of the first key that has any."""
    bad_records: tuple[BadRecords, ...]
    notes: tuple[str, ...]
    """Sentences about inputs that may be a mistake, such as an input that is given more than once."""


def outcome_fields(source: TextSource, job: Job, *, num_keys: int = 1, num_datasets: int = 1) -> dict[str, Any]:
    """Return the fields of TextResult except `datasets`.

    Args:
        source: The inputs.
        job: The job.
        num_keys: Number of datasets per sample or split; they are made from the same records.
        num_datasets: Number of groups of consecutive inputs, each of which makes its own datasets.
    """
    counts = [manifest.content.record_counts for manifest in job.manifests[::num_keys]]
    num_groups = len(counts) // num_datasets
    total, extra_kept = counts[0], sum(group.kept for number, group in enumerate(counts) if number % num_groups)
    for group in counts[num_groups::num_groups]:
        sums = {name: getattr(total, name) + getattr(group, name) for name in total.__struct_fields__}
        total = msgspec.structs.replace(total, **sums)
    step = len(job.outputs) // num_datasets
    first_outputs = zip(job.outputs[::step], job.manifests[::step], strict=True)
    bad_prefixes = (output.prefix for output, manifest in first_outputs if manifest.content.record_counts.quarantined)
    quarantines = tuple(f"{prefix}.{QUARANTINE_SUFFIX}" for prefix in bad_prefixes)
    return {
        "already_complete": job.already_complete,
        "counts": msgspec.structs.replace(total, kept=total.kept + extra_kept, filtered=total.filtered - extra_kept),
        "input_bytes": source.total_bytes,
        "made_bytes": job.made_bytes,
        "seconds": time.time() - job.began,
        "run": job.manifests[0].run,
        "quarantines": quarantines,
        "bad_records": summarize_quarantines(quarantines),
        "notes": source.notes,
    }
