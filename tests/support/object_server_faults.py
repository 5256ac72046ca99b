"""Faults of an object server: what goes wrong, with which requests, and how often."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import Sequence

UPLOADS = {"PutObject", "UploadPart"}
"""Operations with content in the request."""


@dataclass(slots=True, kw_only=True)
class Fault:
    """What happens to the next requests whose target contains `match`."""

    kind: str
    """One of

    - `503`, `403` or another status: refused with it; `200` is an error in the body of a success, as S3 answers
      CompleteMultipartUpload when something breaks after it began to answer
    - `reset`: in the middle of the content, up or down; requests without content are not carried out
    - `lost`: the request is carried out, and the connection is reset instead of an answer
    - `truncate`: the connection is closed in the middle of the answer's content
    - `corrupt`: a byte of the request's content changes on the way
    - `hang`: nothing happens for `seconds`, then all is well
    - `slow`: the content goes up or down in eight pieces, in `seconds`
    """
    match: str = ""
    times: int = 1
    method: str = "GET"
    """Counts where no operation is given; empty for all."""
    operation: str = ""
    """S3's name of it: `PutObject`, `UploadPart`, `CompleteMultipartUpload` …"""
    after: int = 0
    """So many requests that it would hit pass before."""
    code: str = "SlowDown"
    """S3's name of the error."""
    seconds: float = 1.0

    def hits(self, operation, method, target):
        """Return whether the fault is about such requests."""
        wanted = self.operation == operation if self.operation else self.method in {"", method}
        return wanted and self.match in target


@dataclass(slots=True, kw_only=True)
class RandomFaults:
    """Faults drawn for each request by a seed, the target, and how often it was asked for."""

    seed: int
    rate: float = 0.1
    kinds: Sequence[str] = ("503", "500", "reset", "lost", "truncate", "corrupt")
    operations: Sequence[str] = ()
    """All of them where empty."""
    in_a_row: int = 2
    """So often at most one target fails in a row, so that patience is enough."""
    asked: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)

    def draw(self, operation, target):
        """Return the fault of the next request of a target; upload ids, which differ from run to run, do not count."""
        parts = urlsplit(target)
        what = f"{operation} {parts.path} {parse_qs(parts.query).get('partNumber', '')}"
        self.asked[what] += 1
        chosen = random.Random(f"{self.seed} {what} {self.asked[what]}")
        kind = chosen.choice(self.kinds)
        fits = {"truncate": operation == "GetObject", "corrupt": operation in UPLOADS}.get(kind, True)
        wanted = not self.operations or operation in self.operations
        if not (fits and wanted and chosen.random() < self.rate and self.failed[what] < self.in_a_row):
            self.failed[what] = 0
            return None
        self.failed[what] += 1
        return Fault(kind=kind, code="InternalError" if kind == "500" else "SlowDown")


def next_fault(rules, by_chance, operation, method, target):
    """Return what goes wrong with a request, and count it down."""
    for fault in rules:
        if fault.times > 0 and fault.hits(operation, method, target):
            if fault.after > 0:
                fault.after -= 1
                continue
            fault.times -= 1
            return fault
    return by_chance.draw(operation, target) if by_chance else None


def name_operation(method, target, *, has_key):
    """Return S3's name of what a request wants: its words in the query, then its method."""
    query = parse_qs(urlsplit(target).query, keep_blank_values=True)
    for words, name in OPERATIONS.get((method, has_key), {}).items():
        if words in query or not words:
            return name
    return "Unknown"


OPERATIONS = {
    ("GET", False): {
        "uploads": "ListMultipartUploads",
        "list-type": "ListObjectsV2",
        "restype": "ListBlobs",
        "location": "GetBucketLocation",
    },
    ("GET", True): {"uploadId": "ListParts", "restype": "ListBlobs", "": "GetObject"},
    ("HEAD", False): {"": "HeadBucket"},
    ("HEAD", True): {"": "HeadObject"},
    ("PUT", False): {"": "CreateBucket"},
    ("PUT", True): {"partNumber": "UploadPart", "": "PutObject"},
    ("POST", False): {"delete": "DeleteObjects"},
    ("POST", True): {"uploads": "CreateMultipartUpload", "uploadId": "CompleteMultipartUpload"},
    ("DELETE", True): {"uploadId": "AbortMultipartUpload", "": "DeleteObject"},
}
