"""Index caches on disk: Megatron's descriptions and file names, and dsindex's record next to them.

    {md5}-GPTDataset-{split}-document_index.npy           {md5}-BlendedDataset-{split}-dataset_index.npy
                            -sample_index.npy                                         -dataset_sample_index.npy
                            -shuffle_index.npy
                            -description.txt                                          -description.txt
                            -dsindex.json                                             -dsindex.json

md5 is the hash of the description, which Megatron writes with json.dumps(indent=4); a job looks for exactly these
names. Without the tokenizer's identifiers the hash is unknown, and the dataset's name replaces it.

Megatron uses a cache if its files exist, and checks nothing else. So the description is removed before the arrays of a
new cache get their names, and is published after all of them. The record has the settings that the hash does not cover,
and the digests of the files. Another program's file is kept if its bytes are identical, and refused otherwise.

Source: docs/formats.md §2; megatron.core.datasets, megatron_dataset.py, gpt_dataset.py and blended_dataset.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np
import xxhash

from dsindex.errors import DsindexError, FormatError, InputError, MissingObjectError, OutputError
from dsindex.formats.dtypes import DAMAGED_ARRAY_ERRORS
from dsindex.formats.mmididx import read_index
from dsindex.megatron.flags import FIM_CLASS
from dsindex.megatron.maxtext import MAXTEXT_BLEND, MAXTEXT_CLASS, add_megatron_names, hashed_settings
from dsindex.store.errors import ABSENT, reading
from dsindex.store.json_text import parse_json
from dsindex.store.local import BlockDigester, open_file, path_exists, retry
from dsindex.store.read import digest_file, input_status, version_number
from dsindex.store.urls import absolute

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from dsindex.store.local import DigestingWriter


GPT_CLASS = "GPTDataset"
GPT_CLASSES = (GPT_CLASS, FIM_CLASS)
BLENDED_CLASS = "BlendedDataset"
GPT_ARRAYS = ("document_index", "sample_index", "shuffle_index")
BLENDED_ARRAYS = ("dataset_index", "dataset_sample_index")
DESCRIPTION_SUFFIX = "-description.txt"

Content = bytes | np.ndarray[Any, Any]
"""Content of a file: its bytes, or the array that it stores."""
FileState = tuple[int, str]
"""Size in bytes and digest of a file, as in a record."""


# Descriptions.


def dataset_parts(identifiers: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    """Return the description of each dataset: all of a blend, or the only one."""
    parts: Sequence[dict[str, Any]] = identifiers.get("datasets", [identifiers])
    return parts


def split_of(identifiers: Mapping[str, Any]) -> str:
    """Return the split of a description."""
    return str(identifiers["split" if identifiers["class"] == BLENDED_CLASS else "index_split"])


def is_maxtext(identifiers: Mapping[str, Any]) -> bool:
    """Tell whether a description belongs to a cache for MaxText."""
    return bool(dataset_parts(identifiers)[0].get("class") == MAXTEXT_CLASS)


def description_text(identifiers: Mapping[str, Any]) -> str:
    """Return the text of a description as Megatron writes it, or as MaxText hashes it."""
    hashed = hashed_settings(identifiers) if identifiers["class"] == MAXTEXT_CLASS else dict(identifiers)
    if is_maxtext(identifiers) and "datasets" in identifiers:
        hashed["datasets"] = list(map(hashed_settings, identifiers["datasets"]))
    return json.dumps(hashed, indent=4)


class _Described(msgspec.Struct):
    """The fields read from a dataset's description."""

    kind: Literal["GPTDataset", "GPTFIMDataset"] = msgspec.field(name="class")
    dataset_path: str
    index_split: str
    random_seed: int
    sequence_length: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    tokenizer: object
    num_samples: Annotated[int, msgspec.Meta(ge=0)] | None = None
    split: str | None = None


class _DescribedMaxText(msgspec.Struct):
    """The fields read from the description of a dataset for MaxText."""

    input_paths: Annotated[list[str], msgspec.Meta(min_length=1, max_length=1)]
    seed: int
    sequence_length: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    split: str | None
    split_index: Annotated[int, msgspec.Meta(ge=0, lt=3)]
    add_extra_token: Literal[1]


class _DescribedBlend(msgspec.Struct):
    """The fields read from a blend's description, besides its datasets."""

    split: str
    datasets: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]


