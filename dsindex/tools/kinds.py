"""Tell what a path is, from the files themselves rather than from their names alone."""

from __future__ import annotations

import bisect
import glob
import os
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dsindex.datasets.exports import export_folder_of, read_facts
from dsindex.datasets.indexed import IndexedDataset
from dsindex.datasets.opening import LINES_SUFFIX, MASK_SUFFIX, PBIN_SUFFIX, TEXT_SUFFIX, read_head
from dsindex.engine.work_folder import MARKER_FILE
from dsindex.errors import FormatError, InputError
from dsindex.formats import PICKLE_START
from dsindex.formats.mmididx import refuse_foreign_index
from dsindex.formats.pbin import open_tokens, read_document_lengths, read_pbin_header
from dsindex.formats.raw_index import raw_index_path
from dsindex.index.cache import DESCRIPTION_SUFFIX, descriptions_in
from dsindex.store.reading import is_stored, stored_size
from dsindex.store.storage import what_is_no_file
from dsindex.store.urls import is_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from dsindex.formats.mmididx import Tokens


KindName = Literal["MMIDIDX", "pbin", "raw index", "index cache", "instruction data", "packs", "export", "work folder"]

BESIDE_SUFFIXES = (".manifest.json", ".provenance.parquet")
"""Endings of files that lie beside a dataset and lead to it."""
PACKING = re.compile(r"(.+)_packing_([0-9]{1,9})(?:_pad([0-9]{1,9}))?")
"""Prefix of packs: that of the instruction data, the sequence length, and the multiple to which packs are filled."""
_ARRAYS = ("-document_index.npy", "-sample_index.npy", "-shuffle_index.npy", "-dataset_index.npy")
_CACHE_SUFFIXES = (DESCRIPTION_SUFFIX, *_ARRAYS, "-dataset_sample_index.npy", "-dsindex.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a path leads to."""

    kind: KindName
    path: str
    """The prefix of MMIDIDX, instruction data and packs; the `.pbin`; the `.idx` of a raw index; the folder or
    description of an index cache; the folder or file of an export; the work folder."""


def tell_kind(path: str) -> Subject:
    """Tell what a path leads to. A damaged dataset is still recognized by the names of its files.

    Raises:
        InputError: If there is nothing, or nothing that dsindex knows, or it is unclear which dataset is meant.
        FormatError: If the file is in none of the known formats, or cannot be read.
    """
    if is_url(path):
        return _in_store(path)
    refused = what_is_no_file(path)
    if refused is not None or "\0" in path:
        raise InputError(f"{path}: expected a dataset, got {refused or 'a name with a NUL character'}")
    if os.path.isfile(path):
        return _file(path)
    work_dir = find_work_folder(path)
    subject = _folder(path) or _prefix(path) or (None if work_dir is None else _folder(work_dir))
    if subject is None:
        raise InputError(_nothing(path))
    return subject


def _in_store(url: str) -> Subject:
    """Tell which dataset an address in an object store leads to, where nothing is listed.

    Raises:
        InputError: If there is none, or it cannot be looked at.
    """
    endings = (".bin", ".idx", *BESIDE_SUFFIXES)
    prefix = next((url.removesuffix(ending) for ending in endings if url.endswith(ending)), url)
    if prefix.endswith(PBIN_SUFFIX):
        return Subject(kind="pbin", path=prefix)
    subject = _prefix(prefix)
    if subject is not None:
        return subject
    raise InputError(
        f"{url}: there is no dataset: expected the prefix of a .bin and .idx, or a .pbin, found none; index caches, "
        f"raw indices and folders are looked at on this machine only"
    )


def _folder(path: str) -> Subject | None:
    if os.path.isfile(os.path.join(path, MARKER_FILE)):
        return Subject(kind="work folder", path=path)
    if descriptions_in(path):
        return Subject(kind="index cache", path=path)
    if export_folder_of(path) is not None:
        return Subject(kind="export", path=path)
    return None


def _prefix(path: str) -> Subject | None:
    if is_stored(f"{path}.idx"):
        head = b"" if is_url(path) else read_head(f"{path}.idx")
        if head.startswith(PICKLE_START):
            return Subject(kind="raw index", path=f"{path}.idx")
        refuse_foreign_index(f"{path}.idx", head)
        return Subject(kind="packs" if PACKING.fullmatch(path) else "MMIDIDX", path=path)
    if is_stored(f"{path}.bin"):
        return Subject(kind="MMIDIDX", path=path)
    if is_stored(f"{path}{TEXT_SUFFIX}.idx") and is_stored(f"{path}{MASK_SUFFIX}.idx"):
        return Subject(kind="instruction data", path=path)
    if is_stored(f"{path}{PBIN_SUFFIX}"):
        return Subject(kind="pbin", path=f"{path}{PBIN_SUFFIX}")
    return None


def find_work_folder(prefix: str) -> str | None:
    """Return the folder `<output-prefix>.build` of a dataset `<output-prefix>_<key>_document`, or None."""
    folder, name = os.path.split(prefix)
    stems = [name] + [name[:at] for at in range(len(name) - 1, 0, -1) if name[at] == "_"]
    candidates = [os.path.join(folder, f"{stem}.build") for stem in stems]
    return next((path for path in candidates if os.path.isdir(path)), None)


def _file(path: str) -> Subject:
    suffix = next((each for each in (".bin", ".idx", *BESIDE_SUFFIXES) if path.endswith(each)), None)
    if suffix is not None:
        subject = _prefix(path.removesuffix(suffix))
        if subject is None:
            what = f"the dataset {path.removesuffix(suffix)}"
            raise InputError(f"{path}: expected {what} beside it, found none; move it there or build it again")
        return subject
    ending = next((each for each in _CACHE_SUFFIXES if path.endswith(each)), None)
    if ending is not None:
        return Subject(kind="index cache", path=f"{path.removesuffix(ending)}{DESCRIPTION_SUFFIX}")
    if path.endswith(PBIN_SUFFIX):  # begins with a number, so its first byte can be any
        return Subject(kind="pbin", path=path)
    head = read_head(path)
    if export_folder_of(path) is not None or (head.startswith(b"PAR1") and "export" in read_facts(path)):
        return Subject(kind="export", path=path)
    if path.endswith(LINES_SUFFIX) or head.lstrip().startswith(b"{"):
        return _lines(path)
    try:
        read_pbin_header(path)
    except FormatError as error:
        raise FormatError(
            f"{path}: expected a dataset of .bin and .idx, a .pbin, a raw index, an index cache, instruction data, a "
            f"work folder or a manifest, got a file that begins with {head[:8]!r}"
        ) from error
    return Subject(kind="pbin", path=path)


def _lines(path: str) -> Subject:
    index = raw_index_path(path)
    if not os.path.isfile(index):
        raise InputError(
            f"{path}: expected a dataset, got text without the raw index {index}; build a dataset from it "
            f"(dsindex build), or index its lines (dsindex raw-index)"
        )
    return Subject(kind="raw index", path=index)


def _nothing(path: str) -> str:
    beside = sorted(glob.glob(f"{glob.escape(path)}_*.idx"))
    if os.path.isdir(path):
        inside = os.path.join(glob.escape(path), "*")
        found = sorted([*glob.glob(f"{inside}.idx"), *glob.glob(f"{inside}{PBIN_SUFFIX}")])
        got = "a folder with several" if found else "a folder without any"
        return f"{path}: expected a dataset, got {got}; {_hint(found)}"
    return f"{path}: there is no dataset: expected a file, or a {path}.idx; {_hint(beside)}"


def _hint(found: list[str]) -> str:
    names = [name.removesuffix(".idx") for name in found]
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"choose one of {', '.join(names[:4])}{more}" if names else "check the path"


# The tokens and documents of a dataset of any format, read in blocks.

BLOCK_ITEMS = 1 << 18
"""Entries of an index held in memory at once."""


class TokenStore(ABC):
    """Tokens in file order, and where documents end."""

    tokens: Tokens
    """All tokens, to be sliced, shape [tokens]."""
    paths: tuple[str, ...]

    @property
    @abstractmethod
    def num_documents(self) -> int:
        """Number of documents, including empty ones."""

    @abstractmethod
    def ends(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return where the documents [begin, end) end in `tokens`."""

    def end(self, document: int) -> int:
        """Return where a document ends in `tokens`; 0 for -1, which ends before the first."""
        return int(self.ends(document, document + 1)[0]) if document >= 0 else 0

    def document_lengths(self) -> Iterator[NDArray[np.int64]]:
        """Yield the tokens of each document, in file order, a block at a time."""
        for begin in range(0, self.num_documents, BLOCK_ITEMS):
            ends = self.ends(begin, min(begin + BLOCK_ITEMS, self.num_documents))
            yield np.diff(ends, prepend=self.end(begin - 1))

    def document_span(self, document: int) -> tuple[int, int]:
        """Return the first token of a document, and one past its last.

        Raises:
            IndexError: If there is no such document.
        """
        _require(self.paths[-1], document, self.num_documents, "document")
        return self.end(document - 1), self.end(document)

    def document(self, number: int) -> NDArray[Any]:
        """Return the tokens of a document.

        Raises:
            IndexError: If there is no such document.
        """
        begin, end = self.document_span(number)
        return self.tokens[begin:end]

    def document_at(self, position: int) -> int:
        """Return the document that has a token."""
        return bisect.bisect_right(range(self.num_documents), position, key=self.end)


class IndexedStore(TokenStore):
    """An MMIDIDX dataset.

    Args:
        prefix: Path without `.bin` and `.idx`.
        check: Check every entry of the index.

    Raises:
        FormatError: If a file is missing or damaged.
    """

    def __init__(self, prefix: str, *, check: bool = True) -> None:
        self.dataset = IndexedDataset(prefix, check=check)
        self.tokens, self._lengths, self._pointers, self._shift = self.dataset.token_columns()
        self._boundaries = self.dataset.document_indices
        self.num_sequences = len(self.dataset)
        self.paths = (f"{prefix}.bin", f"{prefix}.idx")

    @property
    def num_documents(self) -> int:
        """Number of documents, including empty ones."""
        return self.dataset.num_documents

    def ends(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return where the documents [begin, end) end in `tokens`."""
        following = np.asarray(self._boundaries[begin + 1 : end + 1])
        found = np.full(len(following), len(self.tokens), np.int64)  # where no sequence follows
        inside = (following >= 0) & (following < self.num_sequences)
        found[inside] = self._pointers[following[inside]] >> self._shift
        return found

    def document_lengths(self) -> Iterator[NDArray[np.int64]]:
        """Yield the tokens of each document, in file order, a block at a time."""
        for begin in range(0, self.num_documents, BLOCK_ITEMS):
            end = min(begin + BLOCK_ITEMS, self.num_documents)
            if np.array_equal(self._boundaries[begin : end + 1], np.arange(begin, end + 1)):  # a sequence each
                yield self._lengths[begin:end].astype(np.int64)
            else:
                yield np.diff(self.ends(begin, end), prepend=self.end(begin - 1))

    def sequence_lengths(self) -> Iterator[NDArray[np.int64]]:
        """Yield the tokens of each sequence, in file order, a block at a time."""
        for begin in range(0, self.num_sequences, BLOCK_ITEMS):
            yield self._lengths[begin : begin + BLOCK_ITEMS].astype(np.int64)


class PackedStore(TokenStore):
    """A `.pbin` of any version.

    Args:
        path: The `.pbin`.

    Raises:
        FormatError: If the file is not a `.pbin`, or its index is damaged.
    """

    def __init__(self, path: str) -> None:
        self.header = read_pbin_header(path)
        self.tokens = open_tokens(path, self.header)
        self.paths = (path,)
        self._ends = np.cumsum(read_document_lengths(path, self.header), dtype=np.int64)

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        return len(self._ends)

    def ends(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return where the documents [begin, end) end in `tokens`."""
        return self._ends[begin:end]


class Window(TokenStore):
    """The documents [first, first + num_documents) of another store."""

    def __init__(self, store: TokenStore, first: int, num_documents: int) -> None:
        self._store, self._first, self._num_documents = store, first, num_documents
        self._begin = store.end(first - 1)
        self.paths = store.paths
        self.tokens = store.tokens[self._begin : store.end(first + num_documents - 1)]

    @property
    def num_documents(self) -> int:
        """Number of documents in the window."""
        return self._num_documents

    def ends(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return where the documents [begin, end) end in `tokens`."""
        return self._store.ends(self._first + begin, self._first + end) - self._begin


def open_store(subject: Subject, *, check: bool = True) -> IndexedStore | PackedStore:
    """Open a dataset of tokens.

    Raises:
        FormatError: If it is damaged.
    """
    return PackedStore(subject.path) if subject.kind == "pbin" else IndexedStore(subject.path, check=check)


def size_of(paths: Sequence[str]) -> dict[str, int]:
    """Return the sizes of those files that exist, by path."""
    return {path: stored_size(path) for path in paths if is_stored(path)}


def _require(path: str, number: int, total: int, what: str) -> None:
    if not 0 <= number < total:
        have = f"from 0 to {total - 1}" if total else "in it, but it has none"
        raise IndexError(f"{path}: expected a {what} {have}, got {number}")
