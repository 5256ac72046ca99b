"""`dsindex rest`: what a job has not read, as datasets without tokens of their own.

In epoch k of a dataset, that is what was read fewer than k times; sequences that the first job did not have count as
read in the epochs before. A view's `.idx` has the unread pieces in the order of the dataset, each as a document.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from dsindex.amounts import count
from dsindex.dtypes import starts_of
from dsindex.errors import FormatError, InputError, OutputError
from dsindex.execution.report import Report
from dsindex.formats.mmididx import BOUNDARY, LENGTH, POINTER, IndexHeader, check_index, read_index
from dsindex.formats.view import View, view_path
from dsindex.index.cache import read_description
from dsindex.index.continuing import read_runs, tokens_by_times
from dsindex.index.epochs import WHOLE, SampleRule, split_bounds
from dsindex.jobs.continuing import read_first_job, read_old_index
from dsindex.store.storage import make_folder, open_file, output_error, write_whole
from dsindex.store.urls import as_prefix, refuse_address

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from dsindex.jobs.continuing import FirstJob
    from dsindex.options.index import RestConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RestOfDataset:
    """The view of one dataset."""

    prefix: str
    source: str
    num_pieces: int
    num_tokens: int
    num_begun: int
    """Pieces whose document began in what was read."""
    tokens_by_times: dict[int, int]
    """Number of times that tokens of the dataset were read → how many tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestResult(Report):
    """The views of what a job has not read."""

    views: tuple[RestOfDataset, ...]
    consumed_samples: int
    sequence_length: int

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The views."""
        return tuple(view.prefix for view in self.views)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self.prefixes)})"

    def lines(self) -> list[str]:
        """Return a summary for people."""
        lines = []
        for view in self.views:
            read = ", ".join(f"{tokens:,} read {_times(times)}" for times, tokens in view.tokens_by_times.items())
            lines.append(
                f"{view.prefix}: {view.num_tokens:,} tokens in {count(view.num_pieces, 'piece')}, of which "
                f"{view.num_begun:,} begin inside a document"
            )
            lines.append(f"  of {view.source}: {read}")
        number = self.consumed_samples
        blend = " ".join(f"W {prefix}" for prefix in self.prefixes)
        return [
            *lines,
            f"next: dsindex index --data-path {blend} --consumed-samples {number} …, with the flags of the new job",
            f"note: the samples before {number} will be placeholders, so that job cannot go back before them",
            "note: a piece's first token is predicted from the end of another piece",
            f"note: samples had {self.sequence_length} tokens; the learning-rate schedule counts samples, not tokens",
        ]


def _times(number: int) -> str:
    return {0: "not yet", 1: "once", 2: "twice"}.get(number, f"{number} times")


def run_rest(config: RestConfig) -> RestResult:
    """Write a view of each dataset of a job.

    Raises:
        InputError: If there is no such job, it has not so many samples, or a dataset is not on this machine.
        FormatError: If its caches are damaged, or do not fit the datasets.
        OutputError: If other files are in the place of a view.
    """
    first = read_first_job(config.cache, flag="CACHE")
    consumed = config.consumed_samples
    if consumed > first.num_samples:
        raise InputError(
            f"--consumed-samples: expected at most the {first.num_samples} samples of {first.description}, "
            f"got {consumed}"
        )
    sources = _sources(config, first)
    names = [os.path.basename(source) for source in sources]
    names = [f"{place}-{name}" if names.count(name) > 1 else name for place, name in enumerate(names)]
    views = []
    for place, (source, taken) in enumerate(zip(sources, first.taken(consumed), strict=True)):
        output = config.output_prefix if first.blend is None else f"{config.output_prefix}_{names[place]}"
        view = View(source=os.path.abspath(source), consumed_samples=consumed, sequence_length=first.sequence_length)
        views.append((*_find_rest(first, place, source, taken, output), view))
    for found, index, view in views:
        _check_place(list(_files(found, index, view)))
    for found, index, view in views:
        _write(list(_files(found, index, view)))
    return RestResult(
        views=tuple(found for found, _, _ in views),
        consumed_samples=consumed,
        sequence_length=first.sequence_length,
    )


def _sources(config: RestConfig, first: FirstJob) -> list[str]:
    if config.data_path is not None:
        if len(config.data_path) != len(first.paths):
            raise InputError(
                f"--data-path: expected the {len(first.paths)} datasets of the job in its order "
                f"({', '.join(first.paths)}), got {len(config.data_path)}"
            )
        sources = [as_prefix(path) for path in config.data_path]
    else:
        known = zip(first.prefixes, first.paths, strict=True)
        sources = [there if there and os.path.isfile(f"{there}.idx") else typed for there, typed in known]
    for source in sources:
        refuse_address(source, "expected a dataset on this machine, as a view is a link, got an object; use a copy")
        if not os.path.isfile(f"{source}.idx"):
            raise InputError(f"{source}.idx: no such file; give the datasets as --data-path, in the order of the blend")
    return sources


def _find_rest(first: FirstJob, place: int, source: str, taken: int, output: str) -> tuple[RestOfDataset, bytes]:
    """Return the rest of a dataset and the content of its view's `.idx`."""
    from dsindex.index.arrays import build_sample_index  # loads numba, only when needed

    index = read_index(f"{source}.idx")
    check_index(f"{source}.idx", index, bin_size_bytes=os.path.getsize(f"{source}.bin"), may_be_view=True)
    matrix = read_description(first.members[place].description).get("split_matrix")
    begin, end = split_bounds(WHOLE if matrix is None else matrix[0], index.header.num_sequences)
    lengths = np.array(index.sequence_lengths[begin:end], np.int32)
    old = read_old_index(first.members[place], lengths, begin=begin, place=source)
    documents, samples, shuffle = old.open()
    rule = SampleRule(sequence_length=first.sequence_length, extra_token=first.extra_token)
    if not np.array_equal(build_sample_index(lengths, documents, old.num_samples, rule=rule, begin=begin), samples):
        raise FormatError(
            f"{source}: its sequences have other lengths than when {old.paths[1]} was built, so what was read is not "
            "known; use the dataset as it was, which may only have grown at its end"
        )
    places, times = read_runs(lengths, documents, shuffle[:taken], begin=begin, sequence_length=first.sequence_length)
    homes = starts_of(lengths)
    low, high = homes[[old.begin - begin, old.end - begin]].tolist()
    epoch = taken * first.sequence_length // max(1, high - low) + 1
    missing = np.maximum(0, epoch - times[:-1])
    is_new = (places[:-1] < low) | (places[:-1] >= high)
    missing[is_new] = np.minimum(missing[is_new], 1)
    runs = [_joined(places, missing >= level, homes) for level in range(1, int(missing.max(initial=0)) + 1)]
    empty = np.zeros(0, np.int64)
    begins = np.concatenate([empty, *(run[0] for run in runs)])
    sizes = np.concatenate([empty, *(run[1] for run in runs)]) - begins
    sequences = np.searchsorted(homes, begins, side="right") - 1
    offsets = begins - homes[sequences]
    pointers = np.asarray(index.sequence_pointers)[sequences + begin] + offsets * index.dtype.itemsize
    header = IndexHeader(dtype=index.dtype, num_sequences=len(sizes), num_boundaries=len(sizes) + 1, has_modes=False)
    sections = sizes.astype(LENGTH), pointers.astype(POINTER), np.arange(len(sizes) + 1, dtype=BOUNDARY)
    rest = RestOfDataset(
        prefix=output,
        source=source,
        num_pieces=len(sizes),
        num_tokens=int(sizes.sum()),
        num_begun=int((offsets > 0).sum()),
        tokens_by_times=tokens_by_times(places, times),
    )
    return rest, header.to_bytes() + b"".join(section.tobytes() for section in sections)


