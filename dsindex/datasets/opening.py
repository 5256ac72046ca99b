"""Open a dataset of any format; the format is detected from the files.

an MMIDIDX file, or its .bin                             IndexedDataset
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
from dsindex.errors import FormatError, InputError
from dsindex.formats import PICKLE_START
from dsindex.formats.mmididx import MAGIC
from dsindex.index.cache import (
    BLENDED_CLASS,
    DESCRIPTION_SUFFIX,
    descriptions_in,
    find_description,
    read_description,
    record_beside,
)
from dsindex.store.reading import is_stored
from dsindex.store.storage import open_file, what_is_no_file
from dsindex.store.urls import is_url, located, refuse_address, with_suffix

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dsindex.datasets.blended import BlendedDataset
    from dsindex.datasets.gpt import SampleOptions
    from dsindex.datasets.instruction import PackedInstructionDataset
    from dsindex.datasets.pbin import PackedMemMapDatasetContinuous, PbinDocuments
    from dsindex.datasets.raw import MemMapDataset, RawLines
    from dsindex.text.tokenizer import Tokenizer

Dataset: TypeAlias = (
    "IndexedDataset | GPTDataset | BlendedDataset | PbinDocuments | PackedMemMapDatasetContinuous | RawLines"
    " | MemMapDataset | PackedInstructionDataset"
)

PBIN_SUFFIX = ".pbin"
LINES_SUFFIX = ".jsonl"
TEXT_SUFFIX = "_text_document"
MASK_SUFFIX = "_loss_mask"
DEFAULT_SPLIT = "train"


def open_dataset(
    path: str | os.PathLike[str],
    *,
    block_size: int | None = None,
    sequence_length: int | None = None,
    pad_id: int | None = None,
    pad_to_multiple: int | None = None,
    split: str | None = None,
    prefix: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    options: SampleOptions | None = None,
    tokenizer: Tokenizer | str | os.PathLike[str] | None = None,
    check: bool = True,
    torch: bool = False,
) -> Dataset:
    """Open a dataset; its format is detected from the files.

    Args:
        path: A prefix, one of a dataset's files, or the folder of an index cache; here, or an address of a prefix or a
            file in an object store.
        block_size: For a `.pbin`: return blocks of this many tokens instead of documents.
        sequence_length: For instruction data: tokens per block; may be None if only one block layout is stored.
        pad_id: For instruction data: token that fills up blocks; 0 if None. Loss is masked on padding.
        pad_to_multiple: For instruction data: each conversation takes a multiple of so many tokens of its block.
        split: For a folder with several index caches: train, valid or test; train if None.
        prefix: For an index cache: the dataset, if its path differs from the description's; a list for a blend.
        options: For an index cache: how masks and positions of samples are made.
        tokenizer: For a JSONL file: tokenizes lines, which are bytes otherwise.
        check: Check every entry of an MMIDIDX index, as in IndexedDataset.
        torch: Return tensors instead of arrays.

    Raises:
        InputError: If there is no dataset, if it is ambiguous which one is meant, or if this kind of dataset does not
            take an option.
        FormatError: If a file is damaged or in none of these formats.
        MissingPackageError: If `torch` is set and torch is not installed.
    """
    given = {
        "block_size": block_size,
        "sequence_length": sequence_length,
        "pad_id": pad_id,
        "pad_to_multiple": pad_to_multiple,
        "split": split,
        "prefix": prefix,
        "options": options,
        "tokenizer": tokenizer,
    }
    opening = _Opening(
        located(os.fsdecode(path)),
        {name: value for name, value in given.items() if value is not None},
        check,
        torch,
    )
    return opening.open()


def open_cache(
    descriptions: Mapping[str, Sequence[str | os.PathLike[str]] | None],
    *,
    place: str,
    split: str = DEFAULT_SPLIT,
    options: SampleOptions = DEFAULT_OPTIONS,
    check: bool = True,
    torch: bool = False,
) -> GPTDataset | BlendedDataset:
    """Open the index cache of a split.

    If one of the caches is of a blend, the caches of its datasets are taken as parts of it.

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
        splits = sorted({str(each.get("index_split", each.get("split"))) for each in known.values()})
        msg = f"{place}: expected the index cache of the split {split}, got {_list(splits) or 'no description'}"
        raise InputError(f"{msg}; choose one of these splits" if splits else msg)
    if len(found) > 1:
        msg = f"{place}: expected one index cache of the split {split}, got {len(found)}: {_list(found)}; choose one"
        raise InputError(msg)
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
    folder = os.path.dirname(description_path)
    if description["class"] == BLENDED_CLASS:
        return _has_extra_token(find_description(folder, description["datasets"][0]))
    record = record_beside(description_path)
    settings = record.get("settings") if isinstance(record, dict) else None
    return settings.get("extra_token") is not False if isinstance(settings, dict) else True


