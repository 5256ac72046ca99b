"""Check a `.bin` or `.pbin` byte by byte: digests of its blocks, ids outside the vocabulary, the number of EOD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from dsindex.execution.calls import Call
from dsindex.store.reading import open_readable, stored_size
from dsindex.store.storage import DIGEST_BLOCK_BYTES, combine_digests
from dsindex.tools.verify_report import Check, Step, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from dsindex.engine.manifest import Content
    from dsindex.store.reading import Readable
    from dsindex.tools.verify_report import Recorded


CHUNK_BYTES = 4 << 20
_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPiece:
    """Bytes [begin, end) of a file with tokens; begin is a multiple of DIGEST_BLOCK_BYTES."""

    path: str
    begin: int
    end: int
    tokens_begin: int
    """First byte of the file's tokens; a multiple of the token size, as is CHUNK_BYTES."""
    tokens_end: int
    """One past the last byte of the tokens."""
    dtype: str
    vocabulary_size: int | None
    """Upper limit of ids; None if it is unknown."""
    eod_id: int | None
    """The id to count; None if it is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPieceResult:
    """The result of one piece."""

    block_digests: tuple[str, ...]
    """Digests of the piece's blocks; empty if it could not be read."""
    num_eod: int
    findings: tuple[str, ...]


def plan_token_pieces(
    path: str,
    size_bytes: int,
    *,
    token_bytes: tuple[int, int],
    dtype: str,
    vocabulary_size: int | None,
    eod_id: int | None,
) -> list[TokenPiece]:
    """Cut a file with tokens into pieces of one digest block.

    Args:
        path: The file.
        size_bytes: Its size.
        token_bytes: First byte of its tokens, and one past the last.
        dtype: The stored token type.
        vocabulary_size: Upper limit of ids; None if it is unknown.
        eod_id: The id to count; None if it is unknown.
    """
    return [
        TokenPiece(
            path=path,
            begin=begin,
            end=min(begin + DIGEST_BLOCK_BYTES, size_bytes),
            tokens_begin=token_bytes[0],
            tokens_end=token_bytes[1],
            dtype=dtype,
            vocabulary_size=vocabulary_size,
            eod_id=eod_id,
        )
        for begin in range(0, size_bytes, DIGEST_BLOCK_BYTES)
    ]


def verify_tokens(piece: TokenPiece) -> TokenPieceResult:
    """Digest a piece, find ids outside the vocabulary, and count EOD."""
    digest = xxhash.xxh3_128()
    findings: list[str] = []
    num_eod = 0
    dtype = np.dtype(piece.dtype)
    buffer = memoryview(bytearray(min(CHUNK_BYTES, piece.end - piece.begin)))
    try:
        with open_readable(piece.path) as file:
            file.expect_forwards(piece.begin, piece.end)
            for begin in range(piece.begin, piece.end, CHUNK_BYTES):
                chunk = buffer[: min(CHUNK_BYTES, piece.end - begin)]
                _fill(file, chunk, begin)
                digest.update(chunk)
                first = max(begin, piece.tokens_begin)
                size_bytes = max(0, min(begin + len(chunk), piece.tokens_end) - first)
                # A partial token at the end of a truncated file is reported by the check of the index.
                tokens = np.frombuffer(chunk, dtype, size_bytes // dtype.itemsize, min(first - begin, len(chunk)))
                if piece.eod_id is not None:
                    num_eod += int(np.count_nonzero(tokens == piece.eod_id))
                findings += _outside_vocabulary(piece, tokens, first)
    except (OSError, EOFError) as error:
        unread = f"{piece.path}: cannot be read at bytes {piece.begin} to {piece.end} ({error}); restore it"
        return TokenPieceResult(block_digests=(), num_eod=num_eod, findings=(*findings[:_SHOWN], unread))
    return TokenPieceResult(block_digests=(digest.hexdigest(),), num_eod=num_eod, findings=tuple(findings[:_SHOWN]))


def _fill(file: Readable, chunk: memoryview[int], begin: int) -> None:
    done = 0
    while done < len(chunk):
        count = file.read_into(chunk[done:], begin + done)
        if not count:
            raise EOFError(f"expected {len(chunk)} bytes at offset {begin}, got {done}")
        done += count


def _outside_vocabulary(piece: TokenPiece, tokens: NDArray[Any], begin: int) -> list[str]:
    limit = piece.vocabulary_size
    if limit is None or not tokens.size or (int(tokens.max()) < limit and int(tokens.min()) >= 0):
        return []
    first = int(np.flatnonzero((tokens >= limit) | (tokens < 0))[0])
    place = begin + first * tokens.itemsize
    return [
        (
            f"{piece.path}: expected token ids from 0 to {limit - 1}, got {tokens[first]} at byte {place}; "
            f"its content changed, restore it or build it again"
        )
    ]


# Check the token file of a dataset of any kind: its digest by blocks, and every token in the same pass.


def check_tokens(
    recorded: Recorded,
    *,
    suffix: str,
    dtype: str,
    tokens: tuple[int, int],
    judge_num_eod: Callable[[Content, int], Verdict],
) -> Check:
    """Digest a token file by blocks, and check every token in the same pass.

    Args:
        recorded: The dataset's manifest.
        suffix: Suffix of the file, which must exist.
        dtype: The stored token type.
        tokens: First byte of the tokens, and one past the last.
        judge_num_eod: Judges the number of EOD tokens.
    """
    path = f"{recorded.prefix}.{suffix}"
    content = recorded.content
    tokenizer = content.tokenizer if content is not None else None
    size_bytes = stored_size(path)
    pieces = plan_token_pieces(
        path,
        size_bytes,
        token_bytes=tokens,
        dtype=dtype,
        vocabulary_size=tokenizer.vocabulary_size if tokenizer is not None else None,
        eod_id=content.eod_id if content is not None else None,
    )

    def judge(results: Iterable[TokenPieceResult]) -> Verdict:
        findings: list[str] = []
        blocks: list[str] = []
        num_eod = num_unread = 0
        for result in results:
            findings += result.findings
            blocks += result.block_digests
            num_eod += result.num_eod
            num_unread += not result.block_digests
        if content is None:
            return Verdict(findings=tuple(findings))
        if num_unread:
            note = f"{path} cannot be read to its end: its digest, vocabulary and EOD could not be checked"
            return Verdict(findings=tuple(findings), notes=(note,))
        vocabulary = ("every token id is in the vocabulary",) if tokenizer is not None and tokens[0] < tokens[1] else ()
        digest, eod = _judge_digest(path, content, suffix, blocks), judge_num_eod(content, num_eod)
        return Verdict(
            checked=(*digest.checked, *vocabulary, *eod.checked), findings=(*findings, *digest.findings, *eod.findings)
        )

    return Check(
        steps=(
            Step(
                call=Call(name=f"verify[{number:05d}]", place=path, function=verify_tokens, arguments=(piece,)),
                size=piece.end - piece.begin,
            )
            for number, piece in enumerate(pieces)
        ),
        size=size_bytes,
        judge=judge,
    )


def _judge_digest(path: str, content: Content, suffix: str, block_digests: Iterable[str]) -> Verdict:
    recorded = content.digests.get(suffix)
    if recorded is None:
        return Verdict()
    digest = combine_digests(map(bytes.fromhex, block_digests))
    finding = (
        f"{path}: expected the digest {recorded.digest}, got {digest}; its content changed, "
        f"restore it or build it again"
    )
    return Verdict(checked=(f"digest of the .{suffix}",), findings=() if digest == recorded.digest else (finding,))
