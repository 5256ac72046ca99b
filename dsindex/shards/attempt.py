"""The files of one attempt at a task: written under unique names, synced and digested, and removed if it fails.

If the work folder is in an object store, they are held in memory, or in unnamed files of the node once they are large,
and become objects when the attempt commits: a worker that is killed leaves nothing on its node.
Any number of attempts at one task may run at once, even after the job has moved on; none touches the files of another.
The driver alone decides which attempt counts (workflows.state.ledger).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from functools import partial
from typing import IO, TYPE_CHECKING, Any

from dsindex.errors import OutputError
from dsindex.formats.index_builder import IndexBuilder
from dsindex.objects.fetching import fetch_later
from dsindex.objects.urls import ObjectUrl
from dsindex.objects.waiting import result_of
from dsindex.shards.held_file import HeldFile
from dsindex.shards.ownership import new_file_id, read_folder_id
from dsindex.storage import BUFFER_BYTES, DigestingWriter, make_folder, output_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from dsindex.storage import StoredFile

SHARDS_PER_FOLDER = 10_000


def shard_folder(shard: int) -> str:
    """Return the folder of a shard's attempts, relative to the work folder.

    >>> shard_folder(42137)
    'shards/0004'
    """
    return f"shards/{shard // SHARDS_PER_FOLDER:04d}"


class Attempt:
    """Context manager for one attempt's files; they are removed unless the attempt commits.

    Args:
        work_dir: The marked work folder.
        folder: The folder for the files, relative to `work_dir`.
        name: Name of the task; the attempt makes it unique.
    """

    def __init__(self, work_dir: str, *, folder: str, name: str) -> None:
        self._work_dir = work_dir
        self._folder = folder
        self._stem = f"{folder}/{name}"
        self._files: list[AttemptFile] = []
        self._parts: list[PartWriter] = []
        self._committed = False
        self._in_store = isinstance(work_dir, ObjectUrl)
        self._place = work_dir
        """The folder of this machine in which the files are written."""

    def __enter__(self) -> Attempt:
        folder_id = read_folder_id(self._work_dir)
        if folder_id is None:  # a late attempt must not bring back what the driver removed
            msg = f"{self._work_dir}: expected the work folder, found nothing; run the same command again"
            raise OutputError(msg)
        self._stem = f"{self._stem}.{new_file_id(folder_id)}"
        if self._in_store:
            self._place = _temporary_folder()
        else:
            make_folder(os.path.join(self._place, self._folder))
        return self

    def __exit__(self, *_: object) -> None:
        for part in self._parts:
            part.index.close()
        for file in self._files:
            file.close(keep=self._committed)

    def open(self, suffix: str) -> AttemptFile:
        """Open another file of this attempt.

        Raises:
            OSError: If the file cannot be created; see `errors_named`.
        """
        name = f"{self._stem}.{suffix}"
        file = HeldFile(self._place, name) if self._in_store else SyncedFile(self._place, name)
        self._files.append(file)
        return file

    def open_part(self, suffix: str, dtype: np.dtype[Any]) -> PartWriter:
        """Open `<suffix>.bin` and `<suffix>.idx` of this attempt.

        Raises:
            OSError: If a file cannot be created; see `errors_named`.
        """
        folder = self._place if self._in_store else os.path.join(self._place, self._folder)
        part = PartWriter(
            self.open(f"{suffix}.bin"), self.open(f"{suffix}.idx"), index=IndexBuilder(dtype, folder=folder)
        )
        self._parts.append(part)
        return part

    @contextlib.contextmanager
    def errors_named(self) -> Iterator[None]:
        """Turn an OSError inside the block into an OutputError.

        Raises:
            OutputError: In place of an OSError.
        """
        try:
            yield
        except OSError as error:
            refusal = output_error(self._place, error)
            if self._in_store and not refusal.transient:
                msg = (
                    f"{self._place}: cannot be written ({error.strerror}); make room for a shard there on this node, "
                    f"or set TMPDIR to a larger disk, and run the same command again: it continues"
                )
                refusal = OutputError(msg)
            raise refusal from error

    def commit(self) -> None:
        """Keep the files, all of which must be finished.

        Raises:
            OutputError: If the store of the work folder refuses.
        """
        if isinstance(self._work_dir, ObjectUrl):
            folder = self._work_dir
            held = [file for file in self._files if isinstance(file, HeldFile)]
            sent = [fetch_later(partial(file.send, folder)) for file in held]
            for future in sent:
                result_of(future)
        self._committed = True


def _temporary_folder() -> str:
    """Return the node's temporary folder.

    Raises:
        OutputError: If there is none that can be written.
    """
    try:
        return tempfile.gettempdir()
    except FileNotFoundError as error:
        msg = (
            f"{os.uname().nodename}: expected a temporary folder that can be written, got none ({error.strerror}); set "
            f"TMPDIR on this node, and run the same command again: it continues"
        )
        raise OutputError(msg) from error


class SyncedFile:
    """One file of an attempt on a disk, open for sequential writing."""

    def __init__(self, place: str, name: str) -> None:
        self._name = name
        self._path = os.path.join(place, name)
        self._file: IO[bytes] = open(self._path, "xb", buffering=BUFFER_BYTES)  # noqa: SIM115 - closed by close()
        self.writer = DigestingWriter(self._file)

    def write(self, data: bytes | memoryview) -> None:
        """Append data."""
        self.writer.write(data)

    def finish(self) -> StoredFile:
        """Sync the file and return its name, size and digest."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self.writer.as_stored(self._name)

    def close(self, *, keep: bool) -> None:
        """Close the file; remove it unless `keep`."""
        try:
            self._file.close()
        except OSError:  # such as a full disk, which was reported already
            if keep:
                raise
        if not keep:
            with contextlib.suppress(OSError):  # otherwise it is removed with the work folder
                os.unlink(self._path)


AttemptFile = SyncedFile | HeldFile
"""One file of an attempt."""


class PartWriter:
    """A `.bin` and `.idx` to which documents are appended."""

    def __init__(self, bin_file: AttemptFile, idx_file: AttemptFile, *, index: IndexBuilder) -> None:
        self._bin = bin_file
        self._idx = idx_file
        self.index = index
        """Counts sequences, documents and tokens."""

    def add(
        self,
        tokens: NDArray[Any],
        sequence_lengths: NDArray[np.integer[Any]],
        sequences_per_document: NDArray[np.integer[Any]],
    ) -> None:
        """Append documents; the tokens must have the type on disk."""
        self._bin.write(tokens.data)
        self.index.add_documents(sequence_lengths, sequences_per_document)

    def finish(self) -> tuple[StoredFile, StoredFile]:
        """Write the index, sync both files and return their names, sizes and digests."""
        self.index.write(self._idx.writer)
        return self._bin.finish(), self._idx.finish()