class _Opening:
    """One path, and the options given for it."""

    def __init__(self, path: str, given: Mapping[str, Any], check: bool, torch: bool) -> None:
        self._path = path
        self._given = given
        self._check = check
        self._torch = torch

    def open(self) -> Dataset:
        path = self._path
        if is_url(path):
            return self._open_address(path)
        refused = what_is_no_file(path)
        if refused is not None:
            raise InputError(f"{path}: expected a dataset, got {refused}")
        if os.path.isfile(path):
            return self._open_file()
        if os.path.isfile(f"{path}.idx"):
            return self._open_idx(f"{path}.idx")
        if os.path.isfile(f"{path}{TEXT_SUFFIX}.idx") and os.path.isfile(f"{path}{MASK_SUFFIX}.idx"):
            return self._open_instruction()
        if os.path.isfile(f"{path}{PBIN_SUFFIX}"):
            return self._open_packed(f"{path}{PBIN_SUFFIX}")
        if os.path.isdir(path):
            return self._open_folder()
        raise self._nothing()

    def _open_address(self, path: str) -> Dataset:
        """Open a dataset in an object store, where only prefixes, `.idx`, `.bin` and `.pbin` are told apart."""
        for suffix in (".idx", ".bin"):
            if path.endswith(suffix):
                path = self._path = path.removesuffix(suffix)
        if path.endswith(PBIN_SUFFIX):
            return self._open_packed(path)
        if is_stored(with_suffix(path, ".idx")):
            self._allow("a dataset of .bin and .idx")
            return IndexedDataset(path, check=self._check, torch=self._torch)
        if is_stored(with_suffix(path, f"{TEXT_SUFFIX}.idx")):
            return self._open_instruction()
        if is_stored(with_suffix(path, PBIN_SUFFIX)):
            return self._open_packed(with_suffix(path, PBIN_SUFFIX))
        raise InputError(
            f"{path}: there is no dataset: expected the address of a prefix, of which there is a .idx, or of a .pbin; "
            f"index caches and lines are opened on this machine only"
        )

    def _open_file(self) -> Dataset:
        path = self._path
        stem, suffix = os.path.splitext(path)
        if suffix == PBIN_SUFFIX:  # begins with a number, so its first byte can be any
            return self._open_packed(path)
        head = read_head(path)
        if head.startswith((MAGIC, PICKLE_START)):
            return self._open_idx(path)
        if suffix == ".bin" and os.path.isfile(f"{stem}.idx"):
            return self._open_idx(f"{stem}.idx")
        if path.endswith(DESCRIPTION_SUFFIX):
            return self._open_description()
        if head.startswith(b"\x93NUMPY"):
            msg = f"{path}: expected a dataset, got an array of an index cache; use the cache's description or folder"
            raise FormatError(msg)
        if suffix == LINES_SUFFIX or head.lstrip().startswith(b"{"):
            from dsindex.formats.raw_index import raw_index_path

            return self._open_lines(path, raw_index_path(path))
        return self._open_packed(path)

    def _open_idx(self, idx_path: str) -> Dataset:
        head = read_head(idx_path)
        if head.startswith(PICKLE_START):
            return self._open_lines(_find_lines(idx_path), idx_path)
        self._allow("a dataset of .bin and .idx")
        return IndexedDataset(idx_path.removesuffix(".idx"), check=self._check, torch=self._torch)

    def _open_lines(self, path: str, idx_path: str) -> Dataset:
        self._allow("the lines of a JSONL file", "tokenizer")
        if not os.path.isfile(idx_path):
            msg = f"{path}: expected its raw index {idx_path} beside it, found none; make one: dsindex raw-index {path}"
            raise InputError(msg)
        from dsindex.datasets.raw import MemMapDataset, RawLines

        if "tokenizer" in self._given:
            return MemMapDataset(path, tokenizer=self._given["tokenizer"], index_path=idx_path, torch=self._torch)
        return RawLines(path, idx_path)

    def _open_packed(self, path: str) -> Dataset:
        from dsindex.datasets.pbin import PackedMemMapDatasetContinuous, PbinDocuments

        self._allow("a .pbin", "block_size")
        try:
            if "block_size" in self._given:
                return PackedMemMapDatasetContinuous(path, self._given["block_size"], torch=self._torch)
            return PbinDocuments(path, torch=self._torch)
        except FormatError as error:
            if path.endswith(PBIN_SUFFIX):
                raise
            raise FormatError(
                f"{path}: expected an .idx of MMIDIDX, a .pbin, a raw index, a JSONL file or the description of an "
                f"index cache, got a file that begins with {read_head(path)[:8]!r}"
            ) from error

    def _open_instruction(self) -> Dataset:
        from dsindex.datasets.instruction import PackedInstructionDataset, packing_prefix

        path = self._path
        self._allow("instruction data", "sequence_length", "pad_id", "pad_to_multiple")
        length, multiple = self._given.get("sequence_length"), self._given.get("pad_to_multiple", 1)
        if length is None:
            expected = "expected sequence_length, the tokens per block, which is not looked for in an object store"
            refuse_address(path, expected)
            names = glob.glob(f"{packing_prefix(glob.escape(path), 0)[:-1]}*.idx")
            own = re.compile(r"([0-9]+)(?:_pad([0-9]+))?\.idx")
            found = [own.fullmatch(name[len(packing_prefix(path, 0)) - 1 :]) for name in names]
            layouts = sorted((int(match[1]), int(match[2] or 1)) for match in found if match is not None)
            known = [layout for layout in layouts if layout[1] == multiple or "pad_to_multiple" not in self._given]
            if len(known) != 1:
                described = [packing_prefix("", *layout).removeprefix("_packing_") for layout in known]
                shown = f"layouts for {_list(described)}" if known else "none"
                msg = f"{path}: expected one block layout to take the sequence length from, got {shown}; "
                raise InputError(f"{msg}set sequence_length")
            [(length, multiple)] = known
        return PackedInstructionDataset(
            path,
            sequence_length=length,
            pad_id=self._given.get("pad_id", 0),
            pad_to_multiple=multiple,
            torch=self._torch,
        )

    def _open_folder(self) -> Dataset:
        descriptions = descriptions_in(self._path)
        if not descriptions:
            raise InputError(
                f"{self._path}: expected the path of a dataset or the folder of an index cache, got a folder without "
                f"descriptions; append the name of a dataset in it, without .bin and .idx"
            )
        return self._open_cache(descriptions, self._given.get("split", DEFAULT_SPLIT))

    def _open_description(self) -> Dataset:
        description = read_description(self._path)
        own = str(description.get("index_split", description.get("split")))
        wanted = self._given.get("split", own)
        if wanted != own:
            msg = f"{self._path}: expected the description of the split {wanted}, got that of {own}; omit split"
            raise InputError(msg)
        return self._open_cache([self._path], own)

    def _open_cache(self, descriptions: Sequence[str], split: str) -> Dataset:
        self._allow("an index cache", "split", "prefix", "options")
        given = self._given.get("prefix")
        prefixes = [given] if isinstance(given, str | os.PathLike) else given
        return open_cache(
            dict.fromkeys(descriptions, prefixes),
            place=self._path,
            split=split,
            options=self._given.get("options", DEFAULT_OPTIONS),
            check=self._check,
            torch=self._torch,
        )

    def _allow(self, kind: str, *names: str) -> None:
        """Raise an error for options that a kind of dataset does not take."""
        foreign = next((name for name in self._given if name not in names), None)
        if foreign is not None:
            raise InputError(f"{self._path}: this is {kind}, which does not take the option {foreign}; omit it")

    def _nothing(self) -> InputError:
        path = self._path
        near = [found.removesuffix(".idx") for found in sorted(glob.glob(f"{glob.escape(path)}_*.idx"))]
        hint = f"did you mean {_list(near[:4])}" if near else "check the path"
        return InputError(f"{path}: there is no dataset: expected a file, or a {path}.idx; {hint}")