for _kind in (_Described, _DescribedMaxText, _DescribedBlend):
    msgspec.json.Decoder(_kind)  # prepares the type: threads that first decode one at the same time can crash


def read_description(path: str) -> dict[str, Any]:
    """Read a description.txt; settings for MaxText are added again under Megatron's names.

    Raises:
        FormatError: If it cannot be read or is not the description of a GPTDataset or a blend of them.
    """
    problem = f"{path} is not the description of a {GPT_CLASS} or {BLENDED_CLASS}"
    hint = "give a …-description.txt of the job's cache folder"
    try:
        with reading(path, FormatError, hint=hint), open_file(path) as file:
            identifiers = parse_json(file.read())
    except ValueError as error:
        raise FormatError(f"{problem}: it is not JSON ({error})") from error
    try:
        if isinstance(identifiers, dict) and identifiers.get("class") == BLENDED_CLASS:
            datasets = list(map(_check_dataset, msgspec.convert(identifiers, _DescribedBlend).datasets))
            return {**identifiers, "datasets": datasets}
        return _check_dataset(identifiers)
    except (msgspec.ValidationError, DsindexError) as error:
        raise FormatError(f"{problem} ({error})") from error


def _check_dataset(identifiers: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON value
    if isinstance(identifiers, dict) and identifiers.get("class") == MAXTEXT_CLASS:
        msgspec.convert(identifiers, _DescribedMaxText)
        return add_megatron_names(identifiers)
    msgspec.convert(identifiers, _Described)
    return dict(identifiers)


# Records.


class Phase(msgspec.Struct, frozen=True):
    """A phase of a continued or scheduled run."""

    begin: int
    """First sample of the phase."""
    kind: str = msgspec.field(name="what")
    """`first job`, `continued` or `schedule`."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The options and plan of a cache that Megatron's hash does not cover."""

    extra_token: bool = True
    keep_partial: bool = False
    document_order: str | None = None
    """None for Megatron's order."""
    shuffle_epochs: str | None = None
    document_order_digest: str | None = None
    plan: str | None = None
    """Name of the plan of a continued or scheduled cache."""
    consumed_samples: int | None = None
    taken: int | None = None
    """Samples of the dataset that were read."""
    segments: tuple[tuple[int, int], ...] | None = None
    """Segments of the document index: the number of positions, and the epoch."""
    phases: tuple[Phase, ...] = ()

    @property
    def order(self) -> tuple[str | None, ...]:
        """The settings that decide the training order; all None for Megatron's."""
        return self.document_order, self.shuffle_epochs, self.document_order_digest, self.plan

    def show_order(self) -> str:
        """Return the order in words.

        >>> Settings().show_order(), Settings(document_order="packed", shuffle_epochs="separately").show_order()
        ("Megatron's document order", "the document order 'packed', epochs shuffled separately")
        """
        if self.document_order is None:
            return self.plan or "Megatron's document order"
        notes = {"separately": ", epochs shuffled separately", "never": ", samples not shuffled"}
        digest = f" ({self.document_order_digest[:8]})" if self.document_order_digest else ""
        plan = f", {self.plan}" if self.plan else ""
        return f"the document order {self.document_order!r}{digest}{notes.get(self.shuffle_epochs or '', '')}{plan}"


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The dataset that an index was built from, and a digest of its sequence lengths, all that an index depends on."""

    prefix: str
    idx_bytes: int | None
    idx_modified_ns: int | None
    bin_bytes: int | None
    begin: int
    end: int
    lengths_digest: str
    of_documents: bool = False
    """Whether lengths, `begin` and `end` are of documents instead of sequences."""


class CacheRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="version", tag=1):
    """dsindex's record next to a cache."""

    dsindex: str = ""
    numpy: str = ""
    settings: Settings = Settings()
    source: Fingerprint | None = None
    files: dict[str, list[FileState]] = {}
    """File name → states of this file that dsindex wrote."""


_RECORD = msgspec.json.Decoder(CacheRecord)  # made once: threads that first decode a type at the same time can crash


# Names.


@dataclass(frozen=True, slots=True)
class CacheFiles:
    """The paths of one cache, which need not exist.

    >>> CacheFiles("cache/web-GPTDataset-train").array("sample_index")
    'cache/web-GPTDataset-train-sample_index.npy'
    """

    stem: str
    """Path up to the class and the split, without endings such as `-description.txt`."""

    @property
    def arrays(self) -> tuple[str, ...]:
        """Names of the arrays, such as `document_index`."""
        is_blend = self._has_fixed_names or self.stem.rpartition("-")[0].endswith(f"-{BLENDED_CLASS}")
        return BLENDED_ARRAYS if is_blend else GPT_ARRAYS

    @property
    def description(self) -> str:
        """Path of the description."""
        return f"{self.stem}{DESCRIPTION_SUFFIX}"

    @property
    def record(self) -> str:
        """Path of dsindex's record."""
        return f"{self.stem}-dsindex.json"

    @property
    def paths(self) -> tuple[str, ...]:
        """The files that a job reads, in the order in which they are written: the description comes last."""
        return (*map(self.array, self.arrays), self.description)

    def array(self, name: str) -> str:
        """Return the path of an array."""
        stem = f"{self.stem}-" if not self._has_fixed_names else self.stem.removesuffix(MAXTEXT_BLEND)
        return f"{stem}{name}.npy"

    @property
    def _has_fixed_names(self) -> bool:
        return os.path.basename(self.stem) == MAXTEXT_BLEND

    def open(self, name: str) -> NDArray[Any]:
        """Map an array; FormatError if it is damaged."""
        return open_array(self.array(name), name)

    def exist(self) -> bool:
        """Tell whether Megatron would use the cache; it only checks that the files exist."""
        return all(map(os.path.isfile, self.paths))

    def read_record(self) -> CacheRecord | None:
        """Read dsindex's record; None if this version cannot read one."""
        try:
            with open_file(self.record) as file:
                return _RECORD.decode(file.read())
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None

    def find_changed(self, record: CacheRecord) -> list[str]:
        """Return the names of files that do not have the recorded bytes."""
        names = map(os.path.basename, self.paths)
        return [
            name for name, path in zip(names, self.paths, strict=True) if record.files.get(name) != [_state_at(path)]
        ]


def cache_files(folder: str, identifiers: Mapping[str, Any], *, name: str | None = None) -> CacheFiles:
    """Return the paths of a cache.

    Args:
        folder: The cache folder (`--data-cache-path`).
        identifiers: Made by `dsindex.megatron.plan`, or read from a description.txt.
        name: Replaces the hash, for caches without one.

    >>> cache_files("cache", {"class": "GPTDataset", "index_split": "train"}).stem
    'cache/ea5bb378baa5a235645b597098926baf-GPTDataset-train'
    """
    import hashlib  # slow to import, and needed only for names

    name_start = name or hashlib.md5(description_text(identifiers).encode(), usedforsecurity=False).hexdigest()
    if is_maxtext(identifiers):
        return CacheFiles(os.path.join(folder, name_start))
    return CacheFiles(os.path.join(folder, f"{name_start}-{identifiers['class']}-{split_of(identifiers)}"))


def files_of(description: str) -> CacheFiles:
    """Return the paths of a cache, given the path of its description."""
    return CacheFiles(description.removesuffix(DESCRIPTION_SUFFIX))


def descriptions_in(folder: str, ending: str = "") -> list[str]:
    """Return the paths of a folder's descriptions whose stems have this ending; none if there is no such folder.

    Raises:
        InputError: If the folder cannot be read.
    """
    names: list[str] = []
    with reading(folder), contextlib.suppress(*ABSENT):
        names = retry(lambda: os.listdir(folder or "."))
    return sorted(os.path.join(folder, name) for name in names if name.endswith(f"{ending}{DESCRIPTION_SUFFIX}"))


def find_description(folder: str, identifiers: Mapping[str, Any]) -> str:
    """Return the path of a cache's description: under its hash or, as in caches without hashes, under any other name.

    If there is no description, the path under its hash is returned.
    """
    hashed_path = cache_files(folder, identifiers).description
    if path_exists(hashed_path):
        return hashed_path
    for path in descriptions_in(folder, f"-{identifiers['class']}-{split_of(identifiers)}"):
        with contextlib.suppress(FormatError):  # it may be another program's file
            if read_description(path) == identifiers:
                return path
    return hashed_path


def find_cache(descriptions: Iterable[str], split: str | None, *, place: str) -> str:
    """Return the description of a split's index cache; the caches of a blend's datasets are not candidates.

    Args:
        descriptions: Paths of descriptions.
        split: train, valid or test; None for the only one, or else train.
        place: Name of the caches in messages.

    Raises:
        InputError: If the split has no cache, or several.
        FormatError: If a description is damaged.
    """
    identifiers_by_path = {path: read_description(path) for path in descriptions}
    dataset_paths = {
        os.path.abspath(find_description(os.path.dirname(path), part))
        for path, identifiers in identifiers_by_path.items()
        for part in identifiers.get("datasets", ())
    }
    paths_by_split: dict[str, list[str]] = {}
    for path, identifiers in identifiers_by_path.items():
        if os.path.abspath(path) not in dataset_paths:
            paths_by_split.setdefault(split_of(identifiers), []).append(path)
    if split is None:
        split = next(iter(paths_by_split)) if len(paths_by_split) == 1 else "train"
    paths = paths_by_split.get(split, [])
    if len(paths) != 1:
        names = ", ".join(paths or sorted(paths_by_split))
        hint = f"choose one of {names}" if names else "check the path"
        raise InputError(f"{place}: there are {len(paths)} index caches of the split {split}", hint=hint)
    return paths[0]


# Arrays, memory-mapped.

IndexSource: TypeAlias = str | os.PathLike[str] | np.ndarray[Any, np.dtype[Any]]
"""An index array, or the path of a `.npy` file to map."""


def open_array(source: IndexSource, name: str, *, length: int | None = None) -> NDArray[Any]:
    """Return an index as a read-only array; files are memory-mapped.

    Args:
        source: The array, or its path.
        name: Name of the index, such as `sample_index`.
        length: The expected length; None for any.

    Raises:
        FormatError: If the file cannot be read, or the array does not have integers in the shape of this index.
    """
    title, place = name.replace("_", " "), "the index array" if isinstance(source, np.ndarray) else os.fspath(source)
    array = source
    if not isinstance(array, np.ndarray):
        try:
            with np.errstate(over="ignore"):  # a damaged header may claim any shape
                array = retry(lambda: np.load(place, mmap_mode="r", allow_pickle=False))
        except DAMAGED_ARRAY_ERRORS as error:
            raise FormatError(f"{place}: cannot be read as a {title} ({error})") from error
    shape: tuple[int, ...] = array.shape if isinstance(array, np.ndarray) else ()  # an .npz archive has none
    fits = len(shape) > 0 and length in {None, shape[0]} and shape[1:] == ((2,) if name == "sample_index" else ())
    if not isinstance(array, np.ndarray) or not fits or array.dtype.kind not in "iu" or not array.flags.c_contiguous:
        needed_size = f"{'any' if length is None else length}{' x 2' if name == 'sample_index' else ''}"
        actual = f"{array.dtype} of shape {shape}" if isinstance(array, np.ndarray) else "an archive"
        raise FormatError(f"{place}: a {title} has {needed_size} integers in C order, and this is {actual}")
    # np.memmap is slow to slice; one array type, always read-only, lets numba compile each kernel once.
    view = array.view(np.ndarray)
    view.flags.writeable = False
    return view


# Writing.


def find_unwritten(files: CacheFiles, contents: Sequence[Content], record: CacheRecord) -> list[tuple[str, Content]]:
    """Return the files of a cache to write, in order: all, only the record, or none if the cache is identical.

    Args:
        files: The paths.
        contents: Contents of the files, in the order of `files.paths`.
        record: What to record besides the files' sizes and digests.

    Raises:
        OutputError: If a file exists that differs and that dsindex did not write.
    """
    states, old_states, recorded = list(map(state_of, contents)), list(map(_state_at, files.paths)), files.read_record()
    names = list(map(os.path.basename, files.paths))
    new_record = msgspec.structs.replace(record, files={name: [new] for name, new in zip(names, states, strict=True)})
    writes: list[tuple[str, Content]] = [(files.record, msgspec.json.format(msgspec.json.encode(new_record), indent=2))]
    if old_states == states:
        return writes if recorded not in (None, new_record) else []  # another program's cache gets no record
    for name, old, new in zip(names, old_states, states, strict=True):
        if old not in (None, new, *(recorded.files.get(name, ()) if recorded is not None else ())):
            problem = "damaged, or another program's file: it does not match these data and options"
            hint = "a training job would use it as it is: move it away, or choose another folder for the cache"
            raise OutputError(f"{os.path.join(os.path.dirname(files.stem), name)}: {problem}", hint=hint)
    return [*zip(files.paths, contents, strict=True), *writes]


def write_content(file: DigestingWriter, content: Content) -> None:
    """Write the content of a file; arrays are written as by numpy.save."""
    for piece in _file_pieces(content):
        file.write(piece)


def _file_pieces(content: Content) -> Iterator[bytes | memoryview]:
    if isinstance(content, bytes):
        yield content
        return
    header = BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(content))
    yield header.getvalue()
    yield np.ascontiguousarray(content).data


