"""The driver of `dsindex merge`: joins many datasets, with the same ranges, ledger and publishing as a build."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from dsindex.datasets.origins import tell_tokenizers_apart
from dsindex.engine.job import open_job
from dsindex.engine.merge import merged_header, open_part
from dsindex.engine.output import Output
from dsindex.engine.plan import make_plan
from dsindex.engine.room import require_room
from dsindex.errors import FormatError, InputError
from dsindex.formats.manifest import Content, RecordedInput, read_manifest
from dsindex.formats.mmididx import check_index, read_index
from dsindex.store.reading import input_status
from dsindex.store.urls import absolute, as_prefix, folder_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.engine.progress import Reporter
    from dsindex.engine.tasks import Part
    from dsindex.formats.manifest import Manifest
    from dsindex.options.merge import MergeConfig
    from dsindex.store.storage import StoredFile


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """The result of a merge."""

    prefix: str
    num_inputs: int
    num_documents: int
    num_sequences: int
    num_tokens: int
    files: dict[str, StoredFile] = field(repr=False)
    already_complete: bool
    notes: tuple[str, ...] = ()

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The merged dataset."""
        return (self.prefix,)


def run_merge(config: MergeConfig, *, reporter: Reporter) -> MergeResult:
    """Merge datasets in the order given, continuing an interrupted run of the same plan.

    Raises:
        FormatError: If an input is damaged, or differs from the first in token type or in having modes.
        DsindexError: If the merge cannot be done as asked; final names then never refer to incomplete files.
    """
    prefixes = [as_prefix(path) for path in config.input]
    parts = tuple(map(open_part, prefixes))
    header, prefix = merged_header(parts), absolute(config.output_prefix)
    inputs = [input_status(absolute(f"{given}.{suffix}")) for given in prefixes for suffix in ("bin", "idx")]
    plan = make_plan({"output-prefix": str(prefix)}, inputs)
    output = Output(prefix=prefix, plan_id=plan.plan_id, dtype=header.dtype)
    with open_job(config, plan, [output], reporter=reporter) as job:
        if not job.already_complete:
            needed = sum(part.bin.size_bytes + part.header.size_bytes for part in parts)
            require_room({folder_of(prefix): needed}, what="the output", remedy="make room, or write elsewhere")
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
                documents=header.num_documents,
                sequences=header.num_sequences,
                tokens=sum(part.num_tokens for part in parts),
                token_dtype=header.dtype.name,
                tokenizer=shared.content.tokenizer if shared else None,
                digests=output.digests,
            )
            job.publish([content], tokenizer_path=shared.run.tokenizer_path if shared else None)
    content = job.manifests[0].content
    return MergeResult(
        prefix=config.output_prefix,
        num_inputs=len(parts),
        num_documents=content.documents,
        num_sequences=content.sequences,
        num_tokens=content.tokens,
        files=content.digests,
        already_complete=job.already_complete,
        notes=tuple(filter(None, [tell_tokenizers_apart(prefixes)])),
    )


def _shared_tokenizer(prefixes: Sequence[str], parts: Sequence[Part]) -> Manifest | None:
    """Return the first manifest if all datasets have one, their own, that names the same tokenizer; otherwise None."""
    first: Manifest | None = None
    for prefix, part in zip(prefixes, parts, strict=True):
        try:
            manifest = read_manifest(prefix)
        except FormatError:
            return None
        if manifest is None or (own := manifest.content.tokenizer) is None:
            return None
        counts = (part.header.num_documents, part.header.num_sequences, part.num_tokens)
        if (manifest.content.documents, manifest.content.sequences, manifest.content.tokens) != counts:
            return None  # that of a dataset that was there before
        first = first or manifest
        shared = first.content.tokenizer
        if shared is None or msgspec.structs.replace(own, name=shared.name) != shared:
            return None
    return first
