"""The packs of instruction data: an index over the published tokens and masks, which are not copied.

`<prefix>_packing_<L>` is an MMIDIDX pair of int32. Each of its sequences is a pack, and lists the numbers of the
sequences in that pack. With --pad-to-multiple N the name ends in `_pad<N>`. The packs depend only on the lengths of the
published sequences, L and N, so packs of another length take seconds to make.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from dsindex._version import __version__
from dsindex.chat.packing import BlockLayout, lay_out_blocks
from dsindex.datasets.indexed import IndexedDataset
from dsindex.datasets.instruction import packing_prefix
from dsindex.errors import FormatError, OutputError
from dsindex.formats.manifest import (
    MANIFEST_SUFFIX,
    Content,
    Manifest,
    RecordedPacking,
    Run,
    files_have_recorded_sizes,
    manifest_path,
    read_manifest,
)
from dsindex.formats.mmididx import IndexHeader, write_index
from dsindex.runtime.plan import make_plan
from dsindex.runtime.publish import Artifact, begin_in_bucket, hold_artifacts, is_publishing, publish
from dsindex.store.listing import find_with_beginning
from dsindex.store.protocol import open_output, store_of
from dsindex.store.read import is_stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.options.instruct import InstructConfig

FORMAT = 2
"""Version of the packing. It is increased when a change of the code gives different packs for the same lengths, so that
packs of earlier releases are made again."""
LAYOUT_DTYPE = np.dtype("<i4")


@dataclass(frozen=True, slots=True, kw_only=True)
class MadePacking:
    """The published packs of a split."""

    prefix: str
    content: Content
    already_complete: bool


def read_published(prefix: str) -> Manifest:
    """Read the manifest of a dataset that the job has published.

    Raises:
        FormatError: If the manifest is missing.
    """
    manifest = read_manifest(prefix)
    if manifest is None:
        raise FormatError(f"{prefix}: the manifest of this dataset is missing", hint="run the same command again")
    return manifest


def pack_splits(config: InstructConfig, prefixes: Sequence[str]) -> list[MadePacking]:
    """Make the missing packs of a job's splits, and delete packs of datasets that have been replaced since.

    Args:
        config: The options of the job; without --seq-length no packs are made.
        prefixes: Prefixes of the splits, such as `out/chat_train`.

    Raises:
        FormatError: If the lengths of sequences are damaged.
        OutputError: If the packs cannot be written.
    """
    made = []
    for prefix in prefixes:
        tokens = read_published(f"{prefix}_text_document").content
        files = {suffix: tokens.digests[suffix] for suffix in ("bin", "idx")}
        sources = {suffix: [file.size_bytes, file.digest] for suffix, file in files.items()}
        if config.seq_length is not None:
            made.append(_pack(config, config.seq_length, prefix, tokens, sources))
        _remove_old(prefix, sources)
    return made


def check_packs(config: InstructConfig, prefixes: Sequence[str]) -> None:
    """Check that packs can be written without overwriting files that dsindex did not make.

    Raises:
        OutputError: If there is an index without a manifest that shows dsindex made it.
    """
    for prefix in prefixes if config.seq_length is not None else ():
        path = packs_path(config, prefix)
        with hold_artifacts([path], [_artifact(path, "")]):
            _require_own(path)


def _require_own(path: str) -> None:
    if is_stored(f"{path}.idx") and read_manifest(path) is None and not is_publishing([_artifact(path, "")]):
        what = "no manifest says that dsindex made these packs"
        raise OutputError(f"{path}.idx: {what}", hint="move the file away, or choose another --output-prefix")


def packs_path(config: InstructConfig, prefix: str) -> str:
    """Return the prefix of a split's packs."""
    return f"{prefix}{packing_prefix('', config.seq_length or 0, config.pad_to_multiple)}"


