"""A dataset that a job assembles: the names of its files, what it is assembled from, and its token file by ranges."""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dsindex.formats.manifest import manifest_path
from dsindex.formats.provenance import PROVENANCE_SUFFIX
from dsindex.formats.quarantine import QUARANTINE_SUFFIX
from dsindex.runtime.publish import Artifact
from dsindex.runtime.tasks import MergeRange, Segment, SourceFile
from dsindex.store.local import DIGEST_BLOCK_BYTES

if TYPE_CHECKING:
    import numpy as np


RANGE_BYTES = DIGEST_BLOCK_BYTES
"""Size of the ranges of a token file, so that each has one digest."""
MEGATRON_SUFFIXES = ("bin", PROVENANCE_SUFFIX, QUARANTINE_SUFFIX, "idx")
"""In the order of publishing: if the last file exists, the others are complete."""
PBIN_SUFFIXES = (PROVENANCE_SUFFIX, QUARANTINE_SUFFIX, "pbin")


def ranges_of(begin: int, end: int) -> range:
    """Return the numbers of the ranges that the bytes [begin, end) of a token file overlap."""
    return range(begin // RANGE_BYTES, -(-end // RANGE_BYTES))


def begin_of(number: int) -> int:
    """Return the byte of a token file at which a range begins."""
    return number * RANGE_BYTES


@dataclass(kw_only=True, eq=False)
class Output:
    """A dataset that a job assembles of segments, which are added in their order."""

    prefix: str
    """Absolute path or address without suffix."""
    plan_id: str
    """Id of the job's plan."""
    dtype: np.dtype[Any]
    """Token type of its segments."""
    is_mask: bool = False
    """Whether it has a value for each token of another output, and shares that one's provenance and bad records."""
    head: SourceFile | None = None
    """The header of a `.pbin`, which is written after all tokens are known; None for a `.bin` and an `.idx`."""
    list_path: str | None = None
    """A list of this and further datasets, which is published with it; the others are complete before."""
    segments: list[Segment] = field(default_factory=list)
    sources: list[SourceFile] = field(default_factory=list)
    """The files of which its token file consists: the header, the tokens of each segment, what follows them."""
    begins: list[int] = field(default_factory=lambda: [0])
    """Where each source begins in the token file, and where the last one ends."""

    def __post_init__(self) -> None:
        if self.head is not None:
            self.append_source(self.head)

    @cached_property
    def artifact(self) -> Artifact:
        """Its files, with the manifest, under all names that they may have."""
        *others, completing = map(self.final, self.all_suffixes)
        listed = () if self.list_path is None else (self.list_path,)
        finals = (*others, *listed, completing, manifest_path(self.prefix))
        return Artifact(finals=finals, plan_id=self.plan_id)

    @property
    def in_bucket(self) -> bool:
        """Whether its files are objects."""
        return self.artifact.in_bucket

    @property
    def all_suffixes(self) -> tuple[str, ...]:
        """Suffixes of all files that it may have, except the manifest's, in the order of publishing."""
        return MEGATRON_SUFFIXES if self.head is None else PBIN_SUFFIXES

    @property
    def suffixes(self) -> list[str]:
        """Suffixes of the files that it has, once all segments are known."""
        has_rows = {
            PROVENANCE_SUFFIX: any(segment.provenance for segment in self.segments),
            QUARANTINE_SUFFIX: any(segment.quarantine for segment in self.segments),
        }
        return [suffix for suffix in self.all_suffixes if has_rows.get(suffix, True)]

    @property
    def token_suffix(self) -> str:
        """The suffix of the file that is assembled from tokens."""
        return "bin" if self.head is None else "pbin"

    @property
    def name(self) -> str:
        """Its name in messages and in the journal; folders may be moved."""
        return os.path.basename(self.prefix)

    def final(self, suffix: str) -> str:
        """Return a file's published path, or an object's address."""
        return f"{self.prefix}.{suffix}"

    def partial(self, suffix: str) -> str:
        """Return where a file is written: on a disk under its partial name, in a bucket under its final one."""
        return self.artifact.partial(self.final(suffix))

    # The token file, by ranges.

    @property
    def token_path(self) -> str:
        """Where the token file is assembled."""
        return self.partial(self.token_suffix)

    @property
    def size_bytes(self) -> int:
        """Size of the token file so far."""
        return self.begins[-1]

    @property
    def ranges(self) -> range:
        """The numbers of all ranges, the last of which may not be full."""
        return ranges_of(0, self.size_bytes)

    def append(self, segment: Segment) -> range:
        """Append a segment; return the numbers of the ranges that became full, but for one with the header."""
        before = self.size_bytes
        self.segments.append(segment)
        self.append_source(segment.bin)
        first = max(before // RANGE_BYTES, int(self.head is not None))
        return range(first, max(first, self.size_bytes // RANGE_BYTES))

    def append_source(self, source: SourceFile) -> None:
        """Append bytes to the token file that belong to no segment."""
        self.sources.append(source)
        self.begins.append(self.size_bytes + source.size_bytes)

    def replace(self, place: int, segment: Segment) -> None:
        """Put a segment of the same size in the place of another."""
        self.segments[place] = segment
        self.sources[place + int(self.head is not None)] = segment.bin

    def sources_of(self, number: int) -> range:
        """Return the numbers of the sources that a range needs."""
        first = bisect_right(self.begins, begin_of(number)) - 1
        return range(first, min(bisect_left(self.begins, begin_of(number + 1)), len(self.sources)))

    def range_task(self, number: int) -> MergeRange:
        """Return the task that merges a range."""
        begin, end = begin_of(number), begin_of(number + 1)
        sources = [(self.sources[each], self.begins[each]) for each in self.sources_of(number)]
        pieces = ((file, max(0, begin - start), min(end - start, file.size_bytes)) for file, start in sources)
        return MergeRange(output=self.token_path, begin=begin, pieces=tuple(pieces))
