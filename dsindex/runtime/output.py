"""A dataset that a job makes: the names of its files, its parts as they are known, and how it is published.

On a disk, files are assembled beside the output (a rename cannot cross file systems) as `<final>.<plan id>.partial`: a
leftover process of another plan cannot write there, and one of the same plan would write the same bytes. In a bucket,
an object appears complete under its final name; the one that completes a dataset is written last.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dsindex.errors import MissingObjectError
from dsindex.formats.manifest import manifest_path
from dsindex.runtime.tasks import MergeRange
from dsindex.store.local import DIGEST_BLOCK_BYTES, holds_writes
from dsindex.store.protocol import store_of
from dsindex.store.urls import with_suffix

if TYPE_CHECKING:
    import numpy as np

    from dsindex.runtime.tasks import Part, PartFile, ShardRows
    from dsindex.runtime.work_folder import Ledger
    from dsindex.store.local import StoredFile

RANGE_BYTES = DIGEST_BLOCK_BYTES
"""Size of the ranges of a token file, so that each has one digest."""
PROVENANCE_SUFFIX = "provenance.parquet"
QUARANTINE_SUFFIX = "quarantine.jsonl.zst"
MEGATRON_SUFFIXES = ("bin", PROVENANCE_SUFFIX, QUARANTINE_SUFFIX, "idx")
"""In the order of publishing: if the last file exists, the others are complete."""
PBIN_SUFFIXES = (PROVENANCE_SUFFIX, QUARANTINE_SUFFIX, "pbin")


@dataclass(kw_only=True, eq=False)
class Output:
    """A dataset that a job makes of parts, which are added in their order."""

    prefix: str
    """Absolute path or address without suffix."""
    plan_id: str
    """Id of the job's plan."""
    dtype: np.dtype[Any]
    """Token type of its parts."""
    is_mask: bool = False
    """Whether it has a value for each token of another output, and shares that one's provenance and bad records."""
    head: PartFile | None = None
    """The header of a `.pbin`, which is written before what is behind the tokens; None for a `.bin` and an `.idx`."""
    parts: list[Part] = field(default_factory=list)
    provenance: list[ShardRows] = field(default_factory=list)
    quarantine: list[ShardRows] = field(default_factory=list)
    """Shards' bad records."""
    digests: dict[str, StoredFile] = field(default_factory=dict)
    """Its files by suffix, once they are complete."""

    def __post_init__(self) -> None:
        self.token_files: list[PartFile] = []
        """What the token file is assembled from."""
        self.begins = [0]
        """Where each of them begins in the token file, and where the last one ends."""
        self.is_begun = False
        """Whether this run has begun the token file."""
        self._num_ranges = 0
        """Ranges that `take_ranges` has returned."""
        if self.head is not None:
            self.add_file(self.head)

    def add(self, part: Part) -> None:
        """Add the next part."""
        self.parts.append(part)
        self.add_file(part.bin)

    def add_file(self, file: PartFile) -> None:
        """Add the next file of which the token file consists."""
        self.token_files.append(file)
        self.begins.append(self.begins[-1] + file.size_bytes)

    @property
    def all_suffixes(self) -> tuple[str, ...]:
        """Suffixes of all files that it may have, except the manifest's, in the order of publishing."""
        return MEGATRON_SUFFIXES if self.head is None else PBIN_SUFFIXES

    @property
    def suffixes(self) -> list[str]:
        """Suffixes of the files that it has, once all parts are known."""
        absent = {PROVENANCE_SUFFIX: not self.provenance, QUARANTINE_SUFFIX: not self.quarantine}
        return [suffix for suffix in self.all_suffixes if not absent.get(suffix)]

    @property
    def token_suffix(self) -> str:
        """The suffix of the file that is assembled from tokens."""
        return "bin" if self.head is None else "pbin"

    @cached_property
    def in_bucket(self) -> bool:
        """Whether its files are objects."""
        return holds_writes(self.prefix)

    @property
    def name(self) -> str:
        """Its name in messages and in the ledger; folders may be moved."""
        return os.path.basename(self.prefix)

    @property
    def paths(self) -> tuple[str, ...]:
        """Final paths of all its files, the manifest's last."""
        return (*map(self.final, self.all_suffixes), manifest_path(self.prefix))

    def final(self, suffix: str) -> str:
        """Return a file's published path, or an object's address."""
        return with_suffix(self.prefix, f".{suffix}")

    def partial(self, suffix: str, plan_id: str | None = None) -> str:
        """Return where this plan, or another, writes a file: on a disk its partial name, in a bucket its final one."""
        final = self.final(suffix)
        return final if self.in_bucket else f"{final}.{plan_id or self.plan_id}.partial"

    @property
    def token_file(self) -> str:
        """Where the tokens are assembled."""
        return self.partial(self.token_suffix)

    def is_as_recorded(self, ledger: Ledger) -> bool:
        """Tell whether the files and ranges that an earlier run recorded are there."""
        files, ranges = ledger.files[self.name], ledger.ranges[self.name]
        has_files = all(self._find_size(suffix) == file.size_bytes for suffix, file in files.items())
        return has_files and (not ranges or self._find_size(self.token_suffix) > max(ranges) * RANGE_BYTES)

    def _find_size(self, suffix: str) -> int:
        """Return the size of a file, published or not yet; -1 if it is not there."""
        for path in (self.partial(suffix), self.final(suffix)):
            # On NFS, only opening a file makes sure that the server is asked.
            with contextlib.suppress(OSError, MissingObjectError), store_of(path).open(path) as file:
                return file.size_bytes
        return -1

    def take_ranges(self, *, is_whole: bool) -> range:
        """Return the numbers of the ranges of the token file that became full; of all, if nothing more is added."""
        if is_whole:
            return ranges_of(0, self.begins[-1])
        first, self._num_ranges = self._num_ranges, self.begins[-1] // RANGE_BYTES
        return range(max(first, int(self.head is not None)), self._num_ranges)  # a header is written at the end

    def files_of(self, number: int) -> range:
        """Return the numbers of the files that a range of the token file needs."""
        first = bisect_right(self.begins, number * RANGE_BYTES) - 1
        return range(first, min(bisect_left(self.begins, (number + 1) * RANGE_BYTES), len(self.token_files)))

    def range_of(self, number: int) -> MergeRange:
        """Return the task that merges a range of the token file."""
        begin, end = number * RANGE_BYTES, (number + 1) * RANGE_BYTES
        files = [(self.token_files[each], self.begins[each]) for each in self.files_of(number)]
        pieces = ((file, max(0, begin - start), min(end - start, file.size_bytes)) for file, start in files)
        return MergeRange(output=self.token_file, number=number, begin=begin, pieces=tuple(pieces))


def ranges_of(begin: int, end: int) -> range:
    """Return the numbers of the ranges that the bytes [begin, end) of a token file overlap."""
    return range(begin // RANGE_BYTES, -(-end // RANGE_BYTES))
