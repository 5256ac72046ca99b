"""Datasets on the Hugging Face Hub, `hf://datasets/ORGANISATION/NAME[@REVISION][/PATH]`, as a store that is read.

huggingface_hub resolves revisions, lists trees and has the user's token. `pin` replaces a revision by its commit before
anything is recorded. The content is read by ranges from where the Hub redirects to; that address is signed, and is
neither shown nor stored.
"""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

from dsindex.errors import InputError, MissingObjectError, StoreError
from dsindex.store.requests import Backoff, count_requests, retry
from dsindex.store.urls import HUB_ADDRESS, ObjectIdentity, ObjectUrl, check_endpoint, parse_url

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dsindex.store.requests import RetryClass

Answer = TypeVar("Answer")

_COMMIT = re.compile(r"[0-9a-f]{40}")
_RESOLVED_SECONDS = 300.0
_MAX_PAUSE_SECONDS = 300.0
"""The Hub counts requests in windows of five minutes."""
_TOKEN = "set HF_TOKEN or run `hf auth login` on every node"
_resolved: dict[tuple[str, str, str | None], tuple[float, Any]] = {}
"""(server, dataset, revision) → time and what the Hub says of it, so that the inputs of a job have one commit."""


def pin(path: str) -> str:
    """Return the address of a dataset's files at a commit; that of a file with its identity. Other paths are unchanged.

    Raises:
        InputError: If there is no such dataset, revision or file, or it cannot be read.
    """
    if not isinstance(path, ObjectUrl) or path.scheme != "hf" or path.identity is not None:
        return path
    dataset, revision, name = _parts(path)
    if revision is None or not _COMMIT.fullmatch(revision):
        revision = _info(path).sha
    url = _address(path, revision, name)
    if url.is_folder or url.has_magic:
        return url
    api = _api(url)
    found = _ask(url, lambda: api.get_paths_info(dataset, name, revision=revision, repo_type="dataset"), lists=1)
    if not found:
        raise MissingObjectError(f"{url}: there is no such file in this commit of the dataset; check the path")
    return _entry(path, revision, found[0])


def list_files(url: ObjectUrl, *, recursive: bool) -> list[ObjectUrl]:
    """Return the files below a folder, with their identities, at a commit."""
    dataset, revision, name = _parts(url)
    api, folder = _api(url), name.strip("/") or None

    def request() -> list[Any]:
        return list(api.list_repo_tree(dataset, folder, recursive=recursive, revision=revision, repo_type="dataset"))

    entries = [_entry(url, str(revision), entry) for entry in _ask(url, request, lists=1)]
    return sorted((entry for entry in entries if not entry.is_folder), key=os.fsencode)


def locate_file(url: ObjectUrl) -> ObjectUrl:
    """Return where the Hub redirects to for a file's content, which may be signed, or its own address."""
    from huggingface_hub import get_hf_file_metadata, get_token, hf_hub_url

    dataset, revision, name = _parts(url)
    there = hf_hub_url(dataset, name, repo_type="dataset", revision=revision, endpoint=_server(url))
    found = _ask(url, lambda: get_hf_file_metadata(there, token=get_token() or False, endpoint=_server(url)), gets=1)
    if _server(url).startswith("https:") and not found.location.startswith("https:"):
        raise StoreError(f"{url}: expected an encrypted address from the Hub, got another; check HF_ENDPOINT")
    return parse_url(found.location)


def token_for(there: ObjectUrl, url: ObjectUrl) -> str | None:
    """Return the user's token if a file's content is on the Hub itself, and None for any other server."""
    from huggingface_hub import get_token

    server = urlsplit(_server(url))
    return get_token() if (there.scheme, there.bucket) == (server.scheme, server.netloc) and not there.query else None


def described_configurations(folder: str) -> Sequence[object]:
    """Return the configurations of a dataset as its README.md has them; none for other folders."""
    if not isinstance(folder, ObjectUrl) or folder.scheme != "hf" or _parts(folder)[2]:
        return ()
    card = _info(folder).card_data
    found = card.get("configs") if card is not None else None
    return found if isinstance(found, list) else ()


def _parts(url: ObjectUrl) -> tuple[str, str | None, str]:
    """Return dataset, revision and path of an address."""
    match = HUB_ADDRESS.fullmatch(f"{url.bucket}/{url.key}")
    if match is None:
        raise ValueError(f"expected an address of a dataset on the Hub, got {url}")
    return match[1], None if match[2] is None else unquote(match[2]), match[3] or ""


def _address(url: ObjectUrl, revision: str, name: str) -> ObjectUrl:
    dataset, _, _ = _parts(url)
    return url.with_key(f"{dataset}@{quote(revision, safe='')}/{name}")