def _pack(
    config: InstructConfig, length: int, prefix: str, tokens: Content, sources: dict[str, list[Any]]
) -> MadePacking:
    """Make the packs of a split, unless packs of the same plan exist."""
    path = packs_path(config, prefix)
    settings = {
        "packing": FORMAT,
        "sources": sources,
        "seq-length": length,
        "pad-to-multiple": config.pad_to_multiple,
        "longer-than-pack": "drop" if config.longer_than_pack == "drop" else "refuse",
    }
    plan = make_plan(settings)
    artifact = _artifact(path, plan.plan_id)
    bin_path, idx_path, own_manifest = artifact.finals
    options = msgspec.structs.replace(tokens.options, seq_length=length)
    with hold_artifacts([path], [artifact]):
        found = read_manifest(path)
        # Other inputs may have become the same tokens; the manifest of the packs names the inputs, too.
        is_current = found is not None and (found.content.inputs, found.content.options) == (tokens.inputs, options)
        if found is not None and is_current and found.run.plan == plan and files_have_recorded_sizes(path, found):
            return MadePacking(prefix=path, content=found.content, already_complete=True)
        _require_own(path)
        layout, facts = _lay_out(config, length, f"{prefix}_text_document")
        begin_in_bucket(artifact, [artifact], artifact.finals)
        with open_output(artifact.partial(bin_path)) as file:
            file.write(layout.conversations.astype(LAYOUT_DTYPE).tobytes())
        lengths = np.diff(layout.block_starts).astype(np.int32)
        boundaries = np.arange(len(lengths) + 1, dtype=np.int64)
        header = IndexHeader(
            dtype=LAYOUT_DTYPE, num_sequences=len(lengths), num_boundaries=len(boundaries), has_modes=False
        )
        with open_output(artifact.partial(idx_path)) as index:
            write_index(index, header, lambda name: [lengths if name == "lengths" else boundaries])
        content = Content(
            inputs=tokens.inputs,
            documents=layout.num_blocks,
            sequences=layout.num_blocks,
            tokens=len(layout.conversations),
            token_dtype=LAYOUT_DTYPE.name,
            options=options,
            packing=facts,
            digests={"bin": file.stored_file("bin"), "idx": index.stored_file("idx")},
        )
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        run = Run(plan=plan, started=started, executor="driver", workers=1, shards=1, dsindex=__version__)
        with open_output(artifact.partial(own_manifest)) as manifest:
            manifest.write(Manifest(content=content, run=run).encode())
        written = {bin_path: file, idx_path: index, own_manifest: manifest}
        publish([artifact], {final: each.stored_file(final) for final, each in written.items()})
    return MadePacking(prefix=path, content=content, already_complete=False)


def _artifact(path: str, plan_id: str) -> Artifact:
    return Artifact(finals=(f"{path}.bin", f"{path}.idx", manifest_path(path)), plan_id=plan_id)


def _lay_out(config: InstructConfig, length: int, tokens: str) -> tuple[BlockLayout, RecordedPacking]:
    drops, multiple = config.longer_than_pack == "drop", config.pad_to_multiple
    lengths = IndexedDataset(tokens, check=False).sequence_lengths
    longer = lengths[lengths > length]
    try:
        layout = lay_out_blocks(lengths, sequence_length=length, pad_to_multiple=multiple, drop_longer=drops)
    except ValueError as error:
        raise FormatError(f"{tokens}.idx: damaged: {error}", hint="remove the output, and make it again") from error
    between = int((-lengths[layout.conversations] % multiple).sum(dtype=np.int64))
    return layout, RecordedPacking(
        sequence_length=length,
        blocks=layout.num_blocks,
        padding=layout.num_padding,
        fill=round(layout.fill, 6),
        pad_to_multiple=multiple if multiple > 1 else None,
        between=between if multiple > 1 else None,
        dropped=len(longer) if drops else None,
        dropped_tokens=int(longer.sum(dtype=np.int64)) if drops else None,
    )


def _remove_old(prefix: str, sources: dict[str, list[Any]]) -> None:
    """Delete the packs of a split that were made from datasets other than `sources`."""
    ending = re.compile(rf"({re.escape(prefix)}_packing_[0-9]+(_pad[0-9]+)?)\.{re.escape(MANIFEST_SUFFIX)}")
    for found in filter(None, map(ending.fullmatch, find_with_beginning(f"{prefix}_packing_"))):
        manifest = read_manifest(found[1])
        settings = {} if manifest is None else manifest.run.plan.settings
        if "packing" in settings and settings["sources"] != sources:
            store_of(prefix).delete([found[0], f"{found[1]}.idx", f"{found[1]}.bin"])
