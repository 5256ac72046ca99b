"""Google Cloud Storage by its XML interface, which is S3's but for conditions, metadata and credentials.

boto3 makes the requests, and each is translated on its way: conditions compare generations, not ETags
(`x-goog-if-generation-match`), metadata is `x-goog-meta-…`, no `x-amz-…` is sent, and the token of the node's
credentials takes the place of a signature. An answer's ETag becomes the object's generation, so that callers compare
versions as with S3.

Source: Google's documentation of the XML API, "HTTP headers and query string parameters" and "Request preconditions".
Requests of multipart uploads can have no conditions there; none of ours has.
"""

from __future__ import annotations

import json
import os
import threading
import warnings
from datetime import UTC
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from datetime import datetime

ENDPOINT = "https://storage.googleapis.com"
VARIABLES = ("GOOGLE_", "GCE_", "CLOUDSDK_")
"""Beginnings of the variables by which credentials and servers are found."""
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_META, _S3_META = "x-goog-meta-", "x-amz-meta-"
_CONDITION = "x-goog-if-generation-match"
_GENERATION = "x-goog-generation"
_DROPPED = ("x-amz-", "amz-sdk-", "expect")
_ACCOUNT_FILES, _ACCOUNT_KEY = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"), "GOOGLE_SERVICE_ACCOUNT_KEY"
_STORED_CREDENTIALS = "~/.config/gcloud/application_default_credentials.json"
_KINDS_OF_OBSTORE = ("service_account", "authorized_user")
_REMEDY = "run `gcloud auth application-default login`, or give the node a service account"


class CredentialsError(Exception):
    """This node has no credentials, or Google refuses them; says what to do."""


def find_endpoint() -> str:
    """Return the address of the server, which is Google's own unless GOOGLE_BASE_URL names another, as for readers.

    Raises:
        CredentialsError: If a token would be sent without encryption, and GOOGLE_ALLOW_HTTP does not allow it.
    """
    endpoint = os.environ.get("GOOGLE_BASE_URL") or ENDPOINT
    if not endpoint.startswith("https://") and not _is_set("GOOGLE_ALLOW_HTTP"):
        msg = "GOOGLE_BASE_URL has no https://"
        raise CredentialsError(msg, "name one with https://, or set GOOGLE_ALLOW_HTTP=true for a server of your own")
    return endpoint


def speak_google(client: Any) -> None:  # noqa: ANN401 - boto3's client
    """Let a client that signs nothing speak to Google Cloud Storage, with the credentials of this node.

    Raises:
        ImportError: If google-auth is not installed.
    """
    token = None if _is_set("GOOGLE_SKIP_SIGNATURE") else Token()

    def send(request: Any, **_: object) -> None:  # noqa: ANN401 - botocore's prepared request
        translate_request(request.headers)
        if token is not None:
            token.add_to(request.headers)

    def receive(response_dict: Any, **_: object) -> None:  # noqa: ANN401 - botocore's parts of an answer
        translate_answer(response_dict["headers"])

    client.meta.events.register("before-send.s3", send)
    client.meta.events.register("before-parse.s3", receive)


def translate_request(headers: MutableMapping[str, Any]) -> None:
    """Replace S3's headers of a request by Google's.

    >>> headers = {"If-Match": '"17"', "x-amz-meta-dsindex": "t", "amz-sdk-request": "attempt=1"}
    >>> translate_request(headers)
    >>> headers
    {'x-goog-if-generation-match': '17', 'x-goog-meta-dsindex': 't'}
    """
    for name in list(headers):
        lower, value = name.lower(), headers[name]
        if lower == "if-none-match":
            headers[_CONDITION] = "0"
        elif lower == "if-match":
            text = value.decode() if isinstance(value, bytes) else value  # as botocore has prepared it
            headers[_CONDITION] = text.strip('"')
        elif lower.startswith(_S3_META):
            headers[_META + lower.removeprefix(_S3_META)] = value
        elif not lower.startswith(_DROPPED):
            continue
        del headers[name]


