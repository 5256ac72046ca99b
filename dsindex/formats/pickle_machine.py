"""A pickle machine that knows only integers, tuples and lists: it looks up no names and calls nothing.

Opcodes: `pickletools` in Python's standard library, binary protocols 2 to 5.
"""

from __future__ import annotations

import pickletools
from typing import TYPE_CHECKING

import numpy as np

from dsindex.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

Value = int | tuple["Value", ...] | list["Value"]


def run_pickle(path: str, data: bytes) -> NDArray[np.int64]:
    """Read a complete pickle that must hold a list of pairs of integers.

    Args:
        path: Named in errors.
        data: The pickle, with nothing after it.

    Returns:
        The pairs, shape [n, 2], none below 0.

    Raises:
        FormatError: If the pickle needs anything but lists, tuples and integers, is damaged, or holds something else.
    """
    machine = _Machine(data)
    try:
        value = machine.run()
    except _RefusedError as error:
        msg = f"{path}: expected a pickled list of (offset, length), {error}; it was not unpickled"
        raise FormatError(msg) from None
    except (IndexError, KeyError) as error:
        msg = f"{path}: expected a pickled list of (offset, length), got one that is cut off or damaged"
        raise FormatError(msg) from error
    return _pairs(path, value)


def _pairs(path: str, value: Value) -> NDArray[np.int64]:
    if not isinstance(value, list):
        msg = f"{path}: expected a pickled list of (offset, length), got {type(value).__name__}"
        raise FormatError(msg)
    for number, item in enumerate(value):
        if not (
            isinstance(item, tuple)
            and len(item) == 2
            and all(isinstance(part, int) and 0 <= part < 1 << 63 for part in item)
        ):
            msg = f"{path}: expected entry {number} to be (offset, length), two integers from 0 to 2**63 - 1"
            raise FormatError(msg)
    return np.array(value, dtype=np.int64).reshape(-1, 2)


class _RefusedError(Exception):
    """The message says what was refused and where."""


_NAMES = {opcode.code.encode("latin-1")[0]: opcode.name for opcode in pickletools.opcodes}


class _Machine:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self._stack: list[Value] = []
        self._marks: list[int] = []
        self._memo: dict[int, Value] = {}
        self._steps: dict[int, Callable[[], None]] = {
            ord("]"): lambda: self._stack.append([]),
            ord(")"): lambda: self._stack.append(()),
            ord("("): lambda: self._marks.append(len(self._stack)),
            ord("K"): lambda: self._stack.append(self._unsigned(1)),
            ord("M"): lambda: self._stack.append(self._unsigned(2)),
            ord("J"): lambda: self._stack.append(int.from_bytes(self._take(4), "little", signed=True)),
            0x8A: lambda: self._long(1),
            0x8B: lambda: self._long(4),
            0x85: lambda: self._tuple(len(self._stack) - 1),
            0x86: lambda: self._tuple(len(self._stack) - 2),
            0x87: lambda: self._tuple(len(self._stack) - 3),
            ord("t"): lambda: self._tuple(self._marks.pop()),
            ord("l"): lambda: self._stack.append(list(self._cut(self._marks.pop()))),
            ord("a"): lambda: self._append(len(self._stack) - 1),
            ord("e"): lambda: self._append(self._marks.pop()),
            ord("q"): lambda: self._put(self._unsigned(1)),
            ord("r"): lambda: self._put(self._unsigned(4)),
            0x94: lambda: self._put(len(self._memo)),
            ord("h"): lambda: self._stack.append(self._memo[self._unsigned(1)]),
            ord("j"): lambda: self._stack.append(self._memo[self._unsigned(4)]),
            0x95: self._frame,
        }

    def run(self) -> Value:
        """Run from PROTO to STOP, which must be the last byte."""
        proto, version = self._take(2)
        if proto != 0x80 or not 2 <= version <= 5:
            msg = f"got {self._data[:2]!r} at the start instead of protocol 2 to 5"
            raise _RefusedError(msg)
        while (opcode := self._unsigned(1)) != ord("."):
            step = self._steps.get(opcode)
            if step is None:
                name = _NAMES.get(opcode, f"unknown opcode {opcode:#04x}")
                msg = f"got {name} at byte {self._position - 1} of the pickle"
                raise _RefusedError(msg)
            step()
        if self._position != len(self._data) or len(self._stack) != 1 or self._marks:
            msg = f"got {len(self._data) - self._position} bytes and {len(self._stack) - 1} values left over at the end"
            raise _RefusedError(msg)
        return self._stack[0]

    def _take(self, count: int) -> bytes:
        taken = self._data[self._position : self._position + count]
        if len(taken) < count:
            msg = f"ends at byte {len(self._data)}"
            raise IndexError(msg)
        self._position += count
        return taken

    def _unsigned(self, count: int) -> int:
        return int.from_bytes(self._take(count), "little")

    def _long(self, count: int) -> None:
        self._stack.append(int.from_bytes(self._take(self._unsigned(count)), "little", signed=True))

    def _frame(self) -> None:
        """Skip a frame's header after checking that the frame fits the data; frames carry no meaning."""
        length = self._unsigned(8)
        if length > len(self._data) - self._position:
            msg = f"a frame of {length} bytes"
            raise IndexError(msg)

    def _cut(self, begin: int) -> list[Value]:
        """Pop the values from `begin` to the top of the stack."""
        floor = self._marks[-1] if self._marks else 0
        if not floor <= begin <= len(self._stack):
            msg = f"stack of {len(self._stack)}"
            raise IndexError(msg)
        taken = self._stack[begin:]
        del self._stack[begin:]
        return taken

    def _tuple(self, begin: int) -> None:
        self._stack.append(tuple(self._cut(begin)))

    def _append(self, begin: int) -> None:
        items = self._cut(begin)
        target = self._stack[-1]
        if not isinstance(target, list):
            msg = f"got {type(target).__name__} instead of a list to append to"
            raise _RefusedError(msg)
        target.extend(items)

    def _put(self, number: int) -> None:
        self._memo[number] = self._stack[-1]