def read_head(path: str) -> bytes:
    """Return the first bytes of a file, by which its format is told.

    Raises:
        FormatError: If it cannot be read.
    """
    try:
        with open_file(path) as file:
            return file.read(64)
    except OSError as error:
        raise FormatError(f"{path}: cannot be read ({error.strerror})") from error


def _find_lines(idx_path: str) -> str:
    """Return the JSONL file of a raw index: the file in the same folder that differs in the suffix only.

    Raises:
        InputError: If there is none, or several without a `.jsonl` among them.
    """
    from dsindex.formats.raw_index import raw_index_path

    stem = os.path.splitext(idx_path)[0]
    beside = [path for path in sorted(glob.glob(f"{glob.escape(stem)}.*")) if raw_index_path(path) == idx_path]
    found = [path for path in beside if path != idx_path and os.path.isfile(path)]
    if f"{stem}{LINES_SUFFIX}" in found:
        return f"{stem}{LINES_SUFFIX}"
    if len(found) != 1:
        got, place = _list(found) or "none", f"{stem}{LINES_SUFFIX}"
        msg = f"{idx_path}: expected the JSONL file of this raw index beside it, got {got}; move it to {place}"
        raise InputError(msg)
    return found[0]


def _list(names: Any) -> str:  # noqa: ANN401 - any iterable of texts
    return ", ".join(names)
