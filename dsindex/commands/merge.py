"""`dsindex merge`: join datasets, with the same ranges, journal and publishing as a build."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from dsindex.commands.convert import shuffle_indexed
from dsindex.commands.results import JobResult, MadeDataset
from dsindex.datasets.lineage import describe_tokenizers
from dsindex.errors import FormatError, InputError
from dsindex.formats.manifest import Content, Manifest, RecordedInput, RecordedTokenizer, read_manifest
from dsindex.formats.mmididx import read_header
from dsindex.runtime.assembly import Assembly
from dsindex.runtime.dispatch import run_in_order
from dsindex.runtime.executors import Call
from dsindex.runtime.job import Output, open_job
from dsindex.runtime.merge import check_segment
from dsindex.runtime.plan import make_plan
from dsindex.runtime.preflight import require_room
from dsindex.runtime.tasks import Segment, SourceFile
from dsindex.store.errors import reading
from dsindex.store.read import input_status
from dsindex.store.urls import absolute, folder_of, prefix_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.options.datasets import MergeConfig
    from dsindex.runtime.progress import Reporter


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult(JobResult):
    """The result of a merge."""

    already_complete: bool
    notes: tuple[str, ...]


def run_merge(config: MergeConfig, *, reporter: Reporter) -> MergeResult:
    """Merge datasets in the given order; an interrupted run of the same plan is continued.

    Raises:
        FormatError: If an input is damaged, or differs from the first one in token type or sequence modes.
        DsindexError: If the merge cannot be done as requested; no file under a final name is then incomplete.
    """
    prefixes = [absolute(prefix_of(path)) for path in config.input]  # workers may have another working folder
    segments = list(map(open_segment, prefixes))
    refuse_mixture(segments)
    notes = tuple(filter(None, [describe_tokenizers(prefixes)]))
    if config.shuffle_documents is not None:
        result = shuffle_indexed(prefixes, config.output_prefix, config.shuffle_documents)
        return MergeResult(datasets=result.datasets, already_complete=False, notes=notes)
    prefix, dtype = absolute(config.output_prefix), segments[0].header.dtype
    inputs = [input_status(f"{input_prefix}.{suffix}") for input_prefix in prefixes for suffix in ("bin", "idx")]
    plan = make_plan({"command": "merge"}, inputs)
    output = Output(prefix=prefix, plan_id=plan.plan_id, dtype=dtype)
    with open_job(config, plan, [output], reporter=reporter) as job:
        if not job.already_complete:
            needed_bytes = sum(segment.bin.size_bytes + segment.header.size_bytes for segment in segments)
            require_room({folder_of(prefix): needed_bytes}, purpose="the output")
            checks = (
                Call(name=f"check[{number:05}]", place=segment.idx.path, function=check_segment, arguments=(segment,))
                for number, segment in enumerate(segments)
            )
            for segment, _ in zip(segments, run_in_order(job.executor, checks), strict=True):
                output.append(segment)
            [files] = Assembly(job).complete()
            for file in inputs:
                with reading(file.path):
                    status = input_status(file.path)
                if status != file:
                    hint = "rerun the command, and change no input until it ends"
                    raise InputError(f"{file.path}: changed while it was merged", hint=hint)
            manifest = _find_shared_manifest(prefixes, segments)
            content = Content(
                inputs=[
                    RecordedInput(path=path, documents=part.header.num_documents, sequences=part.header.num_sequences)
                    for path, part in zip(config.input, segments, strict=True)
                ],
                documents=sum(segment.header.num_documents for segment in segments),
                sequences=sum(segment.header.num_sequences for segment in segments),
                tokens=sum(map(_count_tokens, segments)),
                token_dtype=dtype.name,
                tokenizer=manifest.content.tokenizer if manifest else None,
                digests=files,
            )
            tokenizer_path = manifest.run.tokenizer_path if manifest else None
            job.publish([content], {}, num_shards=len(segments), tokenizer_path=tokenizer_path)
    return MergeResult(
        datasets=(MadeDataset.from_content(config.output_prefix, job.manifests[0].content),),
        already_complete=job.already_complete,
        notes=notes,
    )


def open_segment(prefix: str) -> Segment:
    """Open one dataset for merging.

    Args:
        prefix: Path or address without `.bin` or `.idx`; for an object, the current version is read.

    Raises:
        FormatError: If its index is damaged or its `.bin` missing.
    """
    idx_path = f"{prefix}.idx"
    header = read_header(idx_path)
    with reading(f"{prefix}.bin", FormatError, hint="a dataset is a .bin and an .idx"):
        status = input_status(f"{prefix}.bin")
    bin_file = SourceFile(path=status.path, size_bytes=status.size_bytes)
    return Segment(bin=bin_file, idx=SourceFile(path=idx_path, size_bytes=header.size_bytes), header=header)


def refuse_mixture(segments: Sequence[Segment]) -> None:
    """Refuse datasets that differ in token type or in having sequence modes.

    Raises:
        FormatError: For the first dataset that differs.
    """
    # A dataset without sequences looks the same with and without modes.
    first = next((segment for segment in segments if segment.header.num_sequences), segments[0])
    for segment in segments:
        has_other_modes = segment.header.num_sequences and segment.header.has_modes != first.header.has_modes
        if has_other_modes or segment.header.dtype != first.header.dtype:
            raise FormatError(
                f"{segment.idx.path} has {_describe(segment)}, and {first.idx.path} has {_describe(first)}; such "
                "datasets cannot be merged"
            )


def _describe(segment: Segment) -> str:
    header = segment.header
    return f"tokens of type {header.dtype} {'with' if header.has_modes else 'without'} sequence modes"


def _count_tokens(segment: Segment) -> int:
    return segment.bin.size_bytes // segment.header.dtype.itemsize


def _find_shared_manifest(prefixes: Sequence[str], segments: Sequence[Segment]) -> Manifest | None:
    """Return the first manifest if all datasets have one that describes them and names the same tokenizer."""
    manifests, tokenizers = list[Manifest](), list[RecordedTokenizer]()
    for prefix, segment in zip(prefixes, segments, strict=True):
        try:
            manifest = read_manifest(prefix)
        except FormatError:
            return None
        if manifest is None or (recorded_tokenizer := manifest.content.tokenizer) is None:
            return None
        counts = (segment.header.num_documents, segment.header.num_sequences, _count_tokens(segment))
        if (manifest.content.documents, manifest.content.sequences, manifest.content.tokens) != counts:
            return None  # the manifest describes an earlier dataset
        manifests.append(manifest)
        tokenizers.append(msgspec.structs.replace(recorded_tokenizer, name=""))
    return manifests[0] if all(tokenizer == tokenizers[0] for tokenizer in tokenizers) else None
