"""The client that writes to S3, to compatible servers, and to Google's, and how its failures are told.

boto3 makes the requests that obstore cannot make: the parts of an upload that several machines make together, and
conditional writes. Credentials are found by boto3 on the machine that makes a request, and are neither sent nor stored.
"""

from __future__ import annotations

import functools
import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from dsindex.errors import OutputError
from dsindex.objects import google_store
from dsindex.objects.blocks import Blocks, BodyOfBlocks
from dsindex.objects.requests import NODE_REMEDIES, REGION_CODES, WRONG_SERVER, insist

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from dsindex.objects.requests import Outlook, Patience
    from dsindex.objects.urls import Access, ObjectUrl

REQUEST_SECONDS = 60
CONNECT_SECONDS = 5
MOST_CONNECTIONS = 64
_PREFIXES = ("AWS_",)
_SLOWER_CODES = {"SlowDown", "503", "429", "TooManyRequests", "ServiceUnavailable"}
"""Refusals after which fewer requests are made at once."""
_PASSING_CODES = {
    *("RequestTimeout", "OperationAborted", "ConditionalRequestConflict", "SlowDown"),
    *("BadDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch"),
}
"""Refusals with a status below 500 that another attempt may turn into success."""

Answer = TypeVar("Answer")


class StoreWriteError(OutputError):
    """An object store refuses to write, or cannot be reached."""

    code: str = ""
    """The store's name of the error."""


def client_of(url: ObjectUrl) -> Any:  # noqa: ANN401 - boto3's client
    """Return the client for an address, another one if the environment has changed, as it may in a notebook.

    Raises:
        StoreWriteError: If a library is not installed, or the client would send secrets without encryption.
    """
    make, prefixes = (_make_google_client, google_store.VARIABLES) if url.scheme == "gs" else (_make_client, _PREFIXES)
    settings = frozenset((name, value) for name, value in os.environ.items() if name.startswith(prefixes))
    with _making:  # boto3 makes clients one at a time
        try:
            return make(url.access, hash(settings))
        except ImportError as error:
            needed, extra = ("boto3 package", "objects")
            if url.scheme == "gs":
                needed, extra = "boto3 and google-auth packages", "google"
            msg = f"{url}: outputs in object stores need the {needed}; pip install 'dsindex[{extra}]' on every node"
            raise StoreWriteError(msg) from error
        except google_store.CredentialsError as error:
            raise _describe(url, error, expected=())[0] from error


_making = threading.Lock()


@functools.lru_cache(16)
def _make_client(access: Access, _environment: int) -> Any:  # noqa: ANN401 - boto3's client
    import boto3
    from botocore import UNSIGNED

    environment = os.environ
    endpoint = access.endpoint_url or environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    session = boto3.session.Session()
    region = access.region or environment.get("AWS_REGION") or session.region_name or "us-east-1"
    options: dict[str, Any] = {
        "s3": {"addressing_style": "path" if endpoint else "auto", "payload_signing_enabled": False}
    }
    if environment.get("AWS_SKIP_SIGNATURE", "").lower() == "true":
        options["signature_version"] = UNSIGNED
    return _finish(session, region_name=region, endpoint_url=endpoint or None, options=options)


@functools.lru_cache(16)
def _make_google_client(_access: Access, _environment: int) -> Any:  # noqa: ANN401 - boto3's client
    import boto3
    from botocore import UNSIGNED

    endpoint = google_store.find_endpoint()
    session = boto3.session.Session("unused", "unused")  # without these, it would look for credentials of AWS
    options = {"s3": {"addressing_style": "path"}, "signature_version": UNSIGNED}
    client = _finish(session, region_name="auto", endpoint_url=endpoint, options=options)
    google_store.speak_google(client)
    return client


def _finish(session: Any, *, region_name: str, endpoint_url: str | None, options: dict[str, Any]) -> Any:  # noqa: ANN401
    from botocore.config import Config

    config = Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=REQUEST_SECONDS,
        retries={"total_max_attempts": 1, "mode": "standard"},  # requests are tried again by `persist`
        max_pool_connections=MOST_CONNECTIONS,
        request_checksum_calculation="when_required",  # some servers know no other checksum than Content-MD5
        response_checksum_validation="when_required",
        **options,
    )
    client = session.client("s3", region_name=region_name, endpoint_url=endpoint_url, config=config)
    for operation in ("PutObject", "UploadPart"):
        client.meta.events.register(f"before-send.s3.{operation}", _send_blocks)
    return client