def _joined(
    places: NDArray[np.int64], is_wanted: NDArray[np.bool_], homes: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return begins and ends of runs that are wanted, joined where they follow each other in a sequence."""
    is_first = np.isin(places[:-1], homes)
    before = np.concatenate([[False], is_wanted[:-1]])
    begins = places[:-1][is_wanted & (~before | is_first)]
    after = np.concatenate([is_wanted[1:], [False]])
    next_first = np.concatenate([is_first[1:], [True]])
    ends = places[1:][is_wanted & (~after | next_first)]
    return begins, ends


def _files(rest: RestOfDataset, index: bytes, view: View) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a view in the order in which they are written, the link to the `.bin` as its target."""
    yield view_path(rest.prefix), view.to_bytes()
    yield f"{rest.prefix}.bin", os.fsencode(os.path.realpath(f"{rest.source}.bin"))
    yield f"{rest.prefix}.idx", index


def _there(path: str) -> bytes | None:
    """Return the content of a file, or the target of a link; None if there is none."""
    try:
        if os.path.islink(path):
            return os.fsencode(os.readlink(path))
        with open_file(path) as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise output_error(path, error) from error


def _check_place(files: Sequence[tuple[str, bytes]]) -> None:
    """Refuse to replace other files.

    Raises:
        OutputError: Naming the first.
    """
    for path, content in files:
        if _there(path) not in {None, content}:
            raise OutputError(
                f"{path}: exists already with other content; remove it, or choose another --output-prefix"
            )


def _write(files: Sequence[tuple[str, bytes]]) -> None:
    for path, content in files:
        make_folder(os.path.dirname(path) or ".")
        if _there(path) == content:
            continue
        if path.endswith(".bin"):
            try:
                os.symlink(content, path)
            except OSError as error:
                raise output_error(path, error) from error
        else:
            write_whole(path, content, writer=xxhash.xxh3_128_hexdigest(content))
