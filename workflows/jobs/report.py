"""Write the report of one or several datasets: one pass over the tokens of each, and one page of all."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import dsindex
from dsindex.amounts import count
from dsindex.errors import InputError, OutputError
from dsindex.inspection.kinds import tell_kind
from dsindex.objects.urls import is_url
from dsindex.regular_files import open_file
from dsindex.reporting.caches import read_drawn
from dsindex.storage import atomic_writer, make_folder, output_error, require_path
from dsindex.text.tokenizer import load_tokenizer
from workflows.jobs.report_dataset import DatasetReport, Room, report_dataset
from workflows.jobs.report_opening import OpenedDataset
from workflows.reporting.caches import show_caches
from workflows.reporting.drawing import require_drawing
from workflows.reporting.model import Page
from workflows.reporting.overview import show_overview
from workflows.reporting.page import HEAD_BYTES, is_page, write_page

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from workflows.progress.reporter import Reporter
    from workflows.reporting.model import Block

MOST_DATASETS = 24
"""Datasets on one page, so that it stays below 3 MB."""
LARGEST_PAGE_BYTES = 64 << 20
"""The limit on the size of a file that may be an earlier report."""
TEXT_BYTES = 1_200_000
"""Bytes of all examples together."""
TEXT_BYTES_OF_DATASET = 250_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """What the report is made with."""

    output: str
    """The page to write."""
    tokenizer_model: str | None = None
    """The tokenizer of all datasets; None for that in each manifest."""
    cache: tuple[str, ...] = ()
    """Folders of index caches of the datasets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenReport:
    """The page that was written."""

    output: str
    size_bytes: int
    datasets: tuple[DatasetReport, ...]
    findings: tuple[str, ...]
    """Sentences about caches that cannot be read."""

    @property
    def ok(self) -> bool:
        """Whether nothing was found wrong."""
        return not self.findings and not any(dataset.section.findings for dataset in self.datasets)


def run_report(paths: Sequence[str], options: ReportOptions, *, reporter: Reporter) -> WrittenReport:
    """Measure datasets and write a page about them. Damage of a dataset is a finding on the page.

    Args:
        paths: Datasets as `dsindex inspect` knows them: prefixes, their files, or `.pbin` files, here or in object
            stores.
        options: The page, and what it is made with.
        reporter: Shows progress.

    Raises:
        MissingPackageError: If the package that draws pictures is not installed.
        InputError: If one is not there, is no dataset of tokens, or is given twice; or a folder has no caches of them.
        FormatError: If a file is in none of the known formats.
        TokenizerError: If the tokenizer that was given cannot be read.
        OutputError: If the page is someone else's file, or cannot be written.
    """
    require_drawing()
    _check_output(options.output)
    if len(paths) > MOST_DATASETS:
        msg = f"expected at most {MOST_DATASETS} datasets on a page, got {len(paths)}; write several reports"
        raise InputError(msg)
    subjects = [tell_kind(path) for path in paths]
    opened = [OpenedDataset.open(subject, options.tokenizer_model) for subject in subjects]
    _refuse_twice(opened)
    if options.tokenizer_model is not None:
        load_tokenizer(options.tokenizer_model)  # even if no dataset can be opened
    closing: list[Block] = []
    findings: list[str] = []
    for cache in options.cache:
        drawn = read_drawn(cache, lambda named: _lengths_of(opened, named))
        closing += show_caches(cache, drawn)
        findings += drawn.findings
    folder = os.path.dirname(os.path.abspath(options.output))
    make_folder(folder)
    if not os.access(folder, os.W_OK):
        raise output_error(options.output, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
    room = Room(
        text_bytes=min(TEXT_BYTES_OF_DATASET, TEXT_BYTES // len(opened)),
        is_small=len(opened) > 4,
        folder=folder,
    )
    reporter.stage("read", total=sum(each.num_tokens for each in opened), unit="tokens")
    reports = [report_dataset(each, room, advance=reporter.advance) for each in opened]
    reporter.end_stage()
    names = [report.section.name for report in reports]
    page = write_page(
        Page(
            title=names[0] if len(names) == 1 else f"{names[0]} and {count(len(names) - 1, 'other dataset')}",
            version=dsindex.__version__,
            overview=show_overview([report.summary for report in reports if report.summary is not None]),
            sections=tuple(report.section for report in reports),
            closing=tuple(closing),
        )
    )
    _check_output(options.output)
    with atomic_writer(options.output) as file:
        file.write(page)
    return WrittenReport(output=options.output, size_bytes=len(page), datasets=tuple(reports), findings=tuple(findings))


def _check_output(path: str) -> None:
    """Refuse to replace a file unless it is a report that nobody has changed.

    Raises:
        OutputError: If there is such a file, or it is an address.
    """
    require_path(path)
    if not os.path.basename(path) or os.path.isdir(path):
        msg = f"{path}: expected the name of a file to write, got a folder; add a name such as report.html"
        raise OutputError(msg)
    if not os.path.lexists(path):
        return
    if os.path.isfile(path) and not os.path.islink(path) and _read_if_page(path):
        return
    msg = f"{path}: exists already and is not an unchanged report of dsindex; remove it, or choose another --output"
    raise OutputError(msg)


def _read_if_page(path: str) -> bool:
    try:
        with open_file(path) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            return HEAD_BYTES < size_bytes <= LARGEST_PAGE_BYTES and is_page(file.read())
    except OSError as error:
        msg = f"{path}: exists already and cannot be read ({error.strerror}); choose another --output"
        raise OutputError(msg) from error


def _refuse_twice(opened: Sequence[OpenedDataset]) -> None:
    known: set[str] = set()
    for each in opened:
        file = each.files[-1] if is_url(each.files[-1]) else os.path.realpath(each.files[-1])
        if file in known:
            msg = f"{each.name}: expected every dataset once, got it twice; leave one out"
            raise InputError(msg)
        known.add(file)


def _lengths_of(opened: Sequence[OpenedDataset], named: str) -> NDArray[np.int32] | None:
    """Return the lengths of the sequences of the dataset that a description names; None if it is none of them."""
    fitting = [each for each in opened if each.sequence_lengths is not None and each.is_at(named)]
    if not fitting:  # on another machine, data are known by their names
        base = os.path.basename(named)
        fitting = [
            each for each in opened if each.sequence_lengths is not None and os.path.basename(each.prefix) == base
        ]
    return fitting[0].sequence_lengths if len(fitting) == 1 else None
