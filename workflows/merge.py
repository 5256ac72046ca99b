"""The driver of `dsindex merge`: many datasets to one, through the same ranges, ledger and publishing as a build."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsindex.errors import FormatError, InputError, OutputError
from dsindex.merge import Part, merged_header, open_part
from dsindex.storage import free_bytes, make_folder
from workflows.assemble import assemble
from workflows.dispatch import DispatchStatistics, RetryPolicy
from workflows.executors import make_executor
from workflows.manifest import describe_files, encode_manifest
from workflows.outputs import MEGATRON_SUFFIXES, Output, find_finished, recorded_files, remove_outputs
from workflows.plan import InputFile
from workflows.progress import displays_of_job
from workflows.publishing import Dataset, Target, publish
from workflows.run_record import describe_run
from workflows.workfolder import Plan, open_ledger, own_work_folder, remove_work_folder

if TYPE_CHECKING:
    from workflows.config import MergeConfig
    from workflows.progress import Reporter
    from workflows.publishing import FileDigest


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeReport:
    """How a merge ended."""

    prefix: str
    num_inputs: int
    num_documents: int
    num_sequences: int
    num_tokens: int
    files: dict[str, FileDigest]
    already_complete: bool


def run_merge(config: MergeConfig, *, reporter: Reporter) -> MergeReport:
    """Merge datasets in the order given, continuing what an earlier run of the same command left.

    Raises:
        FormatError: If an input is damaged, or differs from the first in token type or in having modes.
        DsindexError: For everything else that a user can mend; nothing is then under a final name.
    """
    prefixes = [_without_suffix(path) for path in config.input]
    parts = tuple(_open(prefix) for prefix in prefixes)
    merged_header(parts)
    prefix = os.path.abspath(config.output_prefix)
    if prefix in {os.path.abspath(path) for path in prefixes}:
        msg = f"{config.output_prefix}: expected an output that is none of the inputs; choose another --output-prefix"
        raise OutputError(msg)
    inputs = tuple(_input_file(path) for given in prefixes for path in (f"{given}.bin", f"{given}.idx"))
    plan = Plan(settings={"output-prefix": prefix}, inputs=inputs)
    work_dir = os.path.abspath(config.work_dir or f"{config.output_prefix}.build")
    output = Output(prefix=prefix, suffixes=MEGATRON_SUFFIXES)
    if config.fresh:
        remove_outputs([output], work_dir)
    manifests = find_finished([output], plan, work_dir, may_grow=False)
    if manifests is not None:
        if not config.keep_shards:
            remove_work_folder(work_dir)  # of a run that was killed after it had published
        return _report(config, manifests[0]["content"], already_complete=True)
    make_folder(os.path.dirname(prefix))
    _check_room(prefix, parts)
    content = _merge(config, plan, parts, prefix=prefix, work_dir=work_dir, reporter=reporter)
    return _report(config, content, already_complete=False)


def _merge(
    config: MergeConfig, plan: Plan, parts: tuple[Part, ...], *, prefix: str, work_dir: str, reporter: Reporter
) -> dict[str, Any]:
    began = time.time()
    statistics = DispatchStatistics()
    target = Target(prefix=prefix, plan_id=plan.plan_id, bound_bytes=sum(part.bin_bytes for part in parts))
    dataset = Dataset(target=target, parts=parts, provenance=None)
    with own_work_folder(work_dir, plan, keep=config.keep_shards), open_ledger(work_dir, plan) as ledger:
        executor = make_executor(config)
        try:
            with reporter.showing(*displays_of_job(work_dir, executor)):
                [files] = assemble(
                    [dataset],
                    executor=executor,
                    ledger=ledger,
                    reporter=reporter,
                    policy=RetryPolicy(deadline_seconds=config.shard_deadline),
                    statistics=statistics,
                )
        finally:
            executor.close()
        for file in plan.inputs:
            if _input_file(file.path).version != file.version:
                msg = f"{file.path}: changed while it was merged; leave inputs alone, then run again with --fresh"
                raise InputError(msg)
        header = dataset.header
        content: dict[str, Any] = {
            "inputs": [
                {"path": path, "documents": part.header.num_documents, "sequences": part.header.num_sequences}
                for path, part in zip(config.input, parts, strict=True)
            ],
            "documents": header.num_documents,
            "sequences": header.num_sequences,
            "tokens": dataset.bin_bytes // header.dtype.itemsize,
            "token_dtype": str(header.dtype),
            "options": {},
            "digests": describe_files(files),
        }
        run = describe_run(plan, began=began, executor=executor, statistics=statistics, shards=len(parts))
        publish(dataset, encode_manifest(content, run))
    return content


def _report(config: MergeConfig, content: dict[str, Any], *, already_complete: bool) -> MergeReport:
    return MergeReport(
        prefix=config.output_prefix,
        num_inputs=len(content["inputs"]),
        num_documents=content["documents"],
        num_sequences=content["sequences"],
        num_tokens=content["tokens"],
        files=recorded_files(content),
        already_complete=already_complete,
    )


def _without_suffix(path: str) -> str:
    """Take `x.bin` or `x.idx` for the prefix `x`: people complete names in a shell."""
    stem, suffix = os.path.splitext(path)
    return stem if suffix in {".bin", ".idx"} else path


def _open(prefix: str) -> Part:
    try:
        return open_part(prefix)
    except FormatError as error:
        msg = f"{error}; check --input, which takes paths without .bin and .idx"
        raise (InputError(msg) if not os.path.exists(f"{prefix}.idx") else error) from error


def _input_file(path: str) -> InputFile:
    try:
        status = os.stat(path)
    except OSError as error:
        msg = f"{path}: cannot be read ({error.strerror}); check --input"
        raise InputError(msg) from error
    return InputFile(
        path=path, absolute_path=os.path.abspath(path), size_bytes=status.st_size, version=str(status.st_mtime_ns)
    )


def _check_room(prefix: str, parts: tuple[Part, ...]) -> None:
    needed = sum(part.bin_bytes + part.header.size_bytes for part in parts)
    free = free_bytes(os.path.dirname(prefix))
    if needed > free:
        msg = (
            f"{prefix}: {needed / 1e9:,.2f} GB are needed, {free / 1e9:,.2f} GB are free; make room, or write elsewhere"
        )
        raise OutputError(msg)
