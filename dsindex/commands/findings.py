"""The results of `dsindex inspect`, `trace` and `verify`, as plain dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from dsindex.commands.token_data import LengthSummary, Piece
    from dsindex.datasets.lineage import DocumentOrigin
    from dsindex.datasets.samples import SampleTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """A run of tokens, or a line."""

    title: str
    num_tokens: int
    """Tokens of the whole document or part."""
    pieces: tuple[Piece, ...] = ()
    """The tokens to show; without a tokenizer, they have no text."""
    document: int | None = None
    origin: DocumentOrigin | None = None
    mask: tuple[int, ...] | None = None
    """For instruction data: 1 for each token shown that is trainable, else 0."""
    text: str | None = None
    """The line of a raw index, instead of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetCounts:
    """The counts in an intact index."""

    documents: int
    empty_documents: int
    sequences: int
    tokens: int
    token_type: str
    version: str | None
    """Version of a `.pbin`; None for any other format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """A check and its findings."""

    name: str
    findings: tuple[str, ...]
    """Sentences with a place and a remedy; none if nothing is wrong."""


Verdict = Literal["intact", "sound", "different", "damaged", "missing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """The result of verifying one dataset."""

    path: str
    kind: str | None
    """None if there is no dataset."""
    counts: DatasetCounts | None = None
    """None if the index is damaged."""
    checks: tuple[CheckResult, ...] = ()
    compared: bool = False
    """Whether the tokens were compared with a manifest, the source, or another dataset."""
    notes: tuple[str, ...] = ()
    """Sentences about what could not be checked, and why."""

    @property
    def findings(self) -> tuple[str, ...]:
        """The findings of all checks."""
        return tuple(finding for check in self.checks for finding in check.findings)

    @property
    def verdict(self) -> Verdict:
        """The verdict; a dataset is intact only if its tokens were compared with something."""
        failed_checks = [check for check in self.checks if check.findings]
        if self.kind is None:
            return "missing"
        if failed_checks:
            is_other = all(check.name.startswith(SAME_AS) for check in failed_checks)
            return "different" if is_other else "damaged"
        return "intact" if self.compared else "sound"


SAME_AS = "the same documents as"
CACHE = "index cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResult:
    """The result of `dsindex verify`; true if there are no findings."""

    reports: tuple[VerifyReport, ...]
    """One per dataset, in the order given."""

    @property
    def findings(self) -> tuple[str, ...]:
        """The findings about all datasets, each a sentence."""
        return tuple(finding for report in self.reports for finding in report.findings)

    @property
    def ok(self) -> bool:
        """Whether there are no findings about any dataset."""
        return not self.findings

    def __bool__(self) -> bool:
        return self.ok


@dataclass(slots=True, kw_only=True)
class InspectResult:
    """What `dsindex inspect` found at a path."""

    path: str
    kind: str
    facts: dict[str, Any] = field(default_factory=dict, repr=False)
    """Name -> number, text, list of texts, or sizes of files by path."""
    lengths: dict[str, LengthSummary] = field(default_factory=dict, repr=False)
    """Lengths of `documents` and `sequences`, in tokens."""
    excerpts: list[Excerpt] = field(default_factory=list, repr=False)
    notes: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged."""
        return not self.findings


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownDataset:
    """What the traced samples read from one dataset."""

    prefix: str
    num_samples: int
    num_tokens: int
    num_documents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedSamples:
    """Where samples come from."""

    num_samples: int
    """Number of all samples of the cache, or of all packs."""
    samples: tuple[SampleTrace, ...] = field(repr=False)
    datasets: tuple[ShownDataset, ...]
    """What the traced samples read from each dataset, the most tokens first."""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTokens:
    """How often the tokens of a dataset were read."""

    prefix: str
    num_samples: int
    """Samples of the dataset that were read."""
    tokens_by_times: tuple[int, ...]
    """Number of tokens that were read as input 0 times, once, twice, …"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumedTokens:
    """How often the tokens of each dataset were read."""

    num_samples: int
    """Samples of the cache."""
    consumed: int
    datasets: tuple[ReadTokens, ...]
