"""Datasets on the Hugging Face Hub, `hf://datasets/ORGANISATION/NAME[@REVISION][/PATH]`.

huggingface_hub resolves revisions, lists files and supplies the user's token. `objects.py` reads the content, from the
web address of the file at a commit. The token is never shown or stored.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote

from dsindex.errors import MissingObjectError
from dsindex.store.errors import describe_refusal
from dsindex.store.local import InputStatus, retry, sort_by_path
from dsindex.store.urls import HUB_ADDRESS, has_magic, names_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Answer = TypeVar("Answer")

_COMMIT = re.compile(r"[0-9a-f]{40}")
_PAUSES = (1.0, 5.0, 30.0, 60.0)
"""Seconds before each retry; the Hub limits requests per minute."""
_commits: dict[tuple[str, str | None], Any] = {}
"""(dataset, revision) → DatasetInfo, cached so that all inputs of a job come from one commit."""


def endpoint() -> str:
    """Return the address of the Hub."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def token() -> str | None:
    """Return the user's token, if there is one."""
    from huggingface_hub import get_token

    return get_token()


def forget_commits() -> None:
    """Clear the cache of commits, so that the next job of this process resolves branches again."""
    _commits.clear()


def pin(url: str) -> str:
    """Pin a dataset's address to the current commit of its revision; return any other path unchanged.

    Raises:
        InputError: If there is no such dataset or revision, or it cannot be read.
    """
    if not url.startswith("hf://"):
        return url
    _, revision, name = _split(url)
    return url if revision is not None and _COMMIT.fullmatch(revision) else _address(url, _fetch_info(url).sha, name)


def head(url: str) -> InputStatus:
    """Return size and version of a file.

    Raises:
        MissingObjectError: If it is not a file in the dataset.
    """
    dataset, revision, name = _split(pin(url))
    entries = _ask(url, lambda: _api().get_paths_info(dataset, name, revision=revision, repo_type="dataset"))
    if not entries or getattr(entries[0], "size", None) is None or names_folder(url) or has_magic(url):
        raise MissingObjectError(f"{url}: there is no such file in this commit of the dataset", hint="check the path")
    return _status(url, str(revision), entries[0])


def list_files(url: str, *, recursive: bool) -> list[InputStatus]:
    """Return the files of a folder at a commit: those directly in it, or all below it if recursive."""
    dataset, revision, name = _split(pin(url))
    folder = name.strip("/") or None

    def request() -> list[Any]:
        return list(_api().list_repo_tree(dataset, folder, recursive=recursive, revision=revision, repo_type="dataset"))

    files = [entry for entry in _ask(url, request) if getattr(entry, "size", None) is not None]
    return sort_by_path(_status(url, str(revision), entry) for entry in files)


def web_address(url: str) -> tuple[str, str]:
    """Return the web address of a dataset's commit, and the path of the file below it."""
    dataset, revision, name = _split(pin(url))
    return f"{endpoint()}/datasets/{dataset}/resolve/{quote(str(revision), safe='')}", name


def read_configurations(folder: str) -> Sequence[object]:
    """Return the configurations in the README.md of a dataset; none for its subfolders and for other paths."""
    if not folder.startswith("hf://") or _split(folder)[2]:
        return ()
    card = _fetch_info(folder).card_data
    configurations = card.get("configs") if card is not None else None
    return configurations if isinstance(configurations, list) else ()


def _split(url: str) -> tuple[str, str | None, str]:
    """Split an address into dataset, revision and path."""
    match = HUB_ADDRESS.fullmatch(url)
    if match is None:
        raise ValueError(f"{url}: not the address of a dataset on the Hub")
    return match[1], None if match[2] is None else unquote(match[2]), match[3] or ""


def _address(url: str, revision: str, name: str) -> str:
    return f"hf://datasets/{_split(url)[0]}@{quote(revision, safe='')}/{name}"


def _status(url: str, commit: str, entry: Any) -> InputStatus:  # noqa: ANN401 - the Hub's file
    path = _address(url, commit, entry.path)
    return InputStatus(path=path, size_bytes=entry.size, version=f"hub {entry.blob_id}")


def _api() -> Any:  # noqa: ANN401 - HfApi
    from huggingface_hub import HfApi

    return HfApi(endpoint=endpoint(), library_name="dsindex")


def _fetch_info(url: str) -> Any:  # noqa: ANN401 - DatasetInfo
    dataset, revision, _ = _split(url)
    info = _commits.get((dataset, revision))
    if info is None:
        info = _ask(url, lambda: _api().dataset_info(dataset, revision=revision))
        _commits[dataset, revision] = _commits[dataset, info.sha] = info
    return info


def _ask(url: str, request: Callable[[], Answer]) -> Answer:
    """Make a request through huggingface_hub, and retry while the Hub is busy.

    Raises:
        StoreError: If the request fails. Messages of huggingface_hub may contain signed addresses, so none is shown.
    """

    def attempt() -> Answer:
        try:
            return request()
        except Exception as error:  # noqa: BLE001 - the library raises many types
            raise describe_refusal(url, error) from None

    return retry(attempt, _PAUSES)
