"""The outputs of `dsindex instruct` as data: the datasets of each split, their parts and their manifests.

A split has two or three datasets: `<prefix>_text_document` (tokens), `<prefix>_loss_mask` (uint8) and, if blocks were
packed, `<prefix>_packing_<L>`. With --split, `<prefix>` ends in `_train`, `_valid` or `_test`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from dsindex.errors import FormatError
from dsindex.formats.mmididx import IndexHeader
from dsindex.instruction.block_files import LAYOUT_DTYPE
from dsindex.instruction.shards import (
    MASK_DTYPE,
    bad_records_of,
    mask_key,
    split_prefix,
    statistics_of,
    text_key,
)
from dsindex.merging.parts import Part
from dsindex.objects.urls import absolute, lengthened
from workflows.stages.early_merge import TokenSource
from workflows.stages.source import count_records
from workflows.state.manifest import Content, RecordCounts, RecordedPacking, read_manifest
from workflows.state.publishing import Dataset, Target, shard_part, shard_provenance, shard_quarantine, stored_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from dsindex.instruction.block_files import PackingResult
    from dsindex.shards.tasks import ShardResult, ShardTask
    from dsindex.storage import StoredFile
    from workflows.options.instruct import InstructConfig
    from workflows.stages.source import TextSource
    from workflows.state.manifest import RecordedInput

    Results = Sequence[tuple[ShardTask, ShardResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitOutputs:
    """The datasets of one split."""

    split: str | None
    config: InstructConfig
    work_dir: str
    dtype: np.dtype[Any]
    """Type of tokens on disk."""

    @property
    def prefix(self) -> str:
        """The prefix to open with PackedInstructionDataset."""
        return absolute(split_prefix(self.config.output_prefix, self.split))

    @property
    def prefixes(self) -> list[str]:
        """The prefixes of the datasets: tokens, masks, packing."""
        length = self.config.seq_length
        names = ["text_document", "loss_mask", *([] if length is None else [f"packing_{length}"])]
        return [lengthened(self.prefix, f"_{name}") for name in names]

    def former_packings(self) -> list[str]:
        """Return the prefix of the packing in the published tokens' manifest, if its L differs from this job's.

        That packing does not fit new tokens. Packings that the manifest does not name are not searched.
        """
        try:
            manifest = read_manifest(self.prefixes[0])
        except FormatError:
            return []
        length = None if manifest is None else manifest.run.plan["settings"].get("seq-length")
        if not isinstance(length, int) or length == self.config.seq_length:
            return []
        return [lengthened(self.prefix, f"_packing_{length}")]

    def token_sources(self, plan_id: str, input_bytes: int) -> list[TokenSource]:
        """Return tokens and masks, which are made of shards alone, with how to find their parts."""
        text, mask = self.prefixes[:2]
        return [
            TokenSource(
                target=Target(prefix=prefix, plan_id=plan_id, bound_bytes=input_bytes * dtype.itemsize),
                part_of=partial(self._part, key, dtype),
            )
            for prefix, key, dtype in (
                (text, text_key(self.split), self.dtype),
                (mask, mask_key(self.split), MASK_DTYPE),
            )
        ]

    def _part(self, key: str, dtype: np.dtype[Any], result: ShardResult) -> Part:
        return shard_part(next(part for part in result.keys if part.key == key), self.work_dir, dtype)

    def datasets(
        self,
        sources: Sequence[TokenSource],
        results: Results,
        packing: PackingResult | None,
        inputs: Sequence[str],
    ) -> list[Dataset]:
        """Return the datasets to assemble, in the order of `prefixes`.

        Args:
            sources: Tokens and masks.
            results: All shards with their results, in plan order.
            packing: The packing, if there is one.
            inputs: Paths of the inputs as given.
        """
        text, mask = sources
        key = text_key(self.split)
        found = [
            Dataset(
                target=text.target,
                parts=tuple(text.part_of(result) for _, result in results),
                provenance=None if self.config.no_provenance else shard_provenance(results, self.work_dir, key=key),
                # Bad records belong to no split, so each split's tokens get all of them.
                quarantine=shard_quarantine(results, self.work_dir, inputs),
            ),
            Dataset(target=mask.target, parts=tuple(mask.part_of(result) for _, result in results), provenance=None),
        ]
        if packing is not None:
            target = Target(prefix=self.prefixes[2], plan_id=text.target.plan_id, bound_bytes=packing.bin.size_bytes)
            found.append(Dataset(target=target, parts=(self._packing_part(packing),), provenance=None))
        return found

    def _packing_part(self, packing: PackingResult) -> Part:
        return Part(
            bin_path=stored_path(self.work_dir, packing.bin),
            idx_path=stored_path(self.work_dir, packing.idx),
            identity=f"{packing.bin.digest} {packing.idx.digest}",  # every run makes it again with the same content
            bin_bytes=packing.bin.size_bytes,
            header=IndexHeader(
                dtype=LAYOUT_DTYPE,
                num_sequences=packing.num_blocks,
                num_boundaries=packing.num_blocks + 1,
                has_modes=False,
            ),
        )

    def contents(
        self,
        source: TextSource,
        instruction: Mapping[str, Any],
        results: Results,
        packing: PackingResult | None,
        made: Sequence[tuple[Dataset, dict[str, StoredFile]]],
    ) -> list[Content]:
        """Return the contents of the manifests, in the order of `prefixes`.

        Args:
            source: The job's inputs and tokenizer.
            instruction: The instruction configuration, in plain JSON types.
            results: All shards with their results, in plan order.
            packing: The packing, if there is one.
            made: Each dataset with its files.
        """
        shards = [result for _, result in results]
        inputs = self._describe_inputs(source, results)
        source.describe_damaged()
        options = source.describe_options(
            seq_length=self.config.seq_length,
            split=None if self.config.split is None else list(self.config.split),
            split_seed=self.config.split_seed,
            split_name=self.split,
            instruction=dict(instruction),
        )
        counts = self._count_records(shards)
        contents = [
            Content(
                inputs=inputs,
                **source.describe_damaged(),
                documents=dataset.header.num_documents,
                sequences=dataset.header.num_sequences,
                tokens=dataset.bin_bytes // dataset.header.dtype.itemsize,
                token_dtype=dataset.header.dtype.name,
                options=options,
                digests=files,
            )
            for dataset, files in made
        ]
        of_tokens = {
            "account": RecordCounts(**counts, documents_with_tokens=counts["kept"], empty_documents=0),
            "tokenizer": source.describe_tokenizer(),
            "statistics": asdict(statistics_of(shards, self.split)),
            "bad_records": bad_records_of(shards),
            "packing": None if packing is None else describe_packing(packing, self.config.seq_length or 0),
        }
        return [contents[0].model_copy(update=of_tokens), *contents[1:]]

    def _count_records(self, shards: Sequence[ShardResult]) -> dict[str, int]:
        """Return record counts; `kept` are the records of this split, `elsewhere` those of other splits."""
        lines = count_records(shards)
        key = text_key(self.split)
        kept = sum(part.num_documents for shard in shards for part in shard.keys if part.key == key)
        return {**lines, "kept": kept, "elsewhere": lines["kept"] - kept}

    def _describe_inputs(self, source: TextSource, results: Results) -> list[RecordedInput]:
        shards: list[list[ShardResult]] = [[] for _ in source.inputs]
        for task, result in results:
            shards[task.input].append(result)
        return [
            described.model_copy(update=self._count_records(own))
            for described, own in zip(source.describe_inputs(results), shards, strict=True)
        ]


def describe_packing(packing: PackingResult, sequence_length: int) -> RecordedPacking:
    """Return how full the blocks are; the fill is a share, to six digits."""
    places = packing.num_blocks * sequence_length
    return RecordedPacking(
        sequence_length=sequence_length,
        blocks=packing.num_blocks,
        padding=places - packing.num_tokens,
        fill=round(packing.num_tokens / places, 6) if places else 1.0,
    )
