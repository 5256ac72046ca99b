"""`dsindex.open`: open a dataset of any format.

an MMIDIDX pair, or packs                                IndexedDataset
a .pbin of any version                                   PbinDocuments; blocks of tokens with `block_size`
a raw index, or its JSONL file                           RawLines; tokens with `tokenizer`
PREFIX of PREFIX_text_document and PREFIX_loss_mask      PackedInstructionDataset
a description of an index cache, or its folder           GPTDataset or BlendedDataset
"""

from __future__ import annotations

import glob
import os
import re
from typing import TYPE_CHECKING, Any, TypeAlias

from dsindex.datasets.gpt import DEFAULT_OPTIONS, GPTDataset
from dsindex.datasets.indexed import IndexedDataset
from dsindex.datasets.kinds import tell_kind
from dsindex.datasets.subjects import Caches, Result, cache_folder, list_text_prefixes, tokenizer_path
from dsindex.errors import InputError, UsageError
from dsindex.index.cache import BLENDED_CLASS, descriptions_in, find_description, read_description, record_beside
from dsindex.store.urls import refuse_address

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import tokenizers

    from dsindex.datasets.blended import BlendedDataset
    from dsindex.datasets.gpt import SampleOptions
    from dsindex.datasets.instruction import PackedInstructionDataset
    from dsindex.datasets.kinds import KindName, Subject
    from dsindex.datasets.pbin import PackedMemMapDatasetContinuous, PbinDocuments
    from dsindex.datasets.raw import MemMapDataset, RawLines
    from dsindex.datasets.subjects import AnyDataset, AnyPath

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
    "index cache": {"split", "prefix", "options"},
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
        path: A prefix or one of a dataset's files, here or in an object store; the folder of an index cache, or a
            result.
        block_size: For a `.pbin`: return blocks of this many tokens instead of documents.
        sequence_length: For instruction data: tokens per block; may be None if only one block layout is stored.
        pad_id: For instruction data: token that fills up blocks; 0 if None. Loss is masked on padding.
        pad_to_multiple: For instruction data: each conversation takes a multiple of so many tokens of its block.
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
    given: dict[str, Any] = {"block_size": block_size, "sequence_length": sequence_length, "pad_id": pad_id}
    given |= {"pad_to_multiple": pad_to_multiple, "split": split, "options": options}
    given = {name: value for name, value in given.items() if value is not None}
    try:
        if prefix is not None:
            given["prefix"] = list_text_prefixes(prefix)
        if tokenizer is not None:
            given["tokenizer"] = tokenizer_path(tokenizer)
        descriptions = getattr(path, "descriptions", None)
        if descriptions and not given.keys() - {"split", "options"}:
            return _open_cache(descriptions, place="path", check=check, torch=torch, **given)
        subject = tell_kind(_split_of(path, given) or cache_folder(path))
        return _open(subject, given, check=check, torch=torch)
    except ValueError as error:
        raise UsageError(f"open: {error}") from error


def _split_of(path: object, given: dict[str, Any]) -> str | None:
    """Return the prefix of the wanted split of a result of `instruct`, and remove the option."""
    splits = getattr(path, "splits", None)
    if not isinstance(path, Result) or not splits:
        return None
    known = {each.prefix.rpartition("_")[2]: each.prefix for each in splits}
    if len(splits) == 1:
        return str(splits[0].prefix)
    split = given.pop("split", "train")
    if split not in known:
        raise ValueError(f"expected a split of {', '.join(known)}, got {split!r}")
    return str(known[split])


def _open(subject: Subject, given: Mapping[str, Any], *, check: bool, torch: bool) -> Dataset:
    path, kind = subject.path, subject.kind
    if kind not in _OPTIONS:
        raise InputError(f"{path}: expected a dataset, got an {kind}, which pyarrow and pandas read")
    foreign = next((name for name in given if name not in _OPTIONS[kind]), None)
    if foreign is not None:
        raise InputError(f"{path}: this is {kind}, which does not take the option {foreign}; omit it")
    if kind == "index cache":
        return _open_descriptions(path, given, check=check, torch=torch)
    if kind == "instruction data":
        return _open_instruction(path, torch=torch, **given)
    if kind == "raw index":
        from dsindex.datasets.raw import MemMapDataset, RawLines

        return MemMapDataset(path, torch=torch, **given) if given else RawLines(path)
    if kind == "pbin":
        from dsindex.datasets.pbin import PackedMemMapDatasetContinuous, PbinDocuments

        return PackedMemMapDatasetContinuous(path, torch=torch, **given) if given else PbinDocuments(path, torch=torch)
    return IndexedDataset(path, check=check, torch=torch)


