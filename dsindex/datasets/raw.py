"""Read a JSONL file through its raw index, and tokenize lines on access as Modalities' MemMapDataset does."""

from __future__ import annotations

import operator
import os
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, overload

import numpy as np

from dsindex.datasets.decoding import tensor_maker
from dsindex.errors import BadRecordError, FormatError, InputError
from dsindex.formats.raw_index import create_raw_index, find_lines, raw_index_path, read_raw_index
from dsindex.store.storage import LocalFile, open_unbuffered
from dsindex.text.tokenizer import Tokenizer, decode, load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class RawLines:
    """The lines of a JSONL file as bytes, found through its raw index.

    Args:
        path: The JSONL file.
        index_path: The raw index; `<stem>.idx` in the same folder if None. A missing one is built, under this name.
        finds: Without an index, find the lines each time, and write nothing.

    Raises:
        InputError: If the file cannot be read.
        BadRecordError: If the index is missing and a line is faulty.
        FormatError: If the index is damaged or belongs to another file.
    """

    def __init__(
        self, path: str | os.PathLike[str], index_path: str | os.PathLike[str] | None = None, *, finds: bool = False
    ) -> None:
        self.path = os.fspath(path)
        self.index_path = raw_index_path(self.path) if index_path is None else os.fspath(index_path)
        try:
            status = os.stat(self.path)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read ({error.strerror}); check the path") from error
        self._state = (status.st_size, str(status.st_mtime_ns))
        if not os.path.exists(self.index_path) and finds:
            self._pairs = find_lines(self.path)
            return
        if not os.path.exists(self.index_path):
            create_raw_index(self.path, self.index_path)
        self._pairs = read_raw_index(self.index_path, size_bytes=status.st_size)
        self._check_ends(status.st_size)

    def _check_ends(self, size_bytes: int) -> None:
        """Check that the first and the last lines of the index end where lines of the file do."""
        offsets, ends = self._pairs[:, 0], self._pairs.sum(axis=1)
        wrong = np.flatnonzero(offsets[1:] <= ends[:-1])
        places = [*range(min(64, len(ends))), *range(max(0, len(ends) - 64), len(ends))]
        with open_unbuffered(self.path) as file:
            descriptor = file.fileno()
            is_cut = any(
                (offsets[at] and os.pread(descriptor, 1, int(offsets[at]) - 1) != b"\n")
                or (ends[at] < size_bytes and os.pread(descriptor, 1, int(ends[at])) != b"\n")
                for at in places
            )
        if len(wrong) or is_cut:
            raise FormatError(
                f"{self.index_path}: expected the index of {self.path} as it is now; remove it, or index the file again"
            )

    def __len__(self) -> int:
        """Return the number of lines in the index."""
        return len(self._pairs)

    def offset(self, index: SupportsIndex) -> int:
        """Return the byte offset at which a line begins.

        Raises:
            IndexError: If there is no such line.
        """
        return int(self._pairs[self._number(index), 0])

    def __getitem__(self, index: SupportsIndex) -> bytes:
        """Return a line without its newline.

        Raises:
            IndexError: If there is no such line.
            InputError: If the file has changed since it was opened.
        """
        offset, length = self._pairs[self._number(index)].tolist()
        try:
            with LocalFile(self.path) as file:
                line = file.read_at(length, offset)
        except OSError as error:
            raise InputError(f"{self.path}: expected a line at byte {offset}, got none ({error})") from error
        if (file.size_bytes, file.version) != self._state:
            raise InputError(f"{self.path}: expected the file as it was opened, but it has changed; open it again")
        return bytes(line)

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[bytes]:
        """Return many lines, each as `ds[i]`; torch's DataLoader calls this."""
        return [self[index] for index in indices]

    def decode(self, index: SupportsIndex) -> str:
        """Return a line as text, with U+FFFD for bytes that are not UTF-8."""
        return self[index].decode(errors="replace")

    def __repr__(self) -> str:
        return f"RawLines({self.path!r}: {len(self):,} lines)"

    def _number(self, index: SupportsIndex) -> int:
        number = operator.index(index)
        if not -len(self) <= number < len(self):
            raise IndexError(f"{self.path}: expected a line from 0 to {len(self) - 1}, got {number}")
        return number % len(self)


