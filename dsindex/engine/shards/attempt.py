"""The files of one attempt at a task: written under unique names, synced and digested, and removed if it fails.

If the work folder is in an object store, they are held in memory, or in unnamed files of the node once they are large,
and become objects when the attempt commits: a worker that is killed leaves nothing on its node.
Any number of attempts at one task may run at once, even after the job has moved on; none touches the files of another.
The driver alone decides which attempt counts (dsindex.engine.ledger).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from dataclasses import dataclass
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np

from dsindex.dtypes import cast_tokens, require_fit, starts_of
from dsindex.engine.shards.places import PlacedFile
from dsindex.errors import OutputError, TokenizerError
from dsindex.formats.mmididx import IndexBuilder
from dsindex.store.clients import Blocks
from dsindex.store.ownership import new_file_id, read_folder_id
from dsindex.store.requests import fetch_later, result_of
from dsindex.store.storage import BUFFER_BYTES, DigestingWriter, append_all, holds_writes, make_folder, output_error
from dsindex.store.urls import ObjectUrl, parse_url
from dsindex.store.writing import MOST_OBJECT_BYTES, keep_recent, put_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from dsindex.engine.shards.places import Claim
    from dsindex.store.clients import Bytes
    from dsindex.store.storage import StoredFile
    from dsindex.text.encoders import TokenBatch


# A file of an attempt whose work folder is in an object store, until it is written there.

HELD_BYTES = 64 << 20
"""Size up to which a file is held in memory; beyond, it is in an unnamed file of the node."""


class HeldFile:
    """One file of an attempt, open for sequential writing.

    Args:
        place: The node's temporary folder, where the content is once it is large; no other process sees it there, and
            it is gone with this one.
        name: Name of the object relative to the work folder.
    """

    def __init__(self, place: str, name: str) -> None:
        self._name = name
        self._content = _Content(place)
        self.writer = DigestingWriter(self._content)

    def write(self, data: Bytes) -> None:
        """Append data."""
        self.writer.write(data)

    def finish(self) -> StoredFile:
        """Return the file's name, size and digest."""
        return self.writer.as_stored(self._name)

    def send(self, folder: ObjectUrl) -> None:
        """Write the finished file as an object of a work folder.

        Raises:
            OutputError: If it cannot be read again, is larger than an object may be, or the store refuses.
        """
        url = folder.with_suffix(f"/{self._name}")
        if self.writer.size_bytes > MOST_OBJECT_BYTES:
            raise OutputError(
                f"{url}: expected a shard of at most {MOST_OBJECT_BYTES >> 30} GiB, which is what a store takes in one "
                f"request, got {self.writer.size_bytes:,} bytes; use a smaller --shard-size"
            )
        content = self._content.whole()
        put_object(url, content)
        if self._content.is_held:
            keep_recent(url, content)

    def close(self, *, keep: bool) -> None:  # noqa: ARG002 - the object was written before
        """Let the content go."""
        self._content.close()


