"""Unpack compressed files that can only be decoded from their start, for workers that cannot begin in the middle.

Threads of the driver decode such streams, one each, and write the text of each part to a file under `shards/` of the
work folder. A part is tokenized as soon as it is there, and its file is removed with the result. No more than a few
parts are unpacked ahead of the workers.
"""

from __future__ import annotations

import contextlib
import os
import queue
import tempfile
import threading
from collections import deque
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import IO, TYPE_CHECKING

from dsindex.containers.decoding import decoder_version
from dsindex.errors import InputError, OutputError
from dsindex.objects.urls import ObjectUrl, joined, own_object
from dsindex.objects.writing import put_object
from dsindex.shards.attempt import shard_folder
from dsindex.shards.ownership import new_file_id, read_folder_id
from dsindex.shards.tasks import UnpackedText
from dsindex.storage import make_folder, output_error, remove_if_present
from dsindex.text.stream_pieces import split_stream

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from dsindex.shards.tasks import ShardTask


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stream:
    """One input and its parts that are needed."""

    tasks: tuple[ShardTask, ...]
    """All parts, in order."""
    needed: frozenset[int]
    """Numbers of the shards to make."""


class StreamFeeder:
    """Unpacks the streams among a job's inputs, the first ones first.

    Args:
        tasks: All shards of the plan.
        kept: Numbers of shards that are made already.
        work_dir: The marked work folder.
        threads: Number of streams that are decoded at once.
        ahead: Number of parts that may wait for workers, at least `threads`.
    """

    def __init__(
        self, tasks: Sequence[ShardTask], *, kept: Container[int], work_dir: str, threads: int, ahead: int
    ) -> None:
        self._work_dir = work_dir
        self._room = threading.Semaphore(max(threads, ahead))
        self._ready: queue.SimpleQueue[ShardTask | Exception] = queue.SimpleQueue()
        self._is_stopped = False
        self._files: dict[int, str] = {}
        """Shard → the file that holds its text."""
        self._missing: set[int] = set()
        """Parts that `next_ready` has not returned yet."""
        streams: queue.SimpleQueue[_Stream] = queue.SimpleQueue()
        for _, group in groupby((task for task in tasks if task.is_of_stream), key=lambda task: task.input):
            parts = tuple(group)
            needed = frozenset(part.shard for part in parts if part.shard not in kept)
            if needed:
                streams.put(_Stream(tasks=parts, needed=needed))
                self._missing |= needed
        self._threads = [
            threading.Thread(target=self._unpack_all, args=(streams,), name=f"dsindex-unpack-{number}", daemon=True)
            for number in range(min(threads, streams.qsize()))
        ]
        for thread in self._threads:
            thread.start()

    def is_done(self, *, before: int | None = None) -> bool:
        """Tell whether all parts were returned, or all before a shard."""
        return not self._missing or (before is not None and min(self._missing) >= before)

    def next_ready(self) -> ShardTask | None:
        """Return a part that was unpacked, as a task that reads it; None if none is ready.

        Raises:
            OutputError: If the work folder cannot be written.
        """
        try:
            found = self._ready.get_nowait()
        except queue.Empty:
            return None
        if isinstance(found, Exception):
            raise found
        self._missing.remove(found.shard)
        return found

    def release(self, shard: int) -> None:
        """Remove the text of a part that was tokenized; nothing happens for other shards."""
        path = self._files.pop(shard, None)
        if path is not None:
            with contextlib.suppress(OSError, OutputError):
                remove_if_present(path)
            self._room.release()

    def close(self) -> None:
        """Stop unpacking, and remove the text of parts that are left."""
        self._is_stopped = True
        for _ in self._threads:
            self._room.release()
        for thread in self._threads:
            thread.join()
        for shard in list(self._files):
            self.release(shard)

    def _unpack_all(self, streams: queue.SimpleQueue[_Stream]) -> None:
        try:
            while not self._is_stopped:
                try:
                    stream = streams.get_nowait()
                except queue.Empty:
                    return
                self._unpack(stream)
        except OSError as error:
            self._ready.put(output_error(self._work_dir, error))
        except Exception as error:  # noqa: BLE001 - the driver raises it
            self._ready.put(error)

    def _unpack(self, stream: _Stream) -> None:
        """Write the text of each needed part; if the input is damaged, the first one that is not whole says why."""
        first = stream.tasks[0]
        bounds = (*(task.begin for task in stream.tasks), stream.tasks[-1].end)
        due = deque(task for task in stream.tasks if task.shard in stream.needed)
        pieces = split_stream(first.path, first.form.container, bounds, expected_size=first.input_size_bytes)
        with contextlib.closing(pieces):
            try:
                for number, texts in groupby(pieces, key=itemgetter(0)):
                    while due and due[0].shard < first.shard + number:
                        self._hand_over(due.popleft(), ())  # it is inside one long line
                    if self._is_stopped or not due:
                        return
                    if due[0].shard == first.shard + number and not self._hand_over(due.popleft(), texts):
                        return
            except InputError as error:
                if due:
                    self._hand_over(due.popleft(), (), error=error)
                return
        for task in due:
            self._hand_over(task, ())

    def _hand_over(
        self, task: ShardTask, texts: Iterable[tuple[int, bytes]], *, error: InputError | None = None
    ) -> bool:
        """Write a part's text to a file and make it ready; return False if the input is damaged in it."""
        self._room.acquire()
        folder_id = read_folder_id(self._work_dir)
        if self._is_stopped or folder_id is None:
            self._room.release()  # for the parts that follow, which end here as well
            return False
        name = f"{shard_folder(task.shard)}/{task.shard:08d}.{new_file_id(folder_id)}.text"
        path = joined(self._work_dir, name)
        with self._opened(path, shard=task.shard) as file:
            try:
                for _, text in texts:
                    if self._is_stopped:
                        return False
                    file.write(text)
            except InputError as damage:
                error = damage
            size_bytes = file.tell()
            if isinstance(path, ObjectUrl):
                file.seek(0)
                put_object(path, file.read())
        unpacked = UnpackedText(
            path=own_object(path, size_bytes),
            size_bytes=size_bytes,
            decoder=decoder_version(task.form.container),
            error=None if error is None else str(error),
        )
        self._ready.put(replace(task, unpacked=unpacked))
        return error is None

    @contextlib.contextmanager
    def _opened(self, path: str, *, shard: int) -> Iterator[IO[bytes]]:
        """Open the file that gets a part's text, a temporary one if it becomes an object."""
        self._files[shard] = path
        if isinstance(path, ObjectUrl):
            with tempfile.TemporaryFile(prefix="dsindex-text-") as file:
                yield file
            return
        make_folder(os.path.dirname(path))
        with open(path, "xb") as file:
            yield file