def _send_blocks(request: Any, **_: object) -> None:  # noqa: ANN401 - botocore's prepared request
    """Let blocks be sent one by one: botocore would copy bytes, and send a file in small pieces."""
    if isinstance(request.body, Blocks):
        request.body = BodyOfBlocks(request.body)


def persist(
    url: ObjectUrl,
    request: Callable[[], Answer],
    *,
    expected: Collection[str] = (),
    patience: Patience | None = None,
) -> Answer:
    """Make a request, again and again after pauses as long as the failure may pass.

    Args:
        url: What is written, for messages.
        request: Makes the request; errors are those of boto3.
        expected: Names of errors that the caller deals with: they are raised at once, as StoreWriteError with `code`.
        patience: How long to go on.

    Raises:
        StoreWriteError: If the request is refused, or fails for too long; the latter is transient.
    """
    describe = functools.partial(_describe, expected=expected)
    return insist(url, request, describe=describe, patience=patience)


def _describe(url: ObjectUrl, error: Exception, *, expected: Collection[str]) -> tuple[StoreWriteError, Outlook]:
    """Return a failure to write by boto3 as a sentence, and whether it may pass."""
    from botocore import exceptions

    if isinstance(error, exceptions.ClientError):
        return _describe_answer(url, error, expected)
    if isinstance(error, google_store.CredentialsError):
        what, remedy = error.args
        return StoreWriteError(f"{url}: cannot be written ({what}); {remedy}"), "final"
    if isinstance(error, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
        remedy = "set them on every node"
        return StoreWriteError(f"{url}: cannot be written (this node has no credentials); {remedy}"), "final"
    if isinstance(error, exceptions.HTTPClientError | exceptions.EndpointConnectionError | OSError):
        is_silent = isinstance(error, exceptions.ReadTimeoutError | exceptions.ConnectTimeoutError)
        is_unreachable = is_silent or isinstance(error, exceptions.EndpointConnectionError)
        what = "a broken connection, again and again"
        what = "the server does not answer in time" if is_silent else what
        what = "the server cannot be reached" if isinstance(error, exceptions.EndpointConnectionError) else what
        failure = StoreWriteError(
            f"{url}: cannot be written ({what}); run the same command again later, or check the network: it continues"
        )
        failure.transient = True
        return failure, "unreachable" if is_unreachable else "passing"
    if isinstance(error, exceptions.ResponseParserError):
        return foreign_answer(url), "final"
    if isinstance(error, exceptions.BotoCoreError):
        kind = type(error).__name__
        return StoreWriteError(f"{url}: cannot be written ({kind}); check the credentials and settings of AWS"), "final"
    raise error


def foreign_answer(url: ObjectUrl) -> StoreWriteError:
    """Return the error for an answer that no store gives, such as a page of a store's web console."""
    return StoreWriteError(f"{url}: expected a store that answers as S3 does, got another server; {WRONG_SERVER}")


def _describe_answer(
    url: ObjectUrl,
    error: Any,  # noqa: ANN401 - botocore's ClientError
    expected: Collection[str],
) -> tuple[StoreWriteError, Outlook]:
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    said = f"{status} {code}".strip() if code != str(status) else code
    outlook: Outlook = "final"
    if code in expected:
        failure = StoreWriteError(f"{url}: cannot be written ({said})")
    elif status >= 500 or status in {408, 429} or code in _PASSING_CODES:
        if status == 501:
            msg = f"{url}: cannot be written ({said}); this store lacks what a build needs, write to another one"
            failure = StoreWriteError(msg)
        else:
            failure = StoreWriteError(
                f"{url}: cannot be written (the store answers with {said}, again and again); run the same command "
                f"again later: it continues"
            )
            failure.transient = True
            outlook = "slower" if status in {429, 503} or code in _SLOWER_CODES else "passing"
    elif status in {301, 307} or code in REGION_CODES:
        region = url.access.region
        got = "the default one" if region is None else repr(region)
        msg = f"{url}: expected the region of the bucket, got {got}; name it with --region"
        failure = StoreWriteError(msg)
    else:
        remedy = NODE_REMEDIES.get(code) or (
            "check what this node's credentials may write" if status in {401, 403} else "check the address"
        )
        failure = StoreWriteError(f"{url}: cannot be written ({said}); {remedy}")
    failure.code = code
    return failure, outlook