class MemMapDataset:
    """The tokens of each line of a JSONL file, tokenized on access.

    It is pickled with its index; each process compiles the jq program.

    Args:
        path: The JSONL file.
        tokenizer: A tokenizer, or the path of one.
        index_path: The raw index; `<stem>.idx` in the same folder if None. Built if it is missing.
        jq_pattern: Selects the text of a line; its first result must be a string.
        engine: `auto` uses gigatoken if it returns the same ids, which pays off for long texts.
        add_special_tokens: Run the tokenizer's post-processor, as Modalities does.
        torch: Return token ids as tensors of int64.

    Raises:
        InputError: If the file cannot be read.
        BadRecordError: If the index is missing and a line is faulty.
        FormatError: If the index is damaged or belongs to another file.
        TokenizerError: If there is no tokenizer at the path.
        ValueError: If `jq_pattern` is not a valid jq program.
        MissingPackageError: If `torch` is set and torch is not installed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        tokenizer: Tokenizer | str | os.PathLike[str],
        index_path: str | os.PathLike[str] | None = None,
        jq_pattern: str = ".text",
        engine: Literal["auto", "gigatoken", "reference", "tokenizers"] = "reference",
        add_special_tokens: bool = True,
        torch: bool = False,
    ) -> None:
        import jq

        from dsindex.text.engines import choose_engine

        self._make_tensor = tensor_maker(torch)
        self.jq_pattern = jq_pattern
        self.tokenizer = tokenizer if isinstance(tokenizer, Tokenizer) else load_tokenizer(os.fspath(tokenizer))
        self._engine = choose_engine(self.tokenizer, engine, add_special_tokens=add_special_tokens)
        self._program = jq.compile(jq_pattern)
        self.lines = RawLines(path, index_path)

    def __len__(self) -> int:
        """Return the number of lines in the index."""
        return len(self.lines)

    @overload
    def __getitem__(self, index: SupportsIndex) -> NDArray[np.uint32]: ...
    @overload
    def __getitem__(self, index: slice) -> list[NDArray[np.uint32]]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> NDArray[np.uint32] | list[NDArray[np.uint32]]:
        """Return the token ids of a line, shape [tokens], or for a slice a list of such arrays.

        Raises:
            IndexError: If there is no such line.
            BadRecordError: If the jq pattern does not return a string.
        """
        if isinstance(index, slice):
            return self.__getitems__(range(*index.indices(len(self))))
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[NDArray[np.uint32]]:
        """Return the token ids of many lines, encoded in one call; torch's DataLoader calls this.

        Raises:
            IndexError: If there is no such line.
            BadRecordError: If the jq pattern does not return a string for one of them.
        """
        from dsindex.text.encoders import make_encoder

        batch = make_encoder(self.tokenizer, self._engine).encode([self.text(index) for index in indices])
        ends = batch.lengths.cumsum()
        tokens = [batch.tokens[end - length : end] for end, length in zip(ends, batch.lengths, strict=True)]
        return tokens if self._make_tensor is None else list(map(self._make_tensor, tokens))

    def text(self, index: SupportsIndex) -> str:
        """Return the text that the jq pattern selects from a line.

        Raises:
            IndexError: If there is no such line.
            BadRecordError: If the line is not UTF-8, or the pattern does not return a string.
        """
        try:
            found = next(iter(self._program.input_text(self.lines[index].decode())), None)
        except ValueError as error:  # UnicodeDecodeError is one
            reason = f"expected JSON that the jq pattern {self.jq_pattern!r} can read ({error}); correct the line"
            raise BadRecordError(self.lines.path, self.lines.offset(index), reason) from error
        if not isinstance(found, str):
            kind = "nothing" if found is None else type(found).__name__
            reason = f"expected a string from the jq pattern {self.jq_pattern!r}, got {kind}; change the pattern"
            raise BadRecordError(self.lines.path, self.lines.offset(index), reason)
        return found

    def decode(self, index: SupportsIndex) -> str:
        """Return the text of a line's tokens, with special tokens, by the dataset's own tokenizer.

        Raises:
            IndexError: If there is no such line.
            BadRecordError: If the jq pattern does not return a string.
        """
        return decode(self.tokenizer, self[operator.index(index)].tolist())

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: value for name, value in self.__dict__.items() if name != "_program"}
        return {**kept, "_make_tensor": self._make_tensor is not None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        import jq

        self.__dict__.update(state, _make_tensor=tensor_maker(state["_make_tensor"]))
        self._program = jq.compile(self.jq_pattern)

    def __repr__(self) -> str:
        return (
            f"MemMapDataset({self.lines.path!r}: {len(self):,} lines, {self.jq_pattern!r} by {self.tokenizer.name!r})"
        )