def state_of(content: Content) -> FileState:
    """Return the size and digest of the file that `write_content` writes."""
    digester, size_bytes = BlockDigester(), 0
    for piece in _file_pieces(content):
        digester.update(piece)
        size_bytes += memoryview(piece).nbytes
    return size_bytes, digester.hexdigest()


def _state_at(path: str) -> FileState | None:
    """Return the state of a file; None if it is missing, and a state that equals no other if it is no regular file."""
    if not path_exists(path):
        return None
    with reading(path), contextlib.suppress(FileNotFoundError):  # a link to nothing
        status = retry(lambda: os.stat(path))
        if stat.S_ISREG(status.st_mode):
            return status.st_size, digest_file(path)
    return 0, "not a regular file"


def array_bytes(count: int, dtype: np.dtype[Any]) -> int:
    """Return the size on disk of an array of `count` items; numpy pads its header to 128 bytes."""
    return 128 + count * dtype.itemsize


# The source of an index: the sequence lengths in an `.idx`, and a fingerprint that detects changes.

PIECE = 1 << 22
"""Sequence lengths read at once."""


def read_lengths(prefix: str, begin: int, end: int, *, of_documents: bool = False) -> NDArray[np.int32]:
    """Read the lengths of sequences or documents [begin, end) into memory and check that none is negative.

    Raises:
        FormatError: If the `.idx` is damaged, has fewer sequences, or a negative length.
    """
    path = f"{prefix}.idx"
    index = read_index(path)
    sizes = (index.join_sequences() if of_documents else index).sequence_lengths
    if end > len(sizes):
        raise FormatError(f"{path}: it has {len(sizes)} sequences and had at least {end}", hint="run the command again")
    lengths = np.array(sizes[begin:end], dtype=np.int32, order="C")
    if len(lengths) and lengths.min() < 0:
        sequence = begin + int(np.argmax(lengths < 0))
        raise FormatError(f"{path}: sequence {sequence} has the length {lengths[sequence - begin]}")
    return lengths


