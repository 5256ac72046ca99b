"""`dsindex build --check`: checks everything that a build needs, on every node, and builds nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsindex.amounts import align, count
from dsindex.dtypes import dtype_for_vocabulary
from dsindex.engine.nodes import NO_NODE, SAME_VERSIONS, check_nodes
from dsindex.engine.room import check_room
from dsindex.engine.sample import examine_sample
from dsindex.engine.source import open_source, select, wanted_columns
from dsindex.engine.start import wait_for_nodes
from dsindex.execution.choice import make_executor
from dsindex.execution.local import available_cpus
from dsindex.options.config import work_folder_path
from dsindex.store.storage import nearest_folder
from dsindex.store.urls import folder_of
from dsindex.tools.estimate import run_sample

if TYPE_CHECKING:
    from dsindex.engine.nodes import NodeReport
    from dsindex.engine.room import Estimate
    from dsindex.engine.source import TextSource
    from dsindex.execution.progress.reporter import Reporter
    from dsindex.options.build import BuildConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """The findings of `dsindex build --check`."""

    source: TextSource
    estimate: Estimate
    nodes: tuple[NodeReport, ...]
    faults: tuple[str, ...]
    """Sentences; if there are none, the build can begin."""


def run_check(config: BuildConfig, *, reporter: Reporter) -> CheckReport:
    """Check everything that a build needs, on every node, and build nothing.

    A cluster without nodes is asked for one.

    Args:
        config: The options of the build.
        reporter: Shows that the check waits for a node.

    Raises:
        DsindexError: If the driver's node itself lacks something, so that the others cannot be checked.
    """
    source = open_source(config, append_eod=config.append_eod, columns=wanted_columns(config))
    selection, names = select(config, source.tokenizer), config.output_names
    examine_sample(source.inputs, names, source.tokenizer, source.engine, selection)
    estimate = run_sample(source, names, selection, workers=config.workers or available_cpus()).estimate
    output_folder = folder_of(config.output_prefix)
    work_dir = work_folder_path(config)
    estimate = estimate.scaled(sum(sample.high - sample.low for sample in config.samples))
    check_room(
        estimate,
        itemsize=dtype_for_vocabulary(source.tokenizer.vocabulary_size).itemsize,
        num_keys=len(names),
        output_folder=nearest_folder(output_folder),
        work_dir=nearest_folder(work_dir),
    )
    executor = make_executor(config)
    try:
        reporter.follow(executor)
        wait_for_nodes(executor, reporter, lambda: 1)
        folders = (work_dir, output_folder)
        nodes = check_nodes(executor, source, folders, keys=names, thorough=True, selection=selection)
    finally:
        executor.close()
    faults = [fault for node in nodes for fault in node.faults]
    if not nodes:
        faults.append(NO_NODE)
    return CheckReport(source=source, estimate=estimate, nodes=tuple(nodes), faults=tuple(faults))


def describe_check(report: CheckReport) -> list[str]:
    """Return the table of nodes and a summary as text, without the faults."""
    source = report.source
    rows = [["node", "inputs", "free for shards and output", "versions", "tokenizer"]]
    rows += [_row(node, len(source.inputs)) for node in report.nodes]
    lines = align(rows, texts=range(5))
    lines.append(
        f"{count(len(source.inputs), 'input')}, {source.total_bytes / 1e9:,.2f} GB, about "
        f"{report.estimate.shown_documents} documents and {report.estimate.shown_tokens} tokens; "
        f"engine {source.engine.name}"
    )
    lines.append("nothing was built" if report.faults else "all is well; nothing was built")
    return lines


def _row(report: NodeReport, num_inputs: int) -> list[str]:
    facts = report.facts
    if facts is None:
        return [report.node, "no answer", "", "", ""]
    sizes = ["no folder" if size is None else f"{size / 1e9:,.1f} GB" for size in facts.free_bytes]
    free = " and ".join(sizes) or "in a bucket"
    versions = ", ".join(f"{name} {facts.versions[name]}" for name in ("python", "dsindex", *SAME_VERSIONS[:2]))
    return [report.node, f"{facts.num_readable:,} of {num_inputs:,}", free, versions, facts.tokenizer]
