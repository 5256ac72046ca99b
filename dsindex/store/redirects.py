"""Redirects: a store may not send its readers elsewhere, and a web server only without what it was told.

obstore follows every redirect, with the session's token and with a Referer that holds the signature of an address. It
has no option against that, but one for a proxy and for the hosts that need none. So the proxy is an address that nobody
can have, and the exceptions are the hosts that a store needs: a request for any other host ends before it is sent.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dsindex.store.urls import ObjectUrl

_NOBODY = "127.0.0.1:0"
_SECONDS = 30
_METADATA = ("169.254.169.254", "169.254.170.2", "169.254.170.23", "fd00:ec2::254", "fd00:ec2::23")
"""Servers of credentials on machines and in containers of clouds."""
_GOOGLE_FILES = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_APPLICATION_CREDENTIALS")

redirects: dict[str, ObjectUrl] = {}
"""Web address with its query → where its server redirected to last."""


def only_hosts(hosts: Iterable[str], *, prefix: str = "") -> dict[str, Any]:
    """Return options of obstore's client by which no request leaves some hosts.

    They are empty where the environment names a proxy for all requests, which cannot be told from a redirect.

    Args:
        hosts: Domains, or addresses with them; a domain stands for those below it.
        prefix: The beginning of the variables that obstore reads for this kind of store.
    """
    import urllib.request  # loads ssl and http, in 15 ms

    if urllib.request.getproxies().keys() & {"http", "https", "all"} or os.environ.get(f"{prefix}PROXY_URL"):
        return {}
    named = (urlsplit(host).hostname if "://" in host else host for host in hosts)
    return {"proxy_url": f"http://{_NOBODY}", "proxy_excludes": ",".join(sorted({host for host in named if host}))}


def is_redirect(error: Exception | str) -> bool:
    """Tell whether a request of such a client ended since it would have gone to another host."""
    return f"{_NOBODY}," in str(error)


def amazon_hosts(endpoint: str | None, region: str | None) -> Iterator[str]:
    """Yield the hosts of S3, or of a server that speaks its language, and of those that have its credentials."""
    environment = os.environ
    region = region or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
    yield from (*_METADATA, "sts.amazonaws.com", f"sts.{region}.amazonaws.com", f"sts.{region}.amazonaws.com.cn")
    yield from ([f"{region}.amazonaws.com", f"{region}.amazonaws.com.cn"] if endpoint is None else [endpoint])
    yield from _named_by_variables("AWS_")


def google_hosts() -> Iterator[str]:
    """Yield the hosts of Google Cloud Storage and of its credentials, and those that the node's credentials name."""
    yield from (*_METADATA, "googleapis.com", "accounts.google.com", "metadata.google.internal", "metadata")
    yield from _named_by_variables("GOOGLE_", "GCE_")
    yield os.environ.get("GCE_METADATA_HOST", "").partition(":")[0]
    for name in _GOOGLE_FILES:
        with contextlib.suppress(OSError, ValueError), open(os.environ.get(name, ""), "rb") as file:
            yield from _addresses_in(json.load(file))
    with contextlib.suppress(ValueError):
        yield from _addresses_in(json.loads(os.environ.get("GOOGLE_SERVICE_ACCOUNT_KEY", "")))


def azure_hosts() -> Iterator[str]:
    """Yield the hosts of Azure's blobs and of its credentials."""
    yield from (*_METADATA, "windows.net", "microsoftonline.com", "microsoftonline.us", "microsoft.com")
    yield from ("usgovcloudapi.net", "chinacloudapi.cn")
    if os.environ.get("AZURE_STORAGE_USE_EMULATOR"):
        yield "127.0.0.1"
    yield from _named_by_variables("AZURE_", "AZURITE_", "IDENTITY_", "MSI_", "FABRIC_")


def find_redirect(url: ObjectUrl) -> str:
    """Return where a web server redirects to, asked without saying who sends us.

    Raises:
        OSError: If it cannot be told; the text has the status, as in errors of obstore.
    """
    import urllib.error
    import urllib.request

    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    request = urllib.request.Request(url.raw, headers={"Range": "bytes=0-0", "User-Agent": "dsindex"})
    try:
        with opener.open(request, timeout=_SECONDS) as answer:
            found: str = answer.geturl()
    except urllib.error.HTTPError as error:
        error.close()
        raise OSError(f"status code: {error.code}") from None
    except (urllib.error.URLError, ValueError) as error:
        raise OSError("kind: Connect") from error
    if url.scheme == "https" and not found.startswith("https:"):
        raise OSError(f"redirect to {_NOBODY}, without encryption")
    return found


def _named_by_variables(*prefixes: str) -> Iterator[str]:
    return (value for name, value in os.environ.items() if name.startswith(prefixes) and "://" in value)


def _addresses_in(content: object) -> Iterator[str]:
    for value in content.values() if isinstance(content, dict) else ():
        if isinstance(value, str) and value.startswith(("http://", "https://")):
            yield value