def translate_answer(headers: MutableMapping[str, Any]) -> None:
    """Add S3's headers of an answer to Google's; the version of an object is its generation."""
    for name in list(headers):
        if name.lower().startswith(_META):
            headers[_S3_META + name.lower().removeprefix(_META)] = headers[name]
        elif name.lower() == _GENERATION:
            headers["ETag"] = f'"{headers[name]}"'


def token_for_readers() -> Token | None:
    """Return what gives readers the node's token; None where obstore finds the node's credentials itself.

    It knows service accounts, those of `gcloud auth application-default login`, and the metadata server, but neither
    impersonation nor workload identity federation.

    Raises:
        ImportError: If google-auth is not installed.
    """
    environment = os.environ
    if _is_set("GOOGLE_SKIP_SIGNATURE") or any(environment.get(name) for name in (*_ACCOUNT_FILES, _ACCOUNT_KEY)):
        return None
    path = environment.get("GOOGLE_APPLICATION_CREDENTIALS") or os.path.expanduser(_STORED_CREDENTIALS)
    try:
        with open(path, "rb") as file:
            kind = json.load(file).get("type")
    except (OSError, ValueError, AttributeError):
        return None  # obstore says what it thinks of it
    return None if kind in _KINDS_OF_OBSTORE else Token()


class Token:
    """The token that proves who this node is, renewed a few minutes before it ends."""

    def __init__(self) -> None:
        import google.auth
        import google.auth.transport.requests

        self._request = google.auth.transport.requests.Request()
        self._credentials: Any = None
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._unlock)

    def __call__(self) -> dict[str, Any]:
        """Return the token and when it ends, as obstore wants to know it.

        Raises:
            CredentialsError: If the node has no credentials, or they are refused.
            ConnectionError: If the server of tokens cannot be reached.
        """
        headers: dict[str, str] = {}
        expiry = self.add_to(headers)
        token = headers["authorization"].removeprefix("Bearer ")
        return {"token": token, "expires_at": None if expiry is None else expiry.replace(tzinfo=UTC)}

    def add_to(self, headers: MutableMapping[str, Any]) -> datetime | None:
        """Add the token to a request; return when it ends, in UTC.

        Raises:
            CredentialsError: If the node has no credentials, or they are refused.
            ConnectionError: If the server of tokens cannot be reached.
        """
        from google.auth import exceptions

        try:
            with self._lock:
                self._credentials = self._credentials or _find_credentials()
                if not self._credentials.valid:
                    self._credentials.refresh(self._request)
                self._credentials.apply(headers)
                expiry: datetime | None = self._credentials.expiry
        except (OSError, ValueError) as error:
            msg = "the credentials of this node cannot be read"
            raise CredentialsError(msg, "check the files that GOOGLE_… variables name") from error
        except exceptions.DefaultCredentialsError as error:
            raise CredentialsError("this node has no credentials", _REMEDY) from error
        except exceptions.GoogleAuthError as error:
            if isinstance(error, exceptions.TransportError) or error.retryable:
                raise ConnectionError("the server of tokens cannot be reached") from error
            raise CredentialsError("Google refuses the credentials of this node", _REMEDY) from error
        return expiry

    def _unlock(self) -> None:
        self._lock = threading.Lock()  # a thread may have held it while the process was forked


def _find_credentials() -> Any:  # noqa: ANN401 - google-auth's credentials
    """Find the node's credentials where readers find theirs, and where google-auth knows more places."""
    import google.auth
    from google.oauth2 import service_account

    environment = os.environ
    for name in _ACCOUNT_FILES:
        if environment.get(name):
            return service_account.Credentials.from_service_account_file(environment[name], scopes=[_SCOPE])
    key = environment.get(_ACCOUNT_KEY)
    if key:
        return service_account.Credentials.from_service_account_info(json.loads(key), scopes=[_SCOPE])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of credentials without a project, which a bucket does not need
        return google.auth.default(scopes=[_SCOPE])[0]


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "").lower() == "true"
