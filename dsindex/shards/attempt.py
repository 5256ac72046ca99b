"""The files of one attempt at a task: written under names of its own, synced and digested, removed if it fails.

Any number of attempts at one task may run at once, and late ones after the job has gone on: none touches what another
one writes. Which attempt counts is decided by the driver alone (workflows.state.ledger).
"""

from __future__ import annotations

import contextlib
import os
from typing import IO, TYPE_CHECKING, Any

from dsindex.errors import OutputError
from dsindex.formats.mmididx import IndexBuilder
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
    """One attempt's files, as a context: those of an attempt that does not commit are removed.

    Args:
        work_dir: The marked work folder that attempts are written below.
        folder: Relative to it.
        name: Of the task; the attempt adds what makes the names its own.
    """

    def __init__(self, work_dir: str, *, folder: str, name: str) -> None:
        self._work_dir = work_dir
        self._folder = folder
        self._stem = f"{folder}/{name}"
        self._files: list[AttemptFile] = []
        self._parts: list[PartWriter] = []
        self._committed = False

    def __enter__(self) -> Attempt:
        folder_id = read_folder_id(self._work_dir)
        if folder_id is None:  # a late attempt must not bring back what the driver removed
            msg = f"{self._work_dir}: expected the work folder, got nothing there; run the same command again"
            raise OutputError(msg)
        self._stem = f"{self._stem}.{new_file_id(folder_id)}"
        make_folder(os.path.join(self._work_dir, self._folder))
        return self

    def __exit__(self, *_: object) -> None:
        for part in self._parts:
            part.index.close()
        for file in self._files:
            file.close(keep=self._committed)

    def open(self, suffix: str) -> AttemptFile:
        """Open one more file of this attempt.

        Raises:
            OSError: If that cannot be done; see `errors_named`.
        """
        file = AttemptFile(self._work_dir, f"{self._stem}.{suffix}")
        self._files.append(file)
        return file

    def open_part(self, suffix: str, dtype: np.dtype[Any]) -> PartWriter:
        """Open `<suffix>.bin` and `<suffix>.idx` of this attempt.

        Raises:
            OSError: If that cannot be done; see `errors_named`.
        """
        folder = os.path.join(self._work_dir, self._folder)
        part = PartWriter(
            self.open(f"{suffix}.bin"), self.open(f"{suffix}.idx"), index=IndexBuilder(dtype, folder=folder)
        )
        self._parts.append(part)
        return part

    @contextlib.contextmanager
    def errors_named(self) -> Iterator[None]:
        """Turn what goes wrong with a file inside the block into a sentence.

        Raises:
            OutputError: For an OSError inside the block.
        """
        try:
            yield
        except OSError as error:
            raise output_error(self._work_dir, error) from error

    def commit(self) -> None:
        """Keep the files, all of which are finished."""
        self._committed = True


class AttemptFile:
    """One file of an attempt, open for sequential writing."""

    def __init__(self, work_dir: str, name: str) -> None:
        self._name = name
        self._path = os.path.join(work_dir, name)
        self._file: IO[bytes] = open(self._path, "xb", buffering=BUFFER_BYTES)  # noqa: SIM115 - closed by close()
        self.writer = DigestingWriter(self._file)

    def write(self, data: bytes | memoryview) -> None:
        """Write at the end."""
        self.writer.write(data)

    def finish(self) -> StoredFile:
        """Sync the file and say what it is."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self.writer.as_stored(self._name)

    def close(self, *, keep: bool) -> None:
        """Close the file, and remove it unless it is to be kept."""
        try:
            self._file.close()
        except OSError:  # a full disk, which was reported already when it was written
            if keep:
                raise
        if not keep:
            with contextlib.suppress(OSError):  # what cannot be removed goes with the work folder
                os.unlink(self._path)


class PartWriter:
    """A `.bin` and `.idx` that grow by documents."""

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
        """Write documents at the end; the tokens are of the type on disk."""
        self._bin.write(tokens.data)
        self.index.add_documents(sequence_lengths, sequences_per_document)

    def finish(self) -> tuple[StoredFile, StoredFile]:
        """Write the index, sync both files and say what they are."""
        self.index.write(self._idx.writer)
        return self._bin.finish(), self._idx.finish()
