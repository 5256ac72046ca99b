"""Datasets as other trainers read them: what they need beside the `.bin`, and a link to it in place of a copy.

    olmo      P.npy -> P.bin                  OLMo-core's "numpy" files are tokens without a header
              P.csv.gz                        a line `begin,end` for each document, in tokens
    nanotron  P_nanotron/NAME.ds -> P.bin     datatrove's files, a folder for each dataset
              P_nanotron/NAME.ds.index        where each document ends, in tokens: uint64, little-endian
    maxtext   nothing: MaxText reads `.bin` and `.idx`; `dsindex index --layout maxtext` writes its indices

datatrove reads tokens of 2 and 4 bytes; those of 1 and 8 bytes are copied.

Source: olmo_core/data/utils.py, `iter_document_indices`; datatrove/utils/dataset.py; nanotron/data/nanoset.py.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from dsindex.amounts import count
from dsindex.errors import FormatError, OutputError
from dsindex.execution.report import Report, show_datasets
from dsindex.formats.new_files import NewFiles, is_same_file, new_file_error
from dsindex.formats.raw_index import run_in_threads
from dsindex.formats.token_copy import TokenRun, copy_tokens
from dsindex.jobs.conversion import document_bounds, read_checked_index
from dsindex.store.storage import make_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import IO

    from numpy.typing import NDArray

    from dsindex.formats.mmididx import SequenceIndex
    from dsindex.options.datasets import ExportConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult(Report):
    """The result of an export."""

    prefix: str
    outputs: tuple[str, ...]
    """The new files and links; empty if the trainer reads the dataset as it is."""
    num_documents: int
    num_tokens: int
    settings: tuple[str, ...]
    """What to tell the trainer."""

    def __repr__(self) -> str:
        return show_datasets(self, [(self.prefix, self.num_documents, self.num_tokens)])

    def lines(self) -> list[str]:
        """Return the closing summary."""
        size = f"{count(self.num_documents, 'document')}, {count(self.num_tokens, 'token')}"
        return [f"{self.prefix}: {size}", *self.outputs, *self.settings]


def export_dataset(config: ExportConfig, *, prefix: str) -> ExportResult:
    """Write what a trainer needs beside a dataset. What is there already with the same content is kept.

    Raises:
        InputError: If there is no such dataset.
        FormatError: If it is damaged, or the trainer cannot read it.
        OutputError: If another file is in the way, or a file cannot be written.
    """
    idx_path, bin_path = f"{prefix}.idx", f"{prefix}.bin"
    index, bin_bytes = read_checked_index(prefix)
    dtype = index.dtype
    if index.sequence_modes is not None or dtype.kind not in "iu":
        raise FormatError(f"{idx_path}: expected a dataset of texts, got {dtype} tokens or sequence modes")
    run = TokenRun(path=bin_path, offset=0, dtype=dtype.str, num_tokens=bin_bytes // dtype.itemsize)
    outputs: tuple[str, ...] = ()
    if config.trainer == "olmo":
        outputs = (f"{prefix}.csv.gz", f"{prefix}.npy")
        unsigned = np.dtype(f"<u{dtype.itemsize}")
        settings = [f"paths=[{outputs[-1]!r}], dtype=NumpyDatasetDType.{unsigned.name}"]
        _write(outputs, run, unsigned, lambda: _bounds(index, bin_bytes))
    elif config.trainer == "nanotron":
        folder = f"{prefix}_nanotron"
        tokens = os.path.join(folder, f"{os.path.basename(prefix)}.ds")
        outputs = (f"{tokens}.index", tokens)
        unsigned = np.dtype("<u2" if dtype.itemsize <= 2 else "<u4")
        settings = [f"dataset_folder: {folder}", f"token_size_in_bytes: {unsigned.itemsize}"]
        make_folder(folder)
        _write(outputs, run, unsigned, lambda: _ends(index, bin_bytes))
    else:
        settings = [
            f"dataset_type=grain grain_file_type=mmap grain_train_files={prefix!r}",
            f"for grain_file_type=mmap_npy: dsindex index --layout maxtext --data-path {prefix} …",
        ]
    return ExportResult(
        prefix=prefix,
        outputs=outputs,
        num_documents=index.header.num_documents,
        num_tokens=run.num_tokens,
        settings=tuple(settings),
    )


def _write(outputs: Sequence[str], run: TokenRun, dtype: np.dtype[Any], borders: Callable[[], Iterator[bytes]]) -> None:
    """Write a sidecar, and a link to the tokens or, if they have another size, a copy of them."""
    sidecar, tokens = outputs
    copied = [tokens] if dtype.itemsize != np.dtype(run.dtype).itemsize else []
    with contextlib.ExitStack() as undo:
        if not copied and _link(run.path, tokens):
            undo.callback(os.unlink, tokens)
        if os.path.lexists(sidecar):
            if not _holds(sidecar, borders()):
                msg = "expected the borders of this dataset's documents, got another file or those of an older dataset"
                raise OutputError(f"{sidecar}: {msg}; remove it and run the same command again")
            if not copied:  # nothing is missing, and the folder may be read-only
                undo.pop_all()
                return
        with NewFiles([sidecar, *copied], inputs=[run.path], or_same=True) as [new, *copies]:
            with _packed(sidecar, new.file) as file:
                file.writelines(borders())
            for copy in copies:
                copy_tokens(copy, [run], dtype=dtype, run_tasks=run_in_threads)
        undo.pop_all()


def _packed(path: str, file: IO[bytes]) -> contextlib.AbstractContextManager[IO[bytes]]:
    """Return the content of a `.gz`, and any other file as it is, which stays open."""
    if not path.endswith(".gz"):
        return contextlib.nullcontext(file)
    return cast("IO[bytes]", gzip.GzipFile(filename="", mode=file.mode[0] + "b", fileobj=file, mtime=0))


def _holds(path: str, content: Iterator[bytes]) -> bool:
    """Tell whether a file has this content; releases of zlib pack the same content differently."""
    try:
        if not os.path.isfile(path):
            return False
        with open(path, "rb") as packed, _packed(path, packed) as file:
            return all(file.read(len(chunk)) == chunk for chunk in content) and not file.read(1)
    except (OSError, EOFError, zlib.error):
        return False


def _link(bin_path: str, path: str) -> bool:
    """Link to a `.bin` by a relative path; return whether the link is new."""
    if os.path.lexists(path):
        if os.path.islink(path) and is_same_file(path, bin_path):
            return False
        raise OutputError(f"{path}: expected a link to {bin_path} or nothing, got another file; move it away")
    folder = os.path.realpath(os.path.dirname(bin_path))
    target = os.path.relpath(os.path.join(folder, os.path.basename(bin_path)), os.path.realpath(os.path.dirname(path)))
    try:
        os.symlink(target, path)
    except OSError as error:
        raise new_file_error(path, error) from error
    return True


def _documents(index: SequenceIndex, bin_bytes: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield where documents with tokens begin and end, in tokens; the readers know no others."""
    for begins, ends in document_bounds(index, bin_bytes):
        filled = ends > begins
        yield begins[filled] // index.dtype.itemsize, ends[filled] // index.dtype.itemsize


def _bounds(index: SequenceIndex, bin_bytes: int) -> Iterator[bytes]:
    for begins, ends in _documents(index, bin_bytes):
        yield "".join(map("%d,%d\n".__mod__, zip(begins.tolist(), ends.tolist(), strict=True))).encode()


def _ends(index: SequenceIndex, bin_bytes: int) -> Iterator[bytes]:
    for _, ends in _documents(index, bin_bytes):
        yield ends.astype("<u8").tobytes()
