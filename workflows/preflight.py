"""A look before hours are spent: does the fast engine agree with the reference, how large will the output be?

And, for `dsindex build --check`, does every node of the cluster see the inputs, the folders and the same versions?
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dsindex.dtypes import dtype_for_vocabulary
from workflows.executors import make_executor
from workflows.nodes import SAME_VERSIONS, check_nodes, nearest_folder
from workflows.source import check_room, open_source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.text.engines import Engine
    from dsindex.text.patterns import TextPattern
    from dsindex.text.tokenizer import Tokenizer
    from workflows.config import BuildConfig
    from workflows.nodes import NodeReport
    from workflows.plan import InputFile
    from workflows.source import TextSource

AUDITED_TEXT_BYTES = 16 << 10
"""A long text of the sample is cut here: the audit costs time with `tokenizers`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a sample says of the whole."""

    tokens: float
    """Over all keys, EOD included."""
    documents: float
    """Over all inputs."""


def examine_sample(
    inputs: Sequence[InputFile],
    keys: Sequence[str],
    tokenizer: Tokenizer,
    engine: Engine,
    *,
    pattern: TextPattern | None = None,
) -> Estimate:
    """Audit the engine on a sample spread over all inputs, and estimate the output's size from it.

    Bad records are passed over here: the shard that meets one says so with its place.

    Raises:
        TokenizerError: If the engines differ.
    """
    from dsindex.text.audit import SAMPLE_MAX_BYTES, audit, clip_texts, sample_offsets
    from dsindex.text.encoders import make_encoder
    from dsindex.text.records import read_records

    sizes = [file.size_bytes for file in inputs]
    encoder = make_encoder(tokenizer, engine)
    sampled_bytes = tokens = documents = 0
    for number, begin, end in sample_offsets(sizes):
        for block in read_records(inputs[number].absolute_path, begin, end, keys=keys, pattern=pattern):
            documents += len(block.offsets)
            for column in block.columns.values():
                texts = clip_texts(column.texts, text_bytes=AUDITED_TEXT_BYTES, total_bytes=SAMPLE_MAX_BYTES)
                audit(tokenizer, engine, texts)
                batch = encoder.encode(texts)
                kept = int(np.sum(batch.lengths)) + len(batch.lengths)
                tokens += kept * column.texts.nbytes // max(1, texts.nbytes)
        sampled_bytes += end - begin  # on average, the lines that begin in a range are as long as it
    if not documents:
        return Estimate(tokens=sum(sizes) / 3, documents=sum(sizes) / 1000)
    scale = sum(sizes) / sampled_bytes
    return Estimate(tokens=tokens * scale, documents=documents * scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """What `dsindex build --check` found."""

    source: TextSource
    estimate: Estimate
    nodes: tuple[NodeReport, ...]
    faults: tuple[str, ...]
    """Sentences; none, and the build may begin."""


def run_check(config: BuildConfig) -> CheckReport:
    """Look at everything that a build needs, on every node, and build nothing.

    Raises:
        DsindexError: If the driver's own node lacks what is needed to ask the others.
    """
    source = open_source(config, append_eod=config.append_eod)
    estimate = examine_sample(source.inputs, config.json_keys, source.tokenizer, source.engine)
    output_folder = os.path.dirname(os.path.abspath(config.output_prefix))
    work_dir = os.path.abspath(config.work_dir or f"{config.output_prefix}.build")
    check_room(
        estimate,
        itemsize=dtype_for_vocabulary(source.tokenizer.vocabulary_size).itemsize,
        num_keys=len(config.json_keys),
        output_folder=nearest_folder(output_folder),
        work_dir=nearest_folder(work_dir),
    )
    executor = make_executor(config)
    try:
        nodes = check_nodes(executor, source, (work_dir, output_folder), keys=config.json_keys, thorough=True)
    finally:
        executor.close()
    faults = [fault for node in nodes for fault in node.faults]
    if not nodes:
        faults.append("the cluster has no node with CPUs; add one, and check again")
    return CheckReport(source=source, estimate=estimate, nodes=tuple(nodes), faults=tuple(faults))


def describe_check(report: CheckReport) -> str:
    """Give the table for people, without the faults."""
    source = report.source
    rows = [["node", "inputs", "free for shards and output", "versions", "tokenizer"]]
    rows += [_row(node, len(source.inputs)) for node in report.nodes]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.append(
        f"{len(source.inputs):,} inputs, {source.total_bytes / 1e9:,.2f} GB, about {report.estimate.documents:,.0f} "
        f"documents and {report.estimate.tokens:,.0f} tokens; engine {source.engine.name}"
    )
    lines.append("nothing was built" if report.faults else "all is well; nothing was built")
    return "\n".join(lines) + "\n"


def _row(report: NodeReport, num_inputs: int) -> list[str]:
    facts = report.facts
    if facts is None:
        return [report.node, "no answer", "", "", ""]
    free = " and ".join("no folder" if size is None else f"{size / 1e9:,.1f} GB" for size in facts.free_bytes)
    versions = ", ".join(f"{name} {facts.versions[name]}" for name in ("python", "dsindex", *SAME_VERSIONS[:2]))
    return [report.node, f"{facts.num_readable:,} of {num_inputs:,}", free, versions, facts.tokenizer]
