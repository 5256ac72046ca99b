"""The requests to object stores in the summary of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsindex.amounts import count, format_size

if TYPE_CHECKING:
    from dsindex.store.requests import RequestCounts


def describe_requests(requests: RequestCounts) -> list[str]:
    """Return what was asked of object stores; nothing if that is nothing.

    >>> from dsindex.store.requests import RequestCounts
    >>> describe_requests(RequestCounts(process="", gets=312, lists=2, received_bytes=1_200_000_000))
    ['objects: 312 GETs, 2 LISTs, 1,200.0 MB read']
    """
    if not (requests.gets or requests.lists or requests.puts):
        return []
    asked = [(requests.gets, "GET"), (requests.lists, "LIST"), (requests.puts, "PUT")]
    moved = [(requests.received_bytes, "read"), (requests.sent_bytes, "written")]
    told = [count(number, name) for number, name in asked if number]
    told += [f"{format_size(size_bytes)} {what}" for size_bytes, what in moved if size_bytes]
    told += [count(requests.retries, "repetition")] if requests.retries else []
    return ["objects: " + ", ".join(told)]
