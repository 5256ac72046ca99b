"""By what a store checks the content that it is sent: CRC-32 where it does, otherwise MD5.

MD5 takes ten times as long, but every store has checked it from the first. So the first object that a client writes
carries both; from then on it sends the CRC-32 alone if the store's answer shows that it has computed it.
"""

from __future__ import annotations

import base64
import hashlib
import weakref
import zlib
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsindex.objects.blocks import Blocks, Bytes


class Checksum(StrEnum):
    """By what content is checked."""

    CRC32 = "crc32"
    MD5 = "md5"


UNKNOWN_HEADER = ("NotImplemented", "InvalidArgument", "InvalidRequest", "InvalidHeader")
"""Refusals by which stores answer a header that they do not know."""

_known: weakref.WeakKeyDictionary[Any, Checksum] = weakref.WeakKeyDictionary()
"""Client → what its store checks."""


class Sum:
    """The checksum of content that comes in pieces."""

    def __init__(self, kind: Checksum) -> None:
        self._kind = kind
        self._crc = 0
        self._md5 = hashlib.md5(usedforsecurity=False)

    def update(self, data: Bytes) -> None:
        """Add the next bytes."""
        if self._kind is Checksum.CRC32:
            self._crc = zlib.crc32(data, self._crc)
        else:
            self._md5.update(data)

    def arguments(self) -> dict[str, str]:
        """Return the checksum as arguments of boto3."""
        is_crc = self._kind is Checksum.CRC32
        digest = self._crc.to_bytes(4, "big") if is_crc else self._md5.digest()
        return {"ChecksumCRC32" if is_crc else "ContentMD5": base64.b64encode(digest).decode()}


def checksum_arguments(kind: Checksum, content: Blocks) -> dict[str, str]:
    """Return the checksum of content as arguments of boto3."""
    whole = Sum(kind)
    for block in content:
        whole.update(block)
    return whole.arguments()


def known_checksum(client: Any) -> Checksum | None:  # noqa: ANN401 - boto3's client
    """Return what a client's store checks; None if it has written nothing yet."""
    return _known.get(client)


def learn_checksum(client: Any, answer: Mapping[str, object]) -> None:  # noqa: ANN401
    """Learn from the answer to an object that was sent with both checksums what the store checks."""
    _known[client] = Checksum.CRC32 if answer.get("ChecksumCRC32") else Checksum.MD5


def use_md5(client: Any) -> None:  # noqa: ANN401
    """Send no CRC-32 to a store that refused one."""
    _known[client] = Checksum.MD5
