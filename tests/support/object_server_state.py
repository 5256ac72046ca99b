"""What an object server keeps, what it was told to do wrong, and what was asked of it."""

from __future__ import annotations

import hashlib
import itertools
import threading
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import xxhash

from tests.support.object_server_faults import Fault, RandomFaults, next_fault
from tests.support.object_server_rules import (
    Conditions,
    Piece,
    Refusal,
    Stored,
    Upload,
    check_conditions,
    choose_parts,
    require_sums,
)

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(slots=True, kw_only=True)
class ObjectServer:
    """The objects, and what was asked for."""

    objects: dict[str, bytes | Path | Stored] = field(default_factory=dict)
    """`bucket/key` → content. See `content` for what clients have put there."""
    buckets: set[str] = field(default_factory=set)
    """Those that exist without objects."""
    uploads: dict[str, Upload] = field(default_factory=dict)
    """By their ids."""
    completed: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Ids of uploads that were completed → name and ETag."""
    public: set[str] = field(default_factory=set)
    """Buckets that need no signature."""
    signatures: dict[str, str] = field(default_factory=dict)
    """`bucket/key` → the query without which it is refused."""
    faults: list[Fault] = field(default_factory=list)
    random_faults: RandomFaults | None = None
    faults_taken: Counter[str] = field(default_factory=Counter)
    """`operation kind` → how often it happened."""
    requests: list[str] = field(default_factory=list)
    """`METHOD target range`, in order of arrival."""
    operations: Counter[str] = field(default_factory=Counter)
    """S3's name of an operation → requests."""
    received_bytes: int = 0
    sent_bytes: int = 0
    watch: Callable[[str, str, str], None] | None = None
    """Called with the moment (`arrived`, `reading` the content, `done` but not answered), operation and target."""
    without_etag: bool = False
    without_ranges: bool = False
    remembers_completed: bool = False
    """Completing an upload again succeeds, as it does on Amazon's for a while."""
    crc32: Literal["checked", "ignored", "refused"] = "checked"
    """What the server does with a CRC-32: servers of old do not know it."""
    sums_of_parts: bool = True
    """The CRC-32 of each part must be told with the part and at the end, if the upload was begun so; not by moto."""
    equal_parts: bool = False
    """All parts but the last have one size, as R2 demands."""
    region: str = ""
    """Requests signed for another are refused."""
    min_part_bytes: int = 5 << 20
    page_size: int = 1000
    folder: Path | None = None
    """Where content is kept that clients put; in memory otherwise."""
    fast: bool = False
    """ETags by a quick hash, contents of requests checked against CRC32 and MD5 only: for measurements."""
    url: str = ""
    removals: Counter[str] = field(default_factory=Counter)
    names_of_files: itertools.count[int] = field(default_factory=itertools.count)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, bucket, folder):
        """Add all files below a folder."""
        self.buckets.add(bucket)
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.objects[f"{bucket}/{path.relative_to(folder)}"] = path

    def find(self, name):
        """Return an object.

        Raises:
            Refusal: There is none.
        """
        content = self.objects.get(name)
        if content is None:
            raise Refusal(404, "NoSuchKey", Key=name.partition("/")[2])
        if isinstance(content, Stored):
            return content
        if isinstance(content, Path):
            status = content.stat()
            piece = Piece(content=content, size=status.st_size, digest="")
            return Stored(pieces=(piece,), etag=f'"{status.st_mtime_ns:x}-{status.st_size:x}"')
        digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
        return Stored(pieces=(Piece(content=content, size=len(content), digest=digest),), etag=f'"{digest}"')

    def content(self, name):
        """Return the bytes of an object."""
        return b"".join(
            piece.content.read_bytes() if isinstance(piece.content, Path) else piece.content
            for piece in self.find(name).pieces
        )

    def names(self, bucket, prefix=""):
        """Return the keys of a bucket in S3's order."""
        begin = f"{bucket}/{prefix}"
        found = [name.partition("/")[2] for name in self.objects.copy() if name.startswith(begin)]
        return sorted(found, key=str.encode)

    def all_names(self):
        """Return `bucket/key` of all objects; safe while others write."""
        return sorted(self.objects.copy())

    def has_bucket(self, bucket):
        return bucket in self.buckets or any(name.startswith(f"{bucket}/") for name in self.objects.copy())

    def take_fault(self, operation, method, target):
        """Return what goes wrong with a request."""
        with self.lock:
            fault = next_fault(self.faults, self.random_faults, operation, method, target)
            if fault is not None:
                self.faults_taken[f"{operation} {fault.kind}"] += 1
            return fault

    def count(self, word):
        return sum(word in request for request in self.requests)

    def new_digest(self):
        return xxhash.xxh3_128() if self.fast else hashlib.md5(usedforsecurity=False)

    def new_file(self):
        """Return where the content of a request goes, or None for memory."""
        return self.folder / f"{next(self.names_of_files):08d}.piece" if self.folder else None

    def write(self, name, stored, conditions):
        """Put an object, if the conditions hold.

        Raises:
            Refusal: They do not.
        """
        with self.lock:
            self.check(name, conditions)
            replaced = self.objects.get(name)
            self.objects[name] = stored
        drop(replaced)

    def remove(self, name, *, if_match=None):
        """Remove an object; that there is none is no error.

        Raises:
            Refusal: It is not the one that was meant.
        """
        with self.lock:
            if if_match is not None:
                self.check(name, Conditions(if_match=if_match, removals=self.removals[name]))
            removed = self.objects.pop(name, None)
            self.removals[name] += removed is not None
        drop(removed)

    def create_upload(self, name, headers, *, checksum=""):
        """Begin an upload in parts."""
        upload = Upload(
            name=name, upload_id=uuid.uuid4().hex, headers=headers, initiated=time.time(), checksum=checksum
        )
        self.uploads[upload.upload_id] = upload
        return upload

    def find_upload(self, name, upload_id):
        """Return an upload in parts.

        Raises:
            Refusal: There is none, or none of such an object.
        """
        upload = self.uploads.get(upload_id)
        if upload is None or upload.name != name:
            raise Refusal(404, "NoSuchUpload", UploadId=upload_id)
        return upload

    def add_part(self, name, upload_id, number, piece):
        """Add or replace a part."""
        with self.lock:
            parts = self.find_upload(name, upload_id).parts
            replaced = parts.get(number)
            parts[number] = piece
        if replaced is not None:
            drop_pieces([replaced])

    def complete(self, name, upload_id, wanted, conditions):
        """Make parts an object (see choose_parts); return its ETag.

        Raises:
            Refusal: As S3 refuses.
        """
        with self.lock:
            if self.remembers_completed and self.completed.get(upload_id, ("", ""))[0] == name:
                return self.completed[upload_id][1]
            upload = self.find_upload(name, upload_id)
            self.check(name, conditions)
            if self.sums_of_parts and upload.checksum:
                require_sums(upload, wanted)
            chosen = choose_parts(upload, wanted, min_bytes=self.min_part_bytes, equal=self.equal_parts)
            digests = self.new_digest()
            for piece in chosen:
                digests.update(bytes.fromhex(piece.digest))
            etag = f'"{digests.hexdigest()}-{len(chosen)}"'
            replaced = self.objects.get(name)
            self.objects[name] = Stored(pieces=tuple(chosen), etag=etag, headers=upload.headers, modified=time.time())
            self.completed[upload_id] = (name, etag)
            del self.uploads[upload_id]
        kept = {id(piece) for piece in chosen}
        drop_pieces(piece for piece in upload.parts.values() if id(piece) not in kept)
        drop(replaced)
        return etag

    def abort(self, name, upload_id):
        """Forget an upload and its parts.

        Raises:
            Refusal: There is none.
        """
        with self.lock:
            upload = self.find_upload(name, upload_id)
            del self.uploads[upload_id]
        drop_pieces(upload.parts.values())

    def check(self, name, conditions):
        """Compare an object with what a write demands; others must not write meanwhile.

        Raises:
            Refusal: The write must not happen.
        """
        if conditions.any:
            current = self.find(name) if name in self.objects else None
            check_conditions(current, self.removals[name], conditions)


def drop(content):
    """Remove the files of an object that a client has put."""
    if isinstance(content, Stored):
        drop_pieces(content.pieces)


def drop_pieces(pieces):
    """Remove the files of pieces that a client has put."""
    for piece in pieces:
        if isinstance(piece.content, Path):
            piece.content.unlink()
