"""`dsindex build --check`: checks everything that a build needs, and builds nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsindex.amounts import count
from dsindex.dtypes import dtype_for_vocabulary
from dsindex.engine.inputs import kept_share
from dsindex.engine.sample import examine_sample
from dsindex.engine.source import open_source, select, wanted_columns
from dsindex.engine.start import check_room, shard_copies
from dsindex.machine import available_cpus
from dsindex.options.config import work_folder_path
from dsindex.store.storage import nearest_folder
from dsindex.store.urls import folder_of
from dsindex.tools.estimate import run_sample

if TYPE_CHECKING:
    from dsindex.engine.source import TextSource
    from dsindex.engine.start import Estimate
    from dsindex.options.build import BuildConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """The findings of `dsindex build --check`."""

    source: TextSource
    estimate: Estimate


def run_check(config: BuildConfig) -> CheckReport:
    """Check everything that a build needs, and build nothing.

    Args:
        config: The options of the build.

    Raises:
        DsindexError: If the driver's node itself lacks something, so that the others cannot be checked.
    """
    source = open_source(config, append_eod=config.append_eod, columns=wanted_columns(config))
    selection, names = select(config, source.tokenizer), config.output_names
    examine_sample(source.inputs, names, source.tokenizer, source.engine, selection)
    estimate = run_sample(source, names, selection, workers=config.workers or available_cpus()).estimate
    output_folder = folder_of(config.output_prefix)
    work_dir = work_folder_path(config)
    estimate = estimate.scaled(kept_share(config.samples))
    check_room(
        estimate,
        itemsize=dtype_for_vocabulary(source.tokenizer.vocabulary_size).itemsize,
        num_keys=len(names),
        output_folder=nearest_folder(output_folder),
        work_dir=nearest_folder(work_dir),
        copies=shard_copies(config),
    )
    return CheckReport(
        source=source,
        estimate=estimate,
    )


def describe_check(report: CheckReport) -> list[str]:
    """Return a summary as text."""
    source = report.source
    summary = (
        f"{count(len(source.inputs), 'input')}, {source.total_bytes / 1e9:,.2f} GB, about "
        f"{report.estimate.shown_documents} documents and {report.estimate.shown_tokens} tokens; "
        f"engine {source.engine.name}"
    )
    return [summary, "all is well; nothing was built"]
