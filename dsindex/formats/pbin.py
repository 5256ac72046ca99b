"""Packed data of Modalities: `.pbin` = header | tokens | pickled list of each document's (offset, length) in bytes.

Four versions of the format are in use (docs/formats.md §3) and are detected from the file. Documents are contiguous.
Offsets count from the start of the file in the older versions and from the first token in the current one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dsindex.errors import FormatError, LimitError
from dsindex.formats.dtypes import starts_of
from dsindex.formats.pickled_pairs import first_number, read_pairs, write_pairs
from dsindex.store.errors import reading
from dsindex.store.read import open_items, open_stored

if TYPE_CHECKING:
    from io import BufferedReader

    from _typeshed import SupportsWrite
    from numpy.typing import NDArray

    from dsindex.store.read import Items


DATA_LENGTH_BYTES = 8
TOKEN_SIZE_BYTES = 4
TOKEN_SIZES = (1, 2, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class PbinVersion:
    """A version of the format."""

    name: str
    byte_order: Literal["little", "big"]
    """Byte order of the header and the tokens."""
    header_bytes: int
    first_offset: int
    """Offset of the first token, as the index counts it."""

    @property
    def names_token_size(self) -> bool:
        """Whether the header stores the token size; otherwise a token has 4 bytes."""
        return self.header_bytes > DATA_LENGTH_BYTES


CURRENT_VERSION = PbinVersion(name="current", byte_order="little", header_bytes=12, first_offset=0)
PbinEra = Literal["spec", "2024-01-30", "2024-04", "current"]
PBIN_VERSIONS = {
    version.name: version
    for version in (
        PbinVersion(name="spec", byte_order="big", header_bytes=8, first_offset=8),
        PbinVersion(name="2024-01-30", byte_order="big", header_bytes=12, first_offset=12),
        PbinVersion(name="2024-04", byte_order="little", header_bytes=12, first_offset=12),
        CURRENT_VERSION,
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PbinHeader:
    """The header of a `.pbin`."""

    version: PbinVersion
    token_bytes: int
    data_bytes: int
    """Size of all tokens together."""

    @property
    def num_tokens(self) -> int:
        """Number of tokens in all documents."""
        return self.data_bytes // self.token_bytes

    @property
    def dtype(self) -> np.dtype[Any]:
        """The stored token type: unsigned, in the version's byte order."""
        return np.dtype(f"u{self.token_bytes}").newbyteorder(self.version.byte_order)

    @property
    def index_offset(self) -> int:
        """Byte offset of the pickled index in the file."""
        return self.version.header_bytes + self.data_bytes

    def to_bytes(self) -> bytes:
        """Return the bytes before the first token.

        Raises:
            LimitError: If the version cannot hold tokens of this size.
        """
        if self.token_bytes not in TOKEN_SIZES or (not self.version.names_token_size and self.token_bytes != 4):
            sizes = "1, 2 or 4" if self.version.names_token_size else "4"
            tokens = f"tokens of {self.token_bytes} bytes"
            raise LimitError(f"a .pbin of version {self.version.name} has tokens of {sizes} bytes, not {tokens}")
        head = self.data_bytes.to_bytes(DATA_LENGTH_BYTES, self.version.byte_order)
        if self.version.names_token_size:
            head += self.token_bytes.to_bytes(TOKEN_SIZE_BYTES, self.version.byte_order)
        return head


