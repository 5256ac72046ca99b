"""The driver of `dsindex merge`: joins many datasets, with the same ranges, ledger and publishing as a build."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from dsindex.commands.results import JobResult, MadeDataset
from dsindex.datasets.lineage import tell_tokenizers_apart
from dsindex.errors import FormatError, InputError
from dsindex.formats.manifest import Content, Manifest, RecordedInput, RecordedTokenizer, read_manifest
from dsindex.formats.mmididx import check_index, read_header, read_index
from dsindex.runtime.estimate import require_room
from dsindex.runtime.job import make_plan, open_job
from dsindex.runtime.output import Output
from dsindex.runtime.tasks import Part, PartFile
from dsindex.store.read import input_status
from dsindex.store.urls import absolute, as_prefix, folder_of, with_suffix

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.options.merge import MergeConfig
    from dsindex.runtime.progress import Reporter


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult(JobResult):
    """The result of a merge."""

    already_complete: bool
    notes: tuple[str, ...]


def run_merge(config: MergeConfig, *, reporter: Reporter) -> MergeResult:
    """Merge datasets in the order given, continuing an interrupted run of the same plan.

    Raises:
        FormatError: If an input is damaged, or differs from the first in token type or in having modes.
        DsindexError: If the merge cannot be done as asked; final names then never refer to incomplete files.
    """
    prefixes = [as_prefix(path) for path in config.input]
    parts = list(map(open_part, prefixes))
    refuse_mixture(parts)
    prefix, dtype = absolute(config.output_prefix), parts[0].header.dtype
    inputs = [input_status(absolute(f"{given}.{suffix}")) for given in prefixes for suffix in ("bin", "idx")]
    plan = make_plan({"output-prefix": str(prefix)}, inputs)
    output = Output(prefix=prefix, plan_id=plan.plan_id, dtype=dtype)
    with open_job(config, plan, [output], reporter=reporter) as job:
        if not job.already_complete:
            needed = sum(part.bin.size_bytes + part.header.size_bytes for part in parts)
            require_room({folder_of(prefix): needed}, what="the output")
            for part in parts:
                check_index(part.idx.path, read_index(part.idx.path), bin_size_bytes=part.bin.size_bytes)
                output.add(part)
            job.assemble()
            for file in inputs:
                if input_status(file.path) != file:
                    what = "changed while it was merged; leave inputs alone, and run the same command again"
                    raise InputError(f"{file.path}: {what}")
            shared = _shared_tokenizer(prefixes, parts)
            content = Content(
                inputs=[
                    RecordedInput(path=path, documents=part.header.num_documents, sequences=part.header.num_sequences)
                    for path, part in zip(config.input, parts, strict=True)
                ],
                documents=sum(part.header.num_documents for part in parts),
                sequences=sum(part.header.num_sequences for part in parts),
                tokens=sum(map(_count_tokens, parts)),
                token_dtype=dtype.name,
                tokenizer=shared.content.tokenizer if shared else None,
                digests=output.digests,
            )
            job.publish([content], tokenizer_path=shared.run.tokenizer_path if shared else None)
    return MergeResult(
        datasets=(MadeDataset.of(config.output_prefix, job.manifests[0].content),),
        already_complete=job.already_complete,
        notes=tuple(filter(None, [tell_tokenizers_apart(prefixes)])),
    )


def open_part(prefix: str) -> Part:
    """Open one dataset for merging.

    Args:
        prefix: Path or address without `.bin` or `.idx`; objects are read as they are now.

    Raises:
        FormatError: If its index is damaged or its `.bin` missing.
    """
    idx_path = with_suffix(prefix, ".idx")
    header = read_header(idx_path)
    try:
        tokens = input_status(with_suffix(prefix, ".bin"))
    except OSError as error:
        msg = f"{prefix}.bin: cannot be read ({error.strerror}); a dataset is a .bin and an .idx"
        raise FormatError(msg) from error
    bin_file = PartFile(path=tokens.path, size_bytes=tokens.size_bytes)
    return Part(bin=bin_file, idx=PartFile(path=idx_path, size_bytes=header.size_bytes), header=header)


def refuse_mixture(parts: Sequence[Part]) -> None:
    """Refuse parts that differ in token type or in having modes.

    Raises:
        FormatError: Naming the first that does.
    """
    # A dataset without sequences looks the same with and without modes.
    first = next((part for part in parts if part.header.num_sequences), parts[0])
    for part in parts:
        has_other_modes = part.header.num_sequences and part.header.has_modes != first.header.has_modes
        if has_other_modes or part.header.dtype != first.header.dtype:
            raise FormatError(
                f"{part.idx.path}: expected {_describe(first)} as in {first.idx.path}, got {_describe(part)}; such "
                "datasets cannot be merged"
            )


def _describe(part: Part) -> str:
    return f"tokens of type {part.header.dtype} {'with' if part.header.has_modes else 'without'} sequence modes"


def _count_tokens(part: Part) -> int:
    return part.bin.size_bytes // part.header.dtype.itemsize


def _shared_tokenizer(prefixes: Sequence[str], parts: Sequence[Part]) -> Manifest | None:
    """Return the first manifest if all datasets have one, their own, that names the same tokenizer; otherwise None."""
    manifests, tokenizers = list[Manifest](), list[RecordedTokenizer]()
    for prefix, part in zip(prefixes, parts, strict=True):
        try:
            manifest = read_manifest(prefix)
        except FormatError:
            return None
        if manifest is None or (own := manifest.content.tokenizer) is None:
            return None
        counts = (part.header.num_documents, part.header.num_sequences, _count_tokens(part))
        if (manifest.content.documents, manifest.content.sequences, manifest.content.tokens) != counts:
            return None  # that of a dataset that was there before
        manifests.append(manifest)
        tokenizers.append(msgspec.structs.replace(own, name=""))
    return manifests[0] if all(tokenizer == tokenizers[0] for tokenizer in tokenizers) else None