def count_tokens(sequence_lengths: NDArray[np.int32]) -> int:
    """Return the sum of lengths in int64, computed in pieces so that a mapped file does not stay in memory.

    >>> count_tokens(np.array([2**31 - 1, 2**31 - 1], np.int32))
    4294967294
    """
    pieces = range(0, len(sequence_lengths), PIECE)
    return sum(int(sequence_lengths[at : at + PIECE].sum(dtype=np.int64)) for at in pieces)


def fingerprint(
    prefix: str, begin: int, end: int, lengths: NDArray[np.int32], *, of_documents: bool = False
) -> Fingerprint:
    """Return the fingerprint of the files and lengths that an index is built from.

    Args:
        prefix: The dataset.
        begin: First sequence or document that the index draws from.
        end: One past the last one.
        lengths: Tokens of each of them.
        of_documents: Whether the index draws from documents instead of sequences.
    """
    idx_bytes, idx_modified_ns = size_and_version(f"{prefix}.idx") or (None, None)
    return Fingerprint(
        prefix=absolute(prefix),
        idx_bytes=idx_bytes,
        idx_modified_ns=idx_modified_ns,
        bin_bytes=(size_and_version(f"{prefix}.bin") or (None,))[0],
        begin=begin,
        end=end,
        lengths_digest=xxhash.xxh3_128_hexdigest(lengths.astype("<i4", copy=False).data),
        of_documents=of_documents,
    )


def size_and_version(path: str) -> tuple[int, int] | None:
    """Return the size and time of a file, or the size and version hash of an object; None if it is not visible."""
    try:
        status = input_status(path)
    except (OSError, MissingObjectError):
        return None
    return status.size_bytes, version_number(status)
