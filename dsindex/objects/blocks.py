"""Content in blocks, which is sent and read without being joined."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterator, Sequence

Bytes = bytes | bytearray | memoryview
"""What is written, to objects and to files."""

BLOCK_BYTES = 1 << 20


class Blocks:
    """Content in blocks that do not change any more."""

    def __init__(self, blocks: Sequence[bytes | memoryview]) -> None:
        self._blocks = blocks
        self._ends = list(accumulate(map(len, blocks)))

    @classmethod
    def of(cls, content: bytes | bytearray | mmap.mmap | memoryview) -> Blocks:
        """Return blocks of content that is in one piece."""
        view = memoryview(content)
        return cls([view[begin : begin + BLOCK_BYTES] for begin in range(0, len(view), BLOCK_BYTES)])

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[bytes | memoryview]:
        return iter(self._blocks)

    def read(self, _: int = -1) -> bytes:
        """Return all content; boto3 asks for this method, though blocks are never sent so."""
        return b"".join(self._blocks)

    def part(self, begin: int, end: int) -> list[memoryview]:
        """Return the blocks of the bytes [begin, end), all of which there must be, without copying them."""
        number, blocks = bisect_right(self._ends, begin), []
        while begin < end:
            block = memoryview(self._blocks[number])
            skipped = begin - (self._ends[number] - len(block))
            blocks.append(block[skipped : skipped + end - begin])
            number, begin = number + 1, begin + len(blocks[-1])
        return blocks

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill a buffer with the bytes from an offset on, all of which there must be."""
        done = 0
        for block in self.part(offset, offset + len(buffer)):
            buffer[done : done + len(block)] = block
            done += len(block)


class BodyOfBlocks:
    """Blocks as urllib3 sends them one by one, and from the first again where a bucket is in another region."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks

    def __iter__(self) -> Iterator[bytes | memoryview]:
        return iter(self._blocks)

    def seek(self, position: int) -> None:
        """Do nothing: whoever sends the blocks begins with the first."""
