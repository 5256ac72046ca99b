"""S3's words for what is kept, and its rules for writing: conditions, and which parts make an object."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

LONG_AGO = 1.7e9
"""When objects were changed that a test, not a client, has put there."""


class Refusal(Exception):
    """An error as S3 answers it."""

    def __init__(self, status, code, **details):
        super().__init__(status, code)
        self.status, self.code, self.details = status, code, details


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Content that came in one request, in memory or in a file."""

    content: bytes | bytearray | Path
    size: int
    digest: str
    """Hexadecimal."""
    checksums: Mapping[str, str] = field(default_factory=dict)
    """Headers `x-amz-checksum-…` that came with it."""
    modified: float = LONG_AGO


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """An object: the pieces of an upload in parts stay as they came."""

    pieces: tuple[Piece, ...]
    etag: str
    """With its quotes."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """`Content-Type` and `x-amz-meta-…`."""
    modified: float = LONG_AGO

    @property
    def size(self):
        return sum(piece.size for piece in self.pieces)


@dataclass(slots=True, kw_only=True)
class Upload:
    """An upload in parts that was begun and neither completed nor aborted."""

    name: str
    upload_id: str
    headers: Mapping[str, str]
    initiated: float
    checksum: str = ""
    """`CRC32` if parts are checked so."""
    parts: dict[int, Piece] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What must hold when a write happens."""

    if_none_match: str | None = None
    if_match: str | None = None
    removals: int = 0
    """How often the object had been removed when the request arrived."""

    @property
    def any(self):
        return self.if_match is not None or self.if_none_match is not None


def check_conditions(current, removals, wanted):
    """Compare what a write demands with the object that is there.

    Raises:
        Refusal: The write must not happen.
    """
    if wanted.any and removals != wanted.removals:
        raise Refusal(409, "ConditionalRequestConflict")
    if wanted.if_none_match is not None and current is not None:
        raise Refusal(412, "PreconditionFailed", Condition="If-None-Match")
    if wanted.if_match is not None:
        if current is None:
            raise Refusal(404, "NoSuchKey")
        if wanted.if_match not in {"*", current.etag, current.etag.strip('"')}:
            raise Refusal(412, "PreconditionFailed", Condition="If-Match")


def require_sums(upload, wanted):
    """Demand the checksum of each part when an upload is completed.

    Raises:
        Refusal: One is missing.
    """
    for number, told in wanted:
        if f"Checksum{upload.checksum}" not in told:
            raise Refusal(400, "InvalidRequest", PartNumber=str(number))


def choose_parts(upload, wanted, *, min_bytes, equal):
    """Return the parts that become the object.

    Args:
        upload: With the parts that were uploaded.
        wanted: Number of each, and its `ETag` and perhaps checksums.
        min_bytes: Least size of all but the last.
        equal: All but the last have one size.

    Raises:
        Refusal: As S3 refuses, in its order.
    """
    numbers = [number for number, _ in wanted]
    if not numbers:
        raise Refusal(400, "MalformedXML")
    if sorted(set(numbers)) != numbers:
        raise Refusal(400, "InvalidPartOrder")
    chosen = []
    for number, told in wanted:
        piece = upload.parts.get(number)
        if piece is None or told.get("ETag", "").strip('"') != piece.digest:
            raise Refusal(400, "InvalidPart", PartNumber=str(number))
        for name, value in told.items():
            known = piece.checksums.get(f"x-amz-checksum-{name.removeprefix('Checksum').lower()}", value)
            if name.startswith("Checksum") and known != value:
                raise Refusal(400, "InvalidPart", PartNumber=str(number))
        if chosen and chosen[-1].size < min_bytes:
            raise Refusal(400, "EntityTooSmall", ProposedSize=str(chosen[-1].size))
        if chosen and equal and (chosen[-1].size != chosen[0].size or piece.size > chosen[0].size):
            raise Refusal(400, "InvalidPart", PartNumber=str(number))
        chosen.append(piece)
    return chosen
