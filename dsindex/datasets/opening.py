"""`dsindex.open`: open a dataset of any format.

an MMIDIDX pair, or packs                                IndexedDataset
a .pbin of any version                                   PbinDocuments; blocks of tokens with `block_size`
a raw index, or its JSONL file                           RawLines; tokens with `tokenizer`
PREFIX of PREFIX_text_document and PREFIX_loss_mask      PackedInstructionDataset
a description of an index cache, or its folder           GPTDataset or BlendedDataset
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeAlias

from dsindex.datasets.arguments import Caches, Result, cache_folder, list_text_prefixes, tokenizer_path
from dsindex.datasets.detect import DetectedDataset, detect_dataset, pack_layouts
from dsindex.datasets.gpt import BlendedDataset, GPTDataset
from dsindex.datasets.indexed import IndexedDataset
from dsindex.errors import InputError, UsageError
from dsindex.megatron.cache import BLENDED_CLASS, descriptions_in, find_cache, read_description

if TYPE_CHECKING:
    from collections.abc import Sequence

    import tokenizers

    from dsindex.datasets.arguments import AnyDataset, AnyPath
    from dsindex.datasets.detect import KindName
    from dsindex.datasets.gpt import SampleOptions
    from dsindex.datasets.instruction import PackedInstructionDataset
    from dsindex.datasets.packed import PackedMemMapDatasetContinuous, PbinDocuments
    from dsindex.datasets.raw import MemMapDataset, RawLines

Dataset: TypeAlias = (
    "IndexedDataset | GPTDataset | BlendedDataset | PbinDocuments | PackedMemMapDatasetContinuous | RawLines"
    " | MemMapDataset | PackedInstructionDataset"
)

_OPTIONS: dict[KindName, set[str]] = {
    "MMIDIDX": set(),
    "packs": set(),
    "pbin": {"block_size"},
    "raw index": {"tokenizer"},
    "instruction data": {"sequence_length", "pad_id", "pad_to_multiple"},
    "index cache": {"split", "prefix", "options", "descriptions"},
}
"""The options that each kind takes, besides `check` and `torch`."""


def open(
    path: AnyDataset | Caches,
    *,
    block_size: int | None = None,
    sequence_length: int | None = None,
    pad_id: int | None = None,
    pad_to_multiple: int | None = None,
    split: str | None = None,
    prefix: AnyDataset | Sequence[AnyDataset] | None = None,
    options: SampleOptions | None = None,
    tokenizer: AnyPath | tokenizers.Tokenizer | None = None,
    check: bool = True,
    torch: bool = False,
) -> Dataset:
    """Open a dataset; its format is detected from the files.

    A `.bin`/`.idx` pair opens as an IndexedDataset, a `.pbin` as its documents or blocks, a JSONL file with a raw index
    as its lines, instruction data as packed blocks, and an index cache as a GPTDataset or BlendedDataset.

    Args:
        path: A prefix or one of a dataset's files, here or in an object store; the folder of an index cache; or the
            result of a function such as `build`.
        block_size: For a `.pbin`: return blocks of this many tokens instead of documents.
        sequence_length: For instruction data: tokens per block; may be None if only one block layout is stored.
        pad_id: For instruction data: token that fills up blocks; 0 if None. Loss is masked on padding.
        pad_to_multiple: For instruction data: pad each conversation to a multiple of this many tokens.
        split: For index caches or instruction data: train, valid or test, if there are several; train if None.
        prefix: For an index cache: the dataset, if its path differs from the description's; a list for a blend.
        options: For an index cache: how masks and positions of samples are made.
        tokenizer: For a JSONL file: tokenizes lines, which are bytes otherwise.
        check: Check every entry of an MMIDIDX index; without it, even a very large dataset opens at once.
        torch: Return tensors instead of arrays.

    Raises:
        InputError: If there is no dataset, or this kind of dataset does not take an option.
        FormatError: If a file is damaged or in none of these formats.
        MissingPackageError: If `torch` is set and torch is not installed.
    """
    args: dict[str, Any] = {"block_size": block_size, "sequence_length": sequence_length, "pad_id": pad_id}
    args |= {"pad_to_multiple": pad_to_multiple, "split": split, "options": options}
    args = {name: value for name, value in args.items() if value is not None}
    try:
        if prefix is not None:
            args["prefix"] = list_text_prefixes(prefix)
        if tokenizer is not None:
            args["tokenizer"] = tokenizer_path(tokenizer)
        if descriptions := getattr(path, "descriptions", None):  # path is a result of build_index
            args["descriptions"] = descriptions
            detected = DetectedDataset(kind="index cache", path=os.path.dirname(next(iter(descriptions))))
        else:
            detected = detect_dataset(_find_split_prefix(path, args) or cache_folder(path))
        return _open(detected, args, check=check, torch=torch)
    except ValueError as error:
        raise UsageError(f"open: {error}") from error


def _find_split_prefix(path: object, args: dict[str, Any]) -> str | None:
    """If `path` is a result of `instruct`, remove `split` from `args`, and return the prefix of that split."""
    splits = getattr(path, "splits", None)
    if not isinstance(path, Result) or not splits:
        return None
    prefixes_by_split = {split_result.prefix.rpartition("_")[2]: split_result.prefix for split_result in splits}
    split = args.pop("split", "train") if len(splits) > 1 else next(iter(prefixes_by_split))
    if split not in prefixes_by_split:
        raise ValueError(f"there is no split {split!r}, only {', '.join(prefixes_by_split)}")
    return str(prefixes_by_split[split])


def _open(detected: DetectedDataset, args: dict[str, Any], *, check: bool, torch: bool) -> Dataset:
    path, kind = detected.path, detected.kind
    if kind not in _OPTIONS:
        hint = "pyarrow and pandas read it" if kind == "export" else "open one of its datasets"
        raise InputError(f"{path}: this is {kind}, which dsindex does not open", hint=hint)
    foreign_option = next((name for name in args if name not in _OPTIONS[kind]), None)
    if foreign_option is not None:
        raise InputError(f"{path}: this is {kind}, which does not take the option {foreign_option}", hint="omit it")
    if kind == "index cache":
        descriptions = args.pop("descriptions", None) or dict.fromkeys(descriptions_in(path) or [path])
        description_path = find_cache(descriptions, args.pop("split", None), place=path)
        prefixes = args.pop("prefix", None) or descriptions[description_path]
        if read_description(description_path)["class"] == BLENDED_CLASS:
            return BlendedDataset.open_cache(description_path, prefixes=prefixes, check=check, torch=torch, **args)
        prefix = prefixes[0] if prefixes else None
        return GPTDataset.open_cache(description_path, prefix=prefix, check=check, torch=torch, **args)
    if kind == "instruction data":
        from dsindex.datasets.instruction import PackedInstructionDataset

        if "sequence_length" not in args:
            layouts = sorted(pack_layouts(path).values())
            matching_layouts = [layout for layout in layouts if args.get("pad_to_multiple") in {None, layout[1]}]
            if len(matching_layouts) != 1:
                listing = ", ".join(f"{length} padded to {multiple}" for length, multiple in matching_layouts) or "none"
                raise InputError(f"{path}: the stored block layouts are: {listing}", hint="set sequence_length")
            [(args["sequence_length"], args["pad_to_multiple"])] = matching_layouts
        return PackedInstructionDataset(path, **{"pad_id": 0, **args}, torch=torch)
    if kind == "raw index":
        from dsindex.datasets.raw import MemMapDataset, RawLines

        return MemMapDataset(path, torch=torch, **args) if args else RawLines(path)
    if kind == "pbin":
        from dsindex.datasets.packed import PackedMemMapDatasetContinuous, PbinDocuments

        return PackedMemMapDatasetContinuous(path, torch=torch, **args) if args else PbinDocuments(path, torch=torch)
    return IndexedDataset(path, check=check, torch=torch)
