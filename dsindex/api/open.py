"""`dsindex.open`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from dsindex.api.boundary import OptionsError, api_function, plain_value
from dsindex.api.subjects import find_prefix, list_text_prefixes
from dsindex.api.tokenizers import tokenizer_in_place
from dsindex.datasets.opening import DEFAULT_SPLIT, open_cache, open_dataset

if TYPE_CHECKING:
    from dsindex.api.subjects import Subject, Subjects
    from dsindex.api.tokenizers import TokenizerLike
    from dsindex.datasets.gpt import SampleOptions
    from dsindex.datasets.opening import Dataset
    from dsindex.jobs.index import IndexResult
    from dsindex.jobs.instruct import InstructResult


@api_function()
def open(
    path: Subject | IndexResult,
    *,
    block_size: int | None = None,
    sequence_length: int | None = None,
    pad_id: int | None = None,
    pad_to_multiple: int | None = None,
    split: str | None = None,
    prefix: Subjects | None = None,
    options: SampleOptions | None = None,
    tokenizer: TokenizerLike | None = None,
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
        OptionsError: If `path` is neither a path nor a result, or is a result with several datasets.
        InputError: If there is no dataset, or this kind of dataset does not take an option.
        FormatError: If a file is damaged or in none of these formats.
        MissingPackageError: If `torch` is set and torch is not installed.
    """
    given: dict[str, Any] = {"block_size": block_size, "sequence_length": sequence_length, "pad_id": pad_id}
    given |= {
        "pad_to_multiple": pad_to_multiple,
        "split": split,
        "options": options,
    }
    given |= {"check": None if check else False, "torch": torch or None}
    given = {name: plain_value(value) for name, value in given.items() if value is not None}
    if prefix is not None:
        given["prefix"] = list_text_prefixes("prefix", prefix)
    if isinstance(path, str | os.PathLike):
        found = os.fsdecode(path)
    else:
        from dsindex.jobs.index import IndexResult  # only who has made a result needs the jobs
        from dsindex.jobs.instruct import InstructResult

        if isinstance(path, IndexResult):
            return _open_result(path, given)
        found = _choose_split(path, given) if isinstance(path, InstructResult) else find_prefix("path", path)
    with tokenizer_in_place(given, tokenizer) as placed:
        tokenizer_path = placed.pop("tokenizer_model", None)
        return open_dataset(found, **placed, tokenizer=tokenizer_path)


def _open_result(caches: IndexResult, given: dict[str, Any]) -> Dataset:
    """Open one split of the index caches in a result."""
    foreign = given.keys() - {"split", "options", "check", "torch"}
    if foreign:
        raise OptionsError(f"path: this is an index cache, which does not take the option {min(foreign)}; omit it")
    if not caches.descriptions:
        msg = "path: expected index caches with descriptions, got none; pass the dataset, or the path of a cache"
        raise OptionsError(msg)
    return open_cache(caches.descriptions, place="path", **given)


def _choose_split(result: InstructResult, given: dict[str, Any]) -> str:
    """Return the prefix of the wanted split of instruction data, and remove the option."""
    if len(result.splits) == 1:
        return result.splits[0].prefix
    split = given.pop("split", DEFAULT_SPLIT)
    known = {each.prefix.rpartition("_")[2]: each.prefix for each in result.splits}
    if split not in known:
        raise OptionsError(f"split: expected one of {', '.join(known)}, got {split!r}")
    return known[split]
