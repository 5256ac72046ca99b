"""Results of the API functions: the jobs' reports, which print as on the command line.

`str` has all facts, `repr` fits on one line. Results of functions that made or checked datasets have `prefixes`, and
can be passed wherever a dataset is expected.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from dsindex.amounts import count
from dsindex.execution.progress.standard_streams import show_lines
from dsindex.index.task import BlendIndexTask
from dsindex.jobs.build import BuildReport, describe_build
from dsindex.jobs.conversion import Conversion, describe_conversion
from dsindex.jobs.index import IndexReport, describe_index
from dsindex.jobs.instruct import InstructReport, describe_instruct
from dsindex.jobs.merge import MergeReport, describe_merge
from dsindex.jobs.pack import PackReport, describe_pack
from dsindex.jobs.repair import describe_packed_repair
from dsindex.jobs.rescue_files import RepairReport, describe_repair
from dsindex.tools.estimate import BuildEstimate, describe_plan
from dsindex.tools.mix import MixReport, describe_mix
from dsindex.tools.report import WrittenReport, describe_report
from dsindex.tools.verify_report import describe_verification

if TYPE_CHECKING:
    from dsindex.tools.verify_report import VerifyReport


@runtime_checkable
class Result(Protocol):
    """A result that can be passed where a dataset is expected."""

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The datasets: prefixes, or paths of `.pbin` files."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexResult(IndexReport):
    """The index caches of a training job; `dsindex.open` opens one split of them."""

    @property
    def descriptions(self) -> dict[str, tuple[str, ...]]:
        """Description of each cache -> prefixes of its datasets; empty if the layout has no descriptions."""
        return {
            task.files.description: task.prefixes if isinstance(task, BlendIndexTask) else (task.prefix,)
            for task in self.tasks
            if task.files is not None
        }

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders of the caches."""
        return tuple(dict.fromkeys(os.path.dirname(result.paths[0]) for result in self.results))

    def __str__(self) -> str:
        return _text(describe_index(self))

    def __repr__(self) -> str:
        caches = ", ".join(f"{result.name}: {count(result.num_samples, 'sample')}" for result in self.results)
        return f"{type(self).__name__}({caches or 'nothing was built'})"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult(BuildReport):
    """The datasets of a build, one for each key."""

    indices: tuple[IndexResult, ...]
    """One per dataset, if index options were given."""

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The datasets, in the order of the keys."""
        return tuple(dataset.prefix for dataset in self.datasets)

    def __str__(self) -> str:
        return _text(describe_build(self))

    def __repr__(self) -> str:
        return _show(self, self.prefixes, *((d.num_documents, d.num_tokens) for d in self.datasets))


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult(MergeReport):
    """A merged dataset."""

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The merged dataset."""
        return (self.prefix,)

    def __str__(self) -> str:
        return _text(describe_merge(self))

    def __repr__(self) -> str:
        return _show(self, self.prefixes, (self.num_documents, self.num_tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class MixResult(MixReport):
    """A planned mixture."""

    @property
    def data_path(self) -> tuple[str, ...]:
        """The words of Megatron's `--data-path`: weights and prefixes."""
        return self.mixture.data_path

    def __str__(self) -> str:
        return _text(describe_mix(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({' '.join(self.data_path)}: {count(self.mixture.tokens, 'token')})"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackResult(PackReport):
    """A `.pbin` that was packed."""

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The path of the `.pbin`."""
        return (self.path,)

    def __str__(self) -> str:
        return _text(describe_pack(self))

    def __repr__(self) -> str:
        return _show(self, self.prefixes, (self.num_documents, self.num_tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructResult(InstructReport):
    """Instruction data: tokens, loss masks and packed blocks of every split."""

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Every dataset that was written, including masks and block layouts."""
        return tuple(f"{split.prefix}_{name}" for split in self.splits for name in split.files)

    def __str__(self) -> str:
        return _text(describe_instruct(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(split.prefix for split in self.splits)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResult:
    """The findings of a verification; true if there are none."""

    reports: tuple[VerifyReport, ...]
    """One per dataset, in the order given."""

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The datasets that were verified."""
        return tuple(report.prefix for report in self.reports)

    @property
    def is_whole(self) -> bool:
        """Whether there are no findings about any dataset."""
        return all(report.is_whole for report in self.reports)

    @property
    def findings(self) -> tuple[str, ...]:
        """The findings about all datasets, each a sentence."""
        return tuple(finding for report in self.reports for finding in report.findings)

    def __bool__(self) -> bool:
        return self.is_whole

    def __str__(self) -> str:
        return _text([line for report in self.reports for line in describe_verification(report)])

    def __repr__(self) -> str:
        verdicts = (f"{report.prefix}: {'whole' if report.is_whole else 'DAMAGED'}" for report in self.reports)
        return f"{type(self).__name__}({', '.join(verdicts)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairResult(RepairReport):
    """A repaired dataset, and what was saved and lost."""

    source: str
    """The damaged dataset."""
    target: str
    """The new dataset."""

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The new dataset; the old one if it was intact, so that nothing was written."""
        return (self.target if self.outputs else self.source,)

    def __str__(self) -> str:
        return _text(describe_repair(self.source, self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.prefixes[0]}: {self.way}, {len(self.lost)} losses)"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRepairResult:
    """A repaired `.pbin` that Modalities had joined."""

    source: str
    target: str
    num_joints: int
    """Number of joints whose offsets were repaired; if 0, the file was intact and nothing was written."""

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The new file; the old one if it was intact."""
        return (self.target if self.num_joints else self.source,)

    def __str__(self) -> str:
        return _text(describe_packed_repair(self.source, self.target, self.num_joints))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertResult(Conversion):
    """A dataset in another format."""

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The dataset that was written."""
        path = self.outputs[0]
        return (path if len(self.outputs) == 1 else path.removesuffix(".bin"),)

    def __str__(self) -> str:
        return _text(describe_conversion(self))

    def __repr__(self) -> str:
        return _show(self, self.prefixes, (self.num_documents, self.num_tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateResult(BuildEstimate):
    """The expected output, time, memory and disk space of a build."""

    def __str__(self) -> str:
        return _text(describe_plan(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(about {self.documents:,.0f} documents, {self.tokens:,.0f} tokens)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportResult(WrittenReport):
    """A page about datasets that was written."""

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The datasets on the page."""
        return tuple(dataset.section.name for dataset in self.datasets)

    def __str__(self) -> str:
        return _text(describe_report(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.output}: {count(len(self.datasets), 'dataset')})"


def fields_of(report: Any) -> dict[str, Any]:  # noqa: ANN401 - any dataclass
    """Return the fields of a job's report, to construct a result from."""
    return {field.name: getattr(report, field.name) for field in fields(report)}


def _text(lines: list[str]) -> str:
    return show_lines(lines).rstrip("\n")


def _show(result: object, prefixes: tuple[str, ...], *counts: tuple[int, int]) -> str:
    shown = (
        f"{prefix}: {count(documents, 'document')}, {count(tokens, 'token')}"
        for prefix, (documents, tokens) in zip(prefixes, counts, strict=True)
    )
    return f"{type(result).__name__}({'; '.join(shown)})"
