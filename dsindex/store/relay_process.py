"""The program that makes the requests of a forked process (see `relay.py`), and ends when that process does.

Each request is a line of JSON on standard input: an address with `begin` and `end` of a range, or with `recursive` to
list a folder. Each answer on standard output is a line of JSON, whose `size` says how many bytes of content follow.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from functools import partial
from typing import Any

from dsindex.errors import InputError
from dsindex.store.requests import fetch_later
from dsindex.store.stores import get_range, list_entries
from dsindex.store.urls import Access, ObjectUrl

_lock = threading.Lock()


def main() -> None:
    """Answer requests until standard input ends."""
    for line in sys.stdin.buffer:
        request = json.loads(line)
        fetch_later(partial(_answer, request))
    os._exit(0)  # nobody waits for what is still under way


def _answer(request: dict[str, Any]) -> None:
    access = Access(endpoint_url=request["endpoint_url"], region=request["region"])
    url = ObjectUrl(request["url"], query=request["query"], access=access)
    head: dict[str, Any] = {"id": request["id"]}
    content: Any = b""
    try:
        if "recursive" in request:
            content = json.dumps([_entry(each) for each in list_entries(url, recursive=request["recursive"])]).encode()
        else:
            content, meta = get_range(url, request["begin"], request["end"], if_match=request["if_match"])
            head["meta"] = _entry(meta)
    except InputError as error:
        head |= {"error": type(error).__name__, "message": str(error), "transient": error.transient}
    except Exception as error:  # noqa: BLE001 - whoever asked must be told
        message = f"{url}: cannot be read ({type(error).__name__}); check the address"
        head |= {"error": "InputError", "message": message, "transient": False}
    with _lock:
        sys.stdout.buffer.write(json.dumps({**head, "size": len(content)}).encode() + b"\n")
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()


def _entry(meta: Any) -> dict[str, Any]:  # noqa: ANN401 - obstore's ObjectMeta
    modified = meta["last_modified"]
    return {
        "path": meta["path"],
        "size": meta["size"],
        "e_tag": meta["e_tag"],
        "last_modified": None if modified is None else modified.isoformat(),
    }


if __name__ == "__main__":
    main()
