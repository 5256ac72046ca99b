"""Answer records in child processes, and report a record that exceeds its limits.

A template or a jq program can run forever, take all memory or overflow the C stack, inside C code that no Python
exception can interrupt. The kernel can end a child process at any point (see `child.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import weakref
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dsindex.errors import DsindexError
from dsindex.text.guarded.child import EXIT_OUT_OF_MEMORY, FRAME_HEADER_BYTES, write_all
from dsindex.text.guarded.limits import default_limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dsindex.text.guarded.limits import Limits


_OUT_OF_MEMORY_TEXT = b"cannot allocate memory"
"""jq's message before it aborts."""


class LimitReachedError(DsindexError):
    """Work on one record ended its process. The reader of the file adds the place, and the job stops.

    Args:
        reason: One sentence with what ran and the limit it reached.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __reduce__(self) -> tuple[type[LimitReachedError], tuple[str]]:
        return type(self), (self.reason,)


class GuardedWork:
    """Answers records in child processes: one per calling thread, kept as long as this object. Picklable.

    Args:
        module: Its `prepare(definition)`, run in the child, returns facts (JSON) and a function that answers a record.
        definition: JSON data for `prepare`.
        subject: Name of the work in messages, such as `the chat template`.
        limits: Limits for each record, and for `prepare`; None for `default_limits`.

    Raises:
        LimitReachedError: If `prepare` reaches a limit.
    """

    def __init__(self, module: str, definition: dict[str, Any], *, subject: str, limits: Limits | None = None) -> None:
        self._module = module
        self._definition = definition
        self._subject = subject
        self._limits = limits or default_limits()
        self._open()
        child, self.facts = self._start()
        """The facts from `prepare`."""
        self._idle.append(child)

    def run(self, records: Sequence[bytes], *, parse: Callable[[bytes], Any] = json.loads) -> Iterator[Any]:
        """Answer records in order.

        Args:
            records: Each without a newline. They are held in memory twice, so pass a few MiB at a time.
            parse: Reads an answer: the bytes of `prepare`'s function, or its data as JSON that may have lone
                surrogates.

        Yields:
            One answer per record, parsed.

        Raises:
            LimitReachedError: At the first record that reached a limit.
        """
        done = 0
        while done < len(records):
            answers, exit_code = self._ask(self._take(), records[done:])
            for answer in answers:
                yield parse(answer)
            done += len(answers)
            if exit_code is not None:
                yield parse(self._ask_again(records[done], exit_code))
                done += 1

    def _ask(self, child: _Child, records: Sequence[bytes]) -> tuple[list[bytes], int | None]:
        """Return the answers to leading records, and the child's exit code if it has ended."""
        answers, exit_code = child.ask(b"\n".join(records))
        if exit_code is None:
            self._idle.append(child)
        elif len(answers) >= len(records):
            exit_code = None  # it died after its last answer
        else:
            self._check_fault(child, exit_code)
        return answers, exit_code

    def _ask_again(self, record: bytes, exit_code: int) -> bytes:
        """Ask a new child about the record at which the last one died, whose memory may have been full of others."""
        if exit_code != -signal.SIGPROF:
            answers, again = self._ask(self._start()[0], [record])
            if again is None:
                return answers[0]
            exit_code = again
        reason = self._describe(exit_code, len(record), "on this record")
        raise LimitReachedError(f"{reason}; change it, or take the record out of the input")

    def _take(self) -> _Child:
        while self._idle:
            # Another thread may take the last one in between.
            with contextlib.suppress(IndexError):
                child = self._idle.pop()
                if not child.is_foreign:
                    return child
        return self._start()[0]

    def _start(self) -> tuple[_Child, Any]:
        request = json.dumps({"limits": asdict(self._limits), "definition": self._definition}).encode()
        child = _Child(self._module)
        answers, exit_code = child.ask(request)
        if exit_code is None:
            return child, json.loads(answers[0])
        self._check_fault(child, exit_code)
        raise LimitReachedError(self._describe(exit_code, len(request), "while it was compiled"))

    def _check_fault(self, child: _Child, exit_code: int) -> None:
        """Raise an error if the child failed by a fault of dsindex rather than of a record."""
        if exit_code >= 0 and exit_code != EXIT_OUT_OF_MEMORY:
            said = child.last_words.decode(errors="replace").strip()
            absent = re.search(r"ModuleNotFoundError: No module named '(\w+)'", said)
            if absent is not None:
                raise ModuleNotFoundError(absent[0], name=absent[1])
            raise RuntimeError(f"{self._module} failed: {said}")

    def _describe(self, exit_code: int, num_bytes: int, when: str) -> str:
        if exit_code == -signal.SIGPROF:
            return f"{self._subject} used more than {round(self._limits.cpu_for(num_bytes), 1):g} s of CPU time {when}"
        if exit_code == EXIT_OUT_OF_MEMORY:
            mebibytes = self._limits.memory_for(num_bytes) >> 20
            return f"{self._subject} needed more than {mebibytes:,} MiB of memory {when}"
        return f"{self._subject} crashed {when} ({signal.Signals(-exit_code).name}: data nested too deep, or no memory)"

    def _open(self) -> None:
        self._idle: list[_Child] = []
        weakref.finalize(self, _close_all, self._idle)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_idle"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()


