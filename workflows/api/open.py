"""`dsindex.open`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsindex.datasets.opening import DEFAULT_SPLIT, open_cache, open_dataset
from workflows.api.boundary import OptionsError, api_function, given_options
from workflows.api.results import IndexResult, InstructResult
from workflows.api.subjects import find_prefix, list_text_prefixes
from workflows.api.tokenizers import tokenizer_in_place

if TYPE_CHECKING:
    from dsindex.datasets.gpt import SampleOptions
    from dsindex.datasets.opening import Dataset
    from workflows.api.subjects import Subject, Subjects
    from workflows.api.tokenizers import TokenizerLike


@api_function
def open(
    path: Subject | IndexResult,
    *,
    block_size: int | None = None,
    sequence_length: int | None = None,
    pad_id: int | None = None,
    split: str | None = None,
    prefix: Subjects | None = None,
    options: SampleOptions | None = None,
    tokenizer: TokenizerLike | None = None,
    check: bool = True,
    torch: bool = False,
) -> Dataset:
    """Open a dataset; what it is, is told from its files.

    A `.bin`/`.idx` pair gives an IndexedDataset, a `.pbin` its documents or blocks, the raw index of a JSONL file its
    lines, instruction data its packed blocks, and an index cache the samples of a GPTDataset or BlendedDataset.

    Args:
        path: A prefix, one of a dataset's files, the folder of an index cache, or a result.
        block_size: Of a `.pbin`: blocks of so many tokens instead of documents.
        sequence_length: Of instruction data: the length of blocks; that of the packing plan if there is one only.
        pad_id: Of instruction data: fills blocks; 0 if None. No loss falls on padding.
        split: Of an index cache, or of instruction data: which of several splits; train if None.
        prefix: Of an index cache: the dataset, where its path is not the one in the description; several of a blend.
        options: Of an index cache: what samples say beside their tokens.
        tokenizer: Of a JSONL file: tokenizes lines, which are bytes otherwise.
        check: Look at every entry of an MMIDIDX index; without it even a very large dataset opens at once.
        torch: Tensors in the place of arrays.

    Raises:
        OptionsError: If `path` is no path, or a result with several datasets.
        InputError: If there is no dataset, or an option means nothing to a dataset of this kind.
        FormatError: If a file is damaged, or is not of any of these formats.
        MissingPackageError: If torch is asked for and not installed.
    """
    given = given_options(open, locals())
    del given["path"]
    if isinstance(path, IndexResult):
        return _open_result(path, given)
    if prefix is not None:
        given["prefix"] = list_text_prefixes("prefix", prefix)
    found = _choose_split(path, given) if isinstance(path, InstructResult) else find_prefix("path", path)
    with tokenizer_in_place(given) as placed:
        tokenizer_path = placed.pop("tokenizer_model", None)
        return open_dataset(found, **placed, tokenizer=tokenizer_path)


def _open_result(caches: IndexResult, given: dict[str, Any]) -> Dataset:
    """Open one split of the index caches that were built."""
    foreign = given.keys() - {"split", "options", "check", "torch"}
    if foreign:
        msg = f"path: it is an index cache, to which the option {min(foreign)} means nothing; leave it out"
        raise OptionsError(msg)
    if not caches.descriptions:
        msg = "path: expected index caches with descriptions, got none; give the dataset, or the path of a cache"
        raise OptionsError(msg)
    return open_cache(caches.descriptions, place="path", **given)


def _choose_split(result: InstructResult, given: dict[str, Any]) -> str:
    """Return the prefix of the wanted split of instruction data; the option is used up."""
    if len(result.splits) == 1:
        return result.splits[0].prefix
    split = given.pop("split", DEFAULT_SPLIT)
    known = {each.prefix.rpartition("_")[2]: each.prefix for each in result.splits}
    if split not in known:
        msg = f"split: expected one of {', '.join(known)}, got {split!r}"
        raise OptionsError(msg)
    return known[split]