class _Content:
    """Bytes in memory, and in a file once they are many."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._held: list[bytes] = []
        self._num_held = 0
        self._file: IO[bytes] | None = None

    def write(self, data: Bytes) -> int:
        if self._file is None and self._num_held + len(data) > HELD_BYTES:
            self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115 - closed by close()
            for block in self._held:
                append_all(self._file, block)
            self._held = []
        if self._file is None:
            self._held.append(bytes(data))
            self._num_held += len(data)
        else:
            append_all(self._file, data)
        return len(data)

    @property
    def is_held(self) -> bool:
        """Whether all is in memory."""
        return self._file is None

    def whole(self) -> Blocks:
        """Return all that was written."""
        if self._file is None:
            return Blocks(tuple(self._held))
        try:
            return Blocks.of(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))
        except OSError as error:
            raise output_error(self._folder, error) from error

    def close(self) -> None:
        self._held = []
        if self._file is not None:
            self._file.close()


# The layout of encoded texts on disk: the sequences of a document, EOD tokens and empty texts.
#
# Megatron's rules and Modalities' rules, each as one vectorised function of a batch.
# Source: docs/formats.md, sections 1 and 3.


@dataclass(frozen=True, slots=True, kw_only=True)
class LaidOutDocuments:
    """A batch in its layout on disk."""

    tokens: NDArray[Any]
    """Token ids in their type on disk, including EOD; shape [tokens]."""
    sequence_lengths: NDArray[np.int64]
    """Tokens of each sequence including EOD, never 0; shape [sequences]."""
    sequences_per_document: NDArray[np.int64]
    """Sequences of each document, 0 for one without tokens; shape [documents]."""
    num_empty: int
    """Number of documents whose texts have no tokens."""
    eod_in_text: int
    is_document: NDArray[np.bool_] | None = None
    """Which records became documents, shape [records]; None if all did."""


def lay_out_documents(
    batch: TokenBatch,
    texts_per_record: NDArray[np.int64] | None,
    *,
    dtype: np.dtype[Any],
    eod_id: int | None,
    empty_documents: Literal["keep", "eod"] = "keep",
    vocabulary_size: int | None = None,
) -> LaidOutDocuments:
    """Arrange encoded texts as Megatron's preprocess_data.py does: drop empty sequences, close documents with EOD.

    A text without ids adds no sequence. EOD is appended to the last sequence of a document that has any token. A
    document without tokens keeps only its boundary, or becomes EOD alone, as with preprocess_data_fast.py.

    Args:
        batch: Ids of all texts, one after the other.
        texts_per_record: Number of texts of each document, shape [documents]; None for one each.
        dtype: Token type on disk.
        eod_id: The EOD token; None to append none.
        empty_documents: What a document without tokens becomes: `keep` for an empty one, `eod` for one of EOD alone,
            which needs `eod_id`.
        vocabulary_size: Refuse larger token ids; None if they were checked.

    Raises:
        TokenizerError: If an id is outside the vocabulary.
        OverflowError: If an id does not fit.

    Source: docs/formats.md section 1; Megatron-LM tools/preprocess_data.py, Encoder.encode, and
    IndexedDatasetBuilder.add_documents, which preprocess_data_fast.py calls.
    """
    has_tokens = batch.lengths > 0
    lengths = batch.lengths[has_tokens]
    if texts_per_record is None:
        sequences_per_document = has_tokens.astype(np.int64)
    else:
        kept_before = starts_of(has_tokens)
        ends = np.cumsum(texts_per_record)
        sequences_per_document = kept_before[ends] - kept_before[ends - texts_per_record]
    is_empty = sequences_per_document == 0
    if empty_documents == "eod":
        lengths = np.insert(lengths, np.cumsum(sequences_per_document)[is_empty], 0)  # each grows by EOD below
        sequences_per_document = np.maximum(sequences_per_document, 1)
    if eod_id is None:
        eod_in_text = 0
        check_ids(batch.tokens, vocabulary_size)
        tokens = cast_tokens(batch.tokens, dtype)
    else:
        last_sequences = np.cumsum(sequences_per_document)[sequences_per_document > 0] - 1
        lengths[last_sequences] += 1
        places = np.cumsum(lengths)[last_sequences] - 1
        tokens, eod_in_text = _insert_eod(batch.tokens, places, eod_id, dtype=dtype, vocabulary_size=vocabulary_size)
    return LaidOutDocuments(
        tokens=tokens,
        sequence_lengths=lengths,
        sequences_per_document=sequences_per_document,
        num_empty=int(np.count_nonzero(is_empty)),
        eod_in_text=eod_in_text,
    )


def lay_out_pbin_documents(
    batch: TokenBatch, *, dtype: np.dtype[Any], eod_id: int | None, vocabulary_size: int | None = None
) -> LaidOutDocuments:
    """Arrange encoded texts as Modalities packs them: one sequence each, closed by EOD; empty texts are dropped.

    Args:
        batch: Ids of all texts, one text per document, one after the other.
        dtype: Token type on disk.
        eod_id: Appended to a document unless it is already its last token; None to append none.
        vocabulary_size: Refuse larger token ids; None if they were checked.

    Raises:
        TokenizerError: If an id is outside the vocabulary.
        OverflowError: If an id does not fit.

    Source: docs/formats.md section 3.
    """
    has_tokens = batch.lengths > 0
    lengths = batch.lengths[has_tokens]
    if eod_id is None:
        eod_in_text = 0
        check_ids(batch.tokens, vocabulary_size)
        tokens = cast_tokens(batch.tokens, dtype)
    else:
        lacks_eod = batch.tokens[np.cumsum(lengths) - 1] != eod_id
        lengths = lengths + lacks_eod
        places = np.cumsum(lengths)[lacks_eod] - 1
        tokens, eod_in_text = _insert_eod(batch.tokens, places, eod_id, dtype=dtype, vocabulary_size=vocabulary_size)
    return LaidOutDocuments(
        tokens=tokens,
        sequence_lengths=lengths,
        sequences_per_document=np.ones(len(lengths), np.int64),
        num_empty=int(np.count_nonzero(~has_tokens)),
        eod_in_text=eod_in_text,
        is_document=has_tokens,
    )


def _insert_eod(
    tokens: NDArray[np.uint32],
    places: NDArray[np.int64],
    eod_id: int,
    *,
    dtype: np.dtype[Any],
    vocabulary_size: int | None,
) -> tuple[NDArray[Any], int]:
    """Return the tokens, cast to `dtype`, with `eod_id` at the given places of the result.

    Returns:
        The result, and how many of the input tokens were `eod_id`.

    Raises:
        TokenizerError: If an id is outside the vocabulary.
        OverflowError: If an id does not fit.
    """
    result = np.empty(len(tokens) + len(places), dtype)
    check_ids(tokens, vocabulary_size)
    require_fit(tokens, dtype)
    is_text = np.ones(len(result), np.bool_)
    is_text[places] = False
    result[is_text] = tokens
    result[places] = eod_id
    return result, int(np.count_nonzero(tokens == eod_id))


def check_ids(tokens: NDArray[np.integer[Any]], vocabulary_size: int | None) -> None:
    """Refuse token ids outside the vocabulary; None if they were checked.

    Raises:
        TokenizerError: Naming the largest.
    """
    if vocabulary_size is not None and tokens.size and int(tokens.max()) >= vocabulary_size:
        raise TokenizerError(
            f"expected token ids below {vocabulary_size}, the size of the vocabulary, got {tokens.max()}; "
            f"the tokenizer is damaged"
        )


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
        claim: Begins an attempt that may write tokens in place; None for files of their own.
    """

    def __init__(self, work_dir: str, *, folder: str, name: str, claim: Callable[[], Claim] | None = None) -> None:
        self._work_dir = work_dir
        self._make_claim = claim
        self._claim: Claim | None = None
        self._folder = folder
        self._stem = f"{folder}/{name}"
        self._files: list[AttemptFile] = []
        self._spools: list[IndexBuilder] = []
        self._committed = False
        self._in_store = holds_writes(work_dir)
        self._place = work_dir
        """The folder of this machine in which the files are written."""

    def __enter__(self) -> Attempt:
        folder_id = read_folder_id(self._work_dir)
        if folder_id is None:  # a late attempt must not bring back what the driver removed
            raise OutputError(f"{self._work_dir}: expected the work folder, found nothing; run the same command again")
        self._stem = f"{self._stem}.{new_file_id(folder_id)}"
        if self._in_store:
            self._place = _temporary_folder()
        else:
            make_folder(os.path.join(self._place, self._folder))
        if self._make_claim is not None:
            with self.errors_named():
                self._claim = self._make_claim()
        return self

    def __exit__(self, *_: object) -> None:
        for spool in self._spools:
            with contextlib.suppress(OSError):  # buffered data may not fit a full disk, and is not needed
                spool.close()
        for file in self._files:
            file.close(keep=self._committed)
        if self._claim is not None:
            self._claim.places.drop(self._claim)

    def open(self, suffix: str) -> AttemptFile:
        """Open another file of this attempt.

        Raises:
            OSError: If the file cannot be created; see `errors_named`.
        """
        name = f"{self._stem}.{suffix}"
        file = HeldFile(self._place, name) if self._in_store else SyncedFile(self._place, name)
        self._files.append(file)
        return file

    def open_part(self, suffix: str, dtype: np.dtype[Any], *, key: str = "") -> PartWriter:
        """Open the tokens and the `<suffix>.idx` of a part: `<suffix>.bin`, or the token file of `key`.

        Raises:
            OSError: If a file cannot be created; see `errors_named`.
        """
        index = IndexBuilder(dtype, folder=self.spool_folder)
        part = PartWriter(self._open_tokens(f"{suffix}.bin", key), self.open(f"{suffix}.idx"), index=index)
        self._spools.append(index)
        return part

    def _open_tokens(self, suffix: str, key: str) -> AttemptFile:
        if self._claim is None or key not in self._claim.places.names:
            return self.open(suffix)
        file = PlacedFile(self._claim, key, self._place, f"{self._stem}.{suffix}")
        self._files.append(file)
        return file

    def tell_sizes(self) -> None:
        """Tell the shards after this one where their tokens begin, once this one has all of its own."""
        if self._claim is not None:
            placed = [file for file in self._files if isinstance(file, PlacedFile)]
            self._claim.places.tell(self._claim.shard, [{file.key: file.writer.size_bytes for file in placed}])

    @property
    def spool_folder(self) -> str:
        """The folder of unnamed files."""
        return self._place if self._in_store else os.path.join(self._place, self._folder)

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
        held = [file for file in self._files if isinstance(file, HeldFile)]
        sent = [fetch_later(partial(file.send, parse_url(self._work_dir))) for file in held]
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
        raise OutputError(
            f"{os.uname().nodename}: expected a temporary folder that can be written, got none ({error.strerror}); set "
            f"TMPDIR on this node, and run the same command again: it continues"
        ) from error


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


AttemptFile = SyncedFile | HeldFile | PlacedFile
"""One file of an attempt."""


class PartWriter:
    """A `.bin` and `.idx` to which documents are appended."""

    def __init__(self, bin_file: AttemptFile, idx_file: AttemptFile, *, index: IndexBuilder) -> None:
        self.index = index
        """Counts sequences, documents and tokens."""
        self._bin = bin_file
        self._idx = idx_file

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