class _Child:
    """A child process and the files shared with it."""

    def __init__(self, module: str) -> None:
        self._answers, self._errors = os.memfd_create("answers"), os.memfd_create("errors")
        requests, self._requests = os.pipe()
        self._replies, replies = os.pipe()
        lifeline, self._lifeline = os.pipe()
        theirs = (requests, replies, lifeline)
        passed = (requests, replies, self._answers, lifeline)
        try:
            self._process = subprocess.Popen(
                # -P: the current folder is the user's, and may contain a json.py.
                [sys.executable, "-P", "-m", "dsindex.text.guarded.child", module, *map(str, passed)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                env=_environment(),
                pass_fds=passed,
                process_group=0,  # so that a terminal does not send it Ctrl-C
            )
        except BaseException:
            for file in (*theirs, *self._files()):
                os.close(file)
            raise
        for file in theirs:
            os.close(file)
        self.is_foreign = False
        """Whether the child belongs to the process from which this one was forked."""
        self.last_words = b""
        """The child's output on stderr, available once it has ended."""
        _living.add(self)

    def ask(self, frame: bytes) -> tuple[list[bytes], int | None]:
        """Send a request and wait; return the answers, and the exit code if the child has ended."""
        try:
            # After a broken pipe, the answers up to it still count.
            with contextlib.suppress(BrokenPipeError):
                write_all(self._requests, len(frame).to_bytes(FRAME_HEADER_BYTES, "little") + frame)
            is_done = os.read(self._replies, 1)
            answers = _take_frames(self._answers)
        except BaseException:
            self.close()  # an interrupted exchange cannot be continued
            raise
        if is_done:
            return answers, None
        exit_code = self._process.wait()
        self.last_words = os.pread(self._errors, 1 << 16, 0)
        self.close()
        if _OUT_OF_MEMORY_TEXT in self.last_words:
            exit_code = EXIT_OUT_OF_MEMORY
        return answers, exit_code

    def close(self) -> None:
        """Kill the process and close the files."""
        if self in _living:
            _living.discard(self)
            self._process.kill()
            self._process.wait()
            for file in self._files():
                os.close(file)

    def leave(self) -> None:
        """Close this process's copies of the files of its parent's child, after a fork."""
        self.is_foreign = True
        self._process.returncode = 0  # not this process's child to wait for
        for file in self._files():
            os.close(file)

    def _files(self) -> tuple[int, ...]:
        return self._answers, self._errors, self._requests, self._replies, self._lifeline


_living: set[_Child] = set()


def _leave_all() -> None:
    for child in _living:
        child.leave()
    _living.clear()


os.register_at_fork(after_in_child=_leave_all)


def _close_all(children: list[_Child]) -> None:
    while children:
        children.pop().close()


def _environment() -> dict[str, str]:
    """Return the child's environment: the same modules, and nothing on which answers could depend."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path),
        "PYTHONHASHSEED": "0",
        "TZ": "UTC",
        "LC_ALL": "C.UTF-8",
    }


def _take_frames(file: int) -> list[bytes]:
    """Return the contents of a file's complete frames and empty it; the last frame was being written."""
    size, parts = os.fstat(file).st_size, []
    position = 0
    while position < size:
        parts.append(os.pread(file, size - position, position))
        position += len(parts[-1])
    os.ftruncate(file, 0)
    data, frames = b"".join(parts), []
    begin = FRAME_HEADER_BYTES
    while begin <= len(data):
        end = begin + int.from_bytes(data[begin - FRAME_HEADER_BYTES : begin], "little")
        if end > len(data):
            break
        frames.append(data[begin:end])
        begin = end + FRAME_HEADER_BYTES
    return frames