def _entry(url: ObjectUrl, commit: str, entry: Any) -> ObjectUrl:  # noqa: ANN401 - the Hub's file or folder
    """Return the address of a file with its identity, or of a folder."""
    if getattr(entry, "size", None) is None:
        return _address(url, commit, f"{entry.path}/")
    identity = ObjectIdentity(size_bytes=entry.size, version=f"hub {entry.blob_id}")
    return _address(url, commit, entry.path).identified(identity)


def _server(url: ObjectUrl) -> str:
    """Return the Hub of an address, as HF_ENDPOINT was where the address was given."""
    try:
        return check_endpoint((url.access.endpoint_url or "https://huggingface.co").rstrip("/"))
    except ValueError as error:
        raise InputError(f"HF_ENDPOINT: {error}") from error


def _api(url: ObjectUrl) -> Any:  # noqa: ANN401 - HfApi
    from huggingface_hub import HfApi

    return HfApi(endpoint=_server(url), library_name="dsindex")


def _info(url: ObjectUrl) -> Any:  # noqa: ANN401 - DatasetInfo
    """Return what the Hub says of a dataset at a revision, asked once in a while."""
    dataset, revision, _ = _parts(url)
    key, api = (_server(url), dataset, revision), _api(url)
    since, info = _resolved.get(key, (-_RESOLVED_SECONDS, None))
    if info is None or time.monotonic() - since > _RESOLVED_SECONDS:
        info = _ask(url, lambda: api.dataset_info(dataset, revision=revision), lists=1)
        if info.id != dataset or not _COMMIT.fullmatch(info.sha or ""):
            msg = f"expected the present name of a dataset, got one that was renamed; write hf://datasets/{info.id}"
            raise InputError(f"{url}: {msg}")
        _resolved[key] = _resolved[_server(url), dataset, info.sha] = (time.monotonic(), info)
    return info


def _ask(url: ObjectUrl, request: Callable[[], Answer], *, gets: int = 0, lists: int = 0) -> Answer:
    """Make a request by huggingface_hub, again where that may help; its errors, which have addresses, are not shown."""

    def counted() -> Answer:
        count_requests(gets=gets, lists=lists)
        return request()

    def describe(_: ObjectUrl, error: Exception) -> tuple[StoreError, RetryClass]:
        return _describe(url, error)

    # A gate of its own: a file is located while a request for its content passes that of the content.
    return retry(ObjectUrl("hf://api"), counted, describe=describe, backoff=Backoff())


def _describe(url: ObjectUrl, error: Exception) -> tuple[StoreError, RetryClass]:
    from huggingface_hub import errors

    dataset, revision, _ = _parts(url)
    refusals: list[tuple[type[Exception] | tuple[type[Exception], ...], str]] = [
        (
            errors.GatedRepoError,
            f"the dataset is gated: ask for access at {_server(url)}/datasets/{dataset}, then {_TOKEN}",
        ),
        (
            errors.RepositoryNotFoundError,
            f"there is no such dataset, or it is private: check the name, or {_TOKEN}",
        ),
        (errors.RevisionNotFoundError, f"the dataset has no revision {revision}: check the branch, tag or commit"),
        (errors.DisabledRepoError, "the Hub has disabled the dataset: choose another"),
        (
            errors.OfflineModeIsEnabled,
            "HF_HUB_OFFLINE is set: unset it, or name the folder of the dataset in the cache",
        ),
        (errors.HFValidationError, "this is no name of a dataset: write hf://datasets/ORGANISATION/NAME"),
    ]
    for kind, what in refusals:
        if isinstance(error, kind):
            return StoreError(f"{url}: cannot be read ({what})"), "fatal"
    if isinstance(error, errors.EntryNotFoundError):
        what = "there is no such file or folder in this commit of the dataset; check the path"
        return MissingObjectError(f"{url}: cannot be read ({what})"), "fatal"
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    if status in {401, 403}:
        what = f"the Hub does not accept the token (status {status}): {_TOKEN}, with one that may read the dataset"
        return StoreError(f"{url}: cannot be read ({what})"), "fatal"
    if status is not None and status < 500 and status not in {408, 429}:
        return StoreError(f"{url}: cannot be read (the Hub answers with {status}: check the address)"), "fatal"
    what = "the Hub cannot be reached" if status is None else f"the Hub answers with {status}, again and again"
    failure = StoreError(f"{url}: cannot be read ({what}); run the same command again later, or check the network")
    failure.transient = True
    if status == 429 and response is not None:
        told = re.search(r";\s*t=(\d+)", response.headers.get("ratelimit", "")) or re.fullmatch(
            r"(\d+)", response.headers.get("retry-after", "")
        )
        time.sleep(min(_MAX_PAUSE_SECONDS, float(told[1]) if told else 0.0))
        return failure, "throttled"
    return failure, "unreachable" if status is None else "transient"