def _open_instruction(
    path: str, *, torch: bool, pad_id: int = 0, sequence_length: int | None = None, pad_to_multiple: int | None = None
) -> PackedInstructionDataset:
    """Open instruction data with the layout that was asked for, or the only one that is stored."""
    from dsindex.datasets.instruction import PackedInstructionDataset, packing_prefix

    if sequence_length is None:
        refuse_address(path, "expected sequence_length, the tokens per block, which is not looked for in a bucket")
        own = re.compile(r"_packing_([0-9]+)(?:_pad([0-9]+))?\.idx")
        found = [own.fullmatch(name.removeprefix(path)) for name in glob.glob(f"{glob.escape(path)}_packing_*.idx")]
        layouts = sorted((int(match[1]), int(match[2] or 1)) for match in found if match is not None)
        known = [layout for layout in layouts if pad_to_multiple in {None, layout[1]}]
        if len(known) != 1:
            described = ", ".join(packing_prefix("", *layout).removeprefix("_packing_") for layout in known)
            got = f"layouts for {described}" if known else "none"
            msg = f"{path}: expected one block layout to take the sequence length from, got {got}; set sequence_length"
            raise InputError(msg)
        [(sequence_length, pad_to_multiple)] = known
    return PackedInstructionDataset(
        path, sequence_length=sequence_length, pad_id=pad_id, pad_to_multiple=pad_to_multiple or 1, torch=torch
    )


def _open_descriptions(path: str, given: Mapping[str, Any], *, check: bool, torch: bool) -> GPTDataset | BlendedDataset:
    """Open the cache of a description, or that of a split in a folder."""
    descriptions, split = descriptions_in(path), given.get("split", "train")
    if not os.path.isdir(path):
        described = read_description(path)
        descriptions, own = [path], str(described.get("index_split", described.get("split")))
        split = given.get("split", own)
        if split != own:
            raise InputError(f"{path}: expected the description of the split {split}, got that of {own}; omit split")
    return _open_cache(
        dict.fromkeys(descriptions, given.get("prefix")),
        place=path,
        split=split,
        options=given.get("options", DEFAULT_OPTIONS),
        check=check,
        torch=torch,
    )


def _open_cache(
    descriptions: Mapping[str, Sequence[str | os.PathLike[str]] | None],
    *,
    place: str,
    split: str = "train",
    options: SampleOptions = DEFAULT_OPTIONS,
    check: bool,
    torch: bool,
) -> GPTDataset | BlendedDataset:
    """Open the index cache of a split; if one is of a blend, the caches of its datasets are parts of it.

    Args:
        descriptions: Path of each description -> prefixes of its datasets; None to use those in the description.
        place: Name of the caches in messages.
        split: train, valid or test.
        options: How masks and positions of samples are made.
        check: As for IndexedDataset.
        torch: Return tensors instead of arrays.

    Raises:
        InputError: If the split has no cache, or several.
        FormatError: If a file is missing or damaged.
    """
    known = {path: read_description(path) for path in descriptions}
    found = caches_by_split(known).get(split, [])
    if not found:
        splits = ", ".join(sorted({str(each.get("index_split", each.get("split"))) for each in known.values()}))
        msg = f"{place}: expected the index cache of the split {split}, got {splits or 'no description'}"
        raise InputError(f"{msg}; choose one of these splits" if splits else msg)
    if len(found) > 1:
        got = f"{len(found)}: {', '.join(found)}"
        raise InputError(f"{place}: expected one index cache of the split {split}, got {got}; choose one")
    path, prefixes = found[0], descriptions[found[0]]
    extra = _has_extra_token(path)
    shared: dict[str, Any] = {"add_extra_token": extra, "options": options, "check": check, "torch": torch}
    if known[path]["class"] == BLENDED_CLASS:
        from dsindex.datasets.blended import BlendedDataset

        return BlendedDataset.open_cache(path, prefixes=prefixes, **shared)
    return GPTDataset.open_cache(path, prefix=None if prefixes is None else prefixes[0], **shared)


def caches_by_split(known: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the paths of descriptions by split, without those of a blend's datasets.

    Args:
        known: Path of each description -> its content.
    """
    parts = {
        os.path.abspath(find_description(os.path.dirname(path), part))
        for path, description in known.items()
        for part in description.get("datasets", ())
    }
    found: dict[str, list[str]] = {}
    for path, description in known.items():
        if os.path.abspath(path) not in parts:
            found.setdefault(str(description.get("index_split", description.get("split"))), []).append(path)
    return found


def _has_extra_token(description_path: str) -> bool:
    """Return the setting in dsindex's record of a cache; without a record, Megatron's default."""
    description = read_description(description_path)
    if description["class"] == BLENDED_CLASS:
        folder = os.path.dirname(description_path)
        return _has_extra_token(find_description(folder, description["datasets"][0]))
    settings = (record_beside(description_path) or {}).get("settings")
    return not isinstance(settings, dict) or settings.get("extra_token") is not False