def token_bytes_for_vocabulary(vocabulary_size: int) -> int:
    """Return the token size that Modalities uses: ceil(log2(vocabulary) / 8) bytes, with 3 rounded up to 4.

    Args:
        vocabulary_size: Without added tokens, as Modalities counts. The caller checks that every id fits.

    Raises:
        ValueError: If ids would need more than 4 bytes, or there are fewer than 2 tokens.

    >>> [token_bytes_for_vocabulary(size) for size in (256, 257, 65536, 65537)]
    [1, 2, 2, 4]
    """
    num_bytes = -(-(vocabulary_size - 1).bit_length() // 8)
    if vocabulary_size < 2 or num_bytes > 4:
        raise ValueError(f"a vocabulary has 2 to 2**32 tokens, not {vocabulary_size}")
    return 4 if num_bytes == 3 else num_bytes


def write_pbin_index(
    file: SupportsWrite[bytes], header: PbinHeader, document_lengths: NDArray[np.integer[Any]]
) -> None:
    """Write the index of a `.pbin`.

    Args:
        file: The file to append to.
        header: The header of the file.
        document_lengths: Tokens of each document, shape [documents]; 0 for an empty one.

    Raises:
        ValueError: If the documents do not add up to the size in the header.
    """
    pairs = np.empty((len(document_lengths), 2), np.int64)
    offsets, sizes = pairs.T
    np.multiply(document_lengths, header.token_bytes, out=sizes, dtype=np.int64)
    if (total := int(sizes.sum())) != header.data_bytes:
        raise ValueError(f"the documents have {total} bytes, and the header says {header.data_bytes}")
    offsets[:] = header.version.first_offset
    np.cumsum(sizes[:-1], out=offsets[1:])
    offsets[1:] += header.version.first_offset
    write_pairs(file, pairs)


def read_pbin_header(path: str, *, version: PbinVersion | None = None) -> PbinHeader:
    """Read a `.pbin` header, detecting the version from the header, the start of the index and its first offset.

    An intact file fits only one version: in "spec", which has no token size, the index begins 4 bytes earlier; the
    versions with a token size differ in its byte order or in the first offset. Only a little-endian file without
    documents is the same in "2024-04" and "current", and counts as current.

    Args:
        path: The file. Reading takes constant time, whatever its size.
        version: The required version; detected if None.

    Raises:
        FormatError: If the file fits no version, several versions, or not `version`.
    """
    with reading(path, FormatError), open_stored(path) as file:
        headers = [header for era in PBIN_VERSIONS.values() if (header := _parse_header(file, era)) is not None]
    for header in headers:
        if header.version == version:
            return header
    headers = list({header.to_bytes(): header for header in headers}.values())
    names = " and ".join(header.version.name for header in headers)
    if version is not None and headers:
        problem = f"this is a .pbin of version {names}, not {version.name}"
        raise FormatError(f"{path}: {problem}", hint="leave out --pbin-era")
    if not headers:
        raise FormatError(f"{path}: not a .pbin of any version, or cut off")
    if len(headers) > 1:
        raise FormatError(f"{path}: fits several versions of .pbin: {names}", hint="give its version with --pbin-era")
    return headers[0]


def read_document_lengths(path: str, header: PbinHeader) -> NDArray[np.int64]:
    """Read the index of a `.pbin` and check every entry against the tokens.

    Args:
        path: The file.
        header: The result of `read_pbin_header`.

    Returns:
        Tokens of each document, in file order.

    Raises:
        FormatError: If the index is damaged, or its documents do not cover the tokens without gap or overlap.
    """
    offsets, lengths = read_pairs(path, offset=header.index_offset).T
    wrong = np.flatnonzero((lengths > header.data_bytes) | (lengths % header.token_bytes != 0))
    if len(wrong):
        fault = f"document {wrong[0]} has {lengths[wrong[0]]} bytes"
        raise FormatError(f"{path}: {fault}, which are not whole tokens within the {header.data_bytes} bytes of tokens")
    expected = header.version.first_offset + starts_of(lengths)
    gaps = np.flatnonzero(offsets != expected[:-1])
    if len(gaps):
        problem = f"document {gaps[0]} begins at offset {offsets[gaps[0]]} instead of {expected[gaps[0]]}"
        hint = "if Modalities joined this file, pack or merge its parts again with `dsindex pack`"
        raise FormatError(f"{path}: {problem}", hint=hint)
    if (total := int(expected[-1]) - header.version.first_offset) != header.data_bytes:
        raise FormatError(f"{path}: its documents have {total} bytes, and its tokens {header.data_bytes}")
    tokens: NDArray[np.int64] = lengths // header.token_bytes
    return tokens


def open_tokens(path: str, header: PbinHeader) -> Items:
    """Open the tokens of a `.pbin`, shape [tokens], unsigned and in the file's byte order.

    Raises:
        FormatError: If the file is shorter than its header says.
    """
    if header.num_tokens == 0:
        return np.empty(0, dtype=header.dtype)
    try:
        return open_items(path, header.dtype, offset=header.version.header_bytes, count=header.num_tokens)
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: became shorter while it was opened ({error})") from error


def _parse_header(file: BufferedReader, version: PbinVersion) -> PbinHeader | None:
    """Return a file's header if the file fits a version: the first offset in its index must be the version's.

    The index of a file without documents has no offset, and fits.
    """
    size_bytes = file.seek(0, os.SEEK_END)
    file.seek(0)
    head = file.read(version.header_bytes)
    if len(head) < version.header_bytes:
        return None
    data_bytes = int.from_bytes(head[:DATA_LENGTH_BYTES], version.byte_order)
    size = int.from_bytes(head[DATA_LENGTH_BYTES:], version.byte_order)
    token_bytes = size if version.names_token_size else TOKEN_SIZE_BYTES
    header = PbinHeader(version=version, token_bytes=token_bytes, data_bytes=data_bytes)
    if token_bytes not in TOKEN_SIZES or data_bytes % token_bytes or header.index_offset >= size_bytes:
        return None
    file.seek(header.index_offset)
    try:
        is_fitting = first_number(file.read(64)) in {None, version.first_offset}
    except ValueError:
        return None
    return header if is_fitting else None
