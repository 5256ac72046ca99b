"""Read a JSONL file through its raw index, and tokenize lines on access as Modalities' MemMapDataset does."""

from __future__ import annotations

import codecs
import os
from typing import TYPE_CHECKING, SupportsIndex

from dsindex.datasets.base import MapDataset, tensor_maker
from dsindex.errors import BadRecordError, FormatError, InputError
from dsindex.formats.pickled_pairs import raw_index_path, read_raw_index
from dsindex.store.errors import reading
from dsindex.store.local import LocalFile, open_file
from dsindex.text.tokenizer import Tokenizer, decode, load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray


class RawLines(MapDataset[bytes]):
    """The lines of a JSONL file as bytes, found through its raw index.

    Args:
        path: The JSONL file.
        index_path: The raw index; `<stem>.idx` in the same folder if None. Without an index, the file is read once to
            find its lines, and nothing is written.

    Raises:
        InputError: If the file cannot be read.
        BadRecordError: If the index is missing and a line is faulty.
        FormatError: If the index is damaged or belongs to another file.
    """

    noun = "line"

    def __init__(self, path: str | os.PathLike[str], index_path: str | os.PathLike[str] | None = None) -> None:
        self._keep_arguments(locals())
        self.path = self.place = os.fspath(path)
        self.index_path = raw_index_path(self.path) if index_path is None else os.fspath(index_path)
        with reading(self.path):
            status = os.stat(self.path)
        self._file_version = (status.st_size, str(status.st_mtime_ns))
        if not os.path.exists(self.index_path):
            from dsindex.text.streams import find_lines  # readers of a finished index need no decompressor

            self._pairs, _ = find_lines(self.path)
            return
        self._pairs = read_raw_index(self.index_path, size_bytes=status.st_size)
        ends = self._pairs.sum(axis=1)
        with open_file(self.path) as file:
            next_bytes = {os.pread(file.fileno(), 1, int(end)) for end in (*ends[:64], *ends[-64:])}
        if next_bytes - {b"\n", b""}:
            raise FormatError(
                f"{self.index_path}: does not fit {self.path} as it is now", hint="remove it, or index the file again"
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

    def _read(self, number: int) -> bytes:
        """Return a line without its newline.

        Raises:
            InputError: If the file has changed since it was opened.
        """
        offset, length = self._pairs[number].tolist()
        try:
            with LocalFile(self.path) as file:
                line = file.read_at(length, offset)
        except OSError as error:
            raise InputError(f"{self.path}: the line at byte {offset} cannot be read ({error.strerror})") from error
        if (file.size_bytes, file.version) != self._file_version:
            raise InputError(f"{self.path}: the file has changed since it was opened", hint="open it again")
        return bytes(line)

    def decode(self, index: SupportsIndex) -> str:
        """Return a line as text, with U+FFFD for bytes that are not UTF-8."""
        return self[index].decode(errors="replace")


class MemMapDataset(MapDataset["NDArray[np.uint32]"]):
    """The tokens of each line of a JSONL file, tokenized on access.

    Args:
        path: The JSONL file.
        tokenizer: A tokenizer, or the path of one.
        index_path: The raw index; `<stem>.idx` in the same folder if None. It may be missing, as for RawLines.
        jq_pattern: Selects the text of a line.
        add_special_tokens: Run the tokenizer's post-processor, as Modalities does.
        torch: Return token ids as tensors of int64.

    Raises:
        InputError: If the file cannot be read, or `jq_pattern` is not jq, or uses a part of jq that is not allowed.
        BadRecordError: If the index is missing and a line is faulty.
        FormatError: If the index is damaged or belongs to another file.
        TokenizerError: If there is no tokenizer at the path.
        MissingPackageError: If `torch` is set and torch is not installed.
    """

    noun = "line"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        tokenizer: Tokenizer | str | os.PathLike[str],
        index_path: str | os.PathLike[str] | None = None,
        jq_pattern: str = ".text",
        add_special_tokens: bool = True,
        torch: bool = False,
    ) -> None:
        self._keep_arguments(locals())
        from dsindex.text.engines import choose_engine
        from dsindex.text.selection import open_pattern

        self._convert = tensor_maker(torch)
        self.jq_pattern = jq_pattern
        self.tokenizer = tokenizer if isinstance(tokenizer, Tokenizer) else load_tokenizer(os.fspath(tokenizer))
        self._arguments["tokenizer"] = self.tokenizer
        self._engine = choose_engine(self.tokenizer, "reference", add_special_tokens=add_special_tokens)
        self._selection = open_pattern(jq_pattern)
        self.lines = RawLines(path, index_path)
        self.place = self.lines.path

    def __len__(self) -> int:
        """Return the number of lines in the index."""
        return len(self.lines)

    def _read(self, number: int) -> NDArray[np.uint32]:
        """Return the token ids of a line, shape [tokens].

        Raises:
            BadRecordError: If the jq pattern does not return one string.
        """
        return self.__getitems__([number])[0]

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[NDArray[np.uint32]]:
        """Return the token ids of many lines, encoded in one call; torch's DataLoader calls this.

        Raises:
            IndexError: If there is no such line.
            BadRecordError: If the jq pattern does not return one string for one of them.
        """
        from dsindex.text.encoders import make_encoder

        batch = make_encoder(self.tokenizer, self._engine).encode([self.text(index) for index in indices])
        return list(map(self._convert, batch.split()))

    def text(self, index: SupportsIndex) -> str:
        """Return the text that the jq pattern selects from a line.

        Raises:
            IndexError: If there is no such line.
            BadRecordError: If the line is not a record, or the pattern does not return one string.
        """
        offset, line = self.lines.offset(index), self.lines[index]
        values = self._selection.read_line(line if offset else line.removeprefix(codecs.BOM_UTF8))
        if not isinstance(values, list):
            raise BadRecordError(self.lines.path, offset, str(values))
        return str(values[0])

    def decode(self, index: SupportsIndex) -> str:
        """Return the text of a line's tokens, with special tokens, by the dataset's own tokenizer.

        Raises:
            IndexError: If there is no such line.
            BadRecordError: If the jq pattern does not return one string.
        """
        return decode(self.tokenizer, self[index].tolist())
