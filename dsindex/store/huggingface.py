"""Datasets on the Hugging Face Hub, `hf://datasets/ORGANISATION/NAME[@REVISION][/PATH]`.

huggingface_hub resolves revisions, lists files and has the user's token; the content is read from the address at which
the Hub serves a file of a commit. The token is neither shown nor stored.
"""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote

from dsindex.errors import InputError, MissingObjectError, StoreError
from dsindex.store.storage import InputStatus
from dsindex.store.urls import HUB_ADDRESS, has_magic, names_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Answer = TypeVar("Answer")

_COMMIT = re.compile(r"[0-9a-f]{40}")
_TOKEN = "set HF_TOKEN or run `hf auth login` on every node"
_PAUSES = (1.0, 5.0, 30.0, 60.0)
"""Seconds before further attempts, as the Hub counts requests in windows of minutes."""
_commits: dict[tuple[str, str | None], Any] = {}
"""(dataset, revision) → what the Hub says of it, so that the inputs of a job have one commit."""


def endpoint() -> str:
    """Return the address of the Hub."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def token() -> str | None:
    """Return the user's token."""
    from huggingface_hub import get_token

    return get_token()


def pin(url: str) -> str:
    """Return the address at a commit.

    Raises:
        InputError: If there is no such dataset or revision, or it cannot be read.
    """
    _, revision, name = _parts(url)
    return url if revision is not None and _COMMIT.fullmatch(revision) else _address(url, _info(url).sha, name)


def head(url: str) -> InputStatus:
    """Return size and version of a file."""
    dataset, revision, name = _parts(pin(url))
    found = _ask(url, lambda: _api().get_paths_info(dataset, name, revision=revision, repo_type="dataset"))
    if not found or getattr(found[0], "size", None) is None or names_folder(url) or has_magic(url):
        raise MissingObjectError(f"{url}: there is no such file in this commit of the dataset; check the path")
    return _status(url, str(revision), found[0])


def list_files(url: str, *, recursive: bool) -> list[InputStatus]:
    """Return the files in a folder, or below it, at a commit."""
    dataset, revision, name = _parts(pin(url))
    folder = name.strip("/") or None

    def request() -> list[Any]:
        return list(_api().list_repo_tree(dataset, folder, recursive=recursive, revision=revision, repo_type="dataset"))

    files = [entry for entry in _ask(url, request) if getattr(entry, "size", None) is not None]
    return sorted((_status(url, str(revision), entry) for entry in files), key=lambda each: os.fsencode(each.path))


def web_address(url: str) -> tuple[str, str]:
    """Return the address at which the Hub serves the files of a commit, and the name of a file there."""
    dataset, revision, name = _parts(pin(url))
    return f"{endpoint()}/datasets/{dataset}/resolve/{quote(str(revision), safe='')}", name


def described_configurations(folder: str) -> Sequence[object]:
    """Return the configurations of a dataset as its README.md has them; none for a folder in it."""
    if _parts(folder)[2]:
        return ()
    card = _info(folder).card_data
    found = card.get("configs") if card is not None else None
    return found if isinstance(found, list) else ()


def _parts(url: str) -> tuple[str, str | None, str]:
    """Return dataset, revision and path of an address."""
    match = HUB_ADDRESS.fullmatch(url)
    if match is None:
        raise ValueError(f"expected an address of a dataset on the Hub, got {url}")
    return match[1], None if match[2] is None else unquote(match[2]), match[3] or ""


def _address(url: str, revision: str, name: str) -> str:
    return f"hf://datasets/{_parts(url)[0]}@{quote(revision, safe='')}/{name}"


def _status(url: str, commit: str, entry: Any) -> InputStatus:  # noqa: ANN401 - the Hub's file
    path = _address(url, commit, entry.path)
    return InputStatus(path=path, size_bytes=entry.size, version=f"hub {entry.blob_id}")


def _api() -> Any:  # noqa: ANN401 - HfApi
    from huggingface_hub import HfApi

    return HfApi(endpoint=endpoint(), library_name="dsindex")


def _info(url: str) -> Any:  # noqa: ANN401 - DatasetInfo
    dataset, revision, _ = _parts(url)
    info = _commits.get((dataset, revision))
    if info is None:
        info = _ask(url, lambda: _api().dataset_info(dataset, revision=revision))
        if info.id != dataset or not _COMMIT.fullmatch(info.sha or ""):
            msg = f"expected the present name of a dataset, got one that was renamed; write hf://datasets/{info.id}"
            raise InputError(f"{url}: {msg}")
        _commits[dataset, revision] = _commits[dataset, info.sha] = info
    return info


def _ask(url: str, request: Callable[[], Answer]) -> Answer:
    """Make a request by huggingface_hub, again while the Hub is busy; its errors, which have addresses, are not shown.

    Raises:
        StoreError: If it is refused.
    """
    for pause in (*_PAUSES, None):
        try:
            return request()
        except Exception as error:  # noqa: BLE001 - the library raises many kinds
            failure = _described(url, error)
            if not failure.transient or pause is None:
                raise failure from None
            time.sleep(pause)
    raise AssertionError


def _described(url: str, error: Exception) -> InputError:
    from huggingface_hub import errors

    dataset, revision, _ = _parts(url)
    page = f"{endpoint()}/datasets/{dataset}"
    refusals: list[tuple[type[Exception], type[InputError], str]] = [
        (errors.GatedRepoError, StoreError, f"the dataset is gated: ask for access at {page}, then {_TOKEN}"),
        (errors.RepositoryNotFoundError, StoreError, f"no such dataset, or it is private: check the name, or {_TOKEN}"),
        (errors.RevisionNotFoundError, StoreError, f"the dataset has no revision {revision}: check it"),
        (errors.DisabledRepoError, StoreError, "the Hub has disabled the dataset: choose another"),
        (errors.OfflineModeIsEnabled, StoreError, "HF_HUB_OFFLINE is set: unset it, or name a folder of the cache"),
        (errors.HFValidationError, StoreError, "no name of a dataset: write hf://datasets/ORGANISATION/NAME"),
        (errors.EntryNotFoundError, MissingObjectError, "no such file or folder in this commit: check the path"),
    ]
    for kind, failure, what in refusals:
        if isinstance(error, kind):
            return failure(f"{url}: cannot be read ({what})")
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in {401, 403}:
        return StoreError(f"{url}: cannot be read (the Hub does not accept the token: {_TOKEN})")
    what = "the Hub cannot be reached" if status is None else f"the Hub answers with {status}"
    busy = StoreError(f"{url}: cannot be read ({what}); run the same command again later, or check the network")
    busy.transient = status is None or status >= 500 or status in {408, 429}
    return busy
