"""The server of objects as Google Cloud Storage's XML interface, with the metadata server of a node beside it.

What it imitates of Google's documentation ("Request preconditions", "HTTP headers and query string parameters",
"Delete multiple objects", "HTTP status and error codes" of the XML API):

- A request carries `Authorization: Bearer TOKEN`, with the token that the metadata server or the server of tokens
  gives, or one that a service account has signed itself; without one it is answered by 403, with another one by 401.
- A version of an object is its generation, told by `x-goog-generation`; `x-goog-if-generation-match` is the condition
  of a PUT, 0 for an object that must not exist; 412 PreconditionFailed otherwise.
- `If-Match` and `If-None-Match` are conditions of reading; a write ignores them here.
- Requests of multipart uploads with a condition are refused by 400 NotImplemented.
- Metadata is `x-goog-meta-…`. A request with `x-amz-…` is refused here, although Google knows some of them.
- An ETag of an object that an upload in parts made is no MD5.
- A PUT or POST without Content-Length is refused by 411.
- Of an object that is absent, DELETE is answered by 404, and the deletion of many by an error of its own.

The rest is the S3 server's. No answer of Google's own server was compared with it.
"""

from __future__ import annotations

import contextlib
import functools
import json
from dataclasses import dataclass
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth import jwt

from tests.support.object_server import Handler, serving_objects
from tests.support.object_server_rules import Refusal
from tests.support.object_server_state import ObjectServer
from tests.support.object_server_writes import parse

TOKEN = "planted-token-b71c"
CONDITION = "x-goog-if-generation-match"
TOKENS = "/computeMetadata/v1/instance/service-accounts/"
SUBJECT = "planted-subject-90fe"
"""What another cloud has signed, for workload identity federation."""
ACCOUNT = "node@project.iam.gserviceaccount.com"
_IN_PARTS = {"CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload", "AbortMultipartUpload"}


def generation_of(stored):
    """Return an object's generation, in microseconds as Google's seem to be; 0 if there is none."""
    return 0 if stored is None else int(stored.modified * 1e6)


@dataclass(slots=True, kw_only=True)
class GoogleServer(ObjectServer):
    """The objects, and what was asked for."""

    has_account: bool = True
    """Whether the metadata server gives tokens."""
    token_requests: int = 0

    def check(self, name, conditions):
        current = self.find(name) if name in self.objects else None
        if conditions.if_match not in {None, str(generation_of(current))}:
            raise Refusal(412, "PreconditionFailed")


class GoogleHandler(Handler):
    """Answers as Google Cloud Storage does, from what a GoogleServer keeps."""

    store: GoogleServer

    def carry_out(self):
        if self.headers.get("Metadata-Flavor") == "Google":
            return self.answer_metadata()
        if self.path == "/token":
            return self.answer_assertion()
        return super().carry_out()

    def answer_metadata(self):
        """Answer as the metadata server of a virtual machine."""
        headers = {"Metadata-Flavor": "Google", "Content-Type": "application/json"}
        if self.path == "/":
            return self.answer(200, headers=headers)
        if not self.path.startswith(TOKENS) or not self.store.has_account:
            return self.answer(404, headers=headers)
        answer = {"email": "node@project", "scopes": ["devstorage"], "aliases": ["default"]}
        if "/token" in self.path:
            self.store.token_requests += 1
            answer = {"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"}
        return self.answer(200, json.dumps(answer).encode(), headers)

    def answer_assertion(self):
        """Answer as the server at which service accounts, and what other clouds have signed, get tokens."""
        told = parse_qs(self.receive_text().decode())
        self.store.token_requests += 1
        is_known = told.get("subject_token") == [SUBJECT] or is_signed(told.get("assertion", [""])[0])
        if not self.store.has_account or not is_known:
            return self.answer(400, b'{"error": "invalid_grant"}', {"Content-Type": "application/json"})
        answer = {"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"}
        answer["issued_token_type"] = "urn:ietf:params:oauth:token-type:access_token"
        return self.answer(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def check_access(self):
        bucket = self.name.split("/")[0]
        told = self.headers.get("Authorization")
        if told is None and bucket not in self.store.public:
            raise Refusal(403, "AccessDenied")
        if told not in {None, f"Bearer {TOKEN}"} and not is_signed(str(told).removeprefix("Bearer ")):
            raise Refusal(401, "AuthenticationRequired")
        if any(name.lower().startswith("x-amz-") for name in self.headers):
            raise Refusal(400, "InvalidArgument")
        if self.command in {"PUT", "POST"} and "Content-Length" not in self.headers:
            raise Refusal(411, "MissingContentLength")
        if not self.store.has_bucket(bucket):
            raise Refusal(404, "NoSuchBucket")

    def answer_operation(self):
        condition = self.headers.get(CONDITION)
        if condition is not None and self.operation in _IN_PARTS:
            raise Refusal(400, "NotImplemented")
        if self.command not in {"GET", "HEAD"}:
            del self.headers["If-None-Match"], self.headers["If-Match"]
            if condition is not None:
                self.headers["If-Match"] = condition
        for name, value in list(self.headers.items()):  # kept under S3's names
            if name.lower().startswith("x-goog-meta-"):
                self.headers[f"x-amz-meta-{name.lower().removeprefix('x-goog-meta-')}"] = value
        if self.operation == "DeleteObjects":
            return self.delete_objects()
        if self.operation == "DeleteObject":
            self.store.find(self.name)
        return super().answer_operation()

    def delete_objects(self):
        """Answer the deletion of many objects."""
        bucket, shown = self.name.partition("/")[0], ""
        for entry in parse(self.receive_text(), "Object"):
            name, key = f"{bucket}/{entry['Key']}", escape(entry["Key"])
            is_there = name in self.store.objects
            self.store.remove(name)
            if not is_there:
                shown += f"<Error><Key>{key}</Key><Code>NoSuchKey</Code></Error>"
        self.done()
        self.answer_xml("DeleteResult", shown)

    def describe(self, stored):
        etag = stored.etag if len(stored.pieces) == 1 else f'"{generation_of(stored):x}"'
        return {"ETag": etag, "x-goog-generation": str(generation_of(stored)), "x-goog-metageneration": "1"}

    def begin_answer(self, status, size, headers):
        told = {name.replace("x-amz-meta-", "x-goog-meta-"): value for name, value in (headers or {}).items()}
        return super().begin_answer(status, size, told)


@functools.cache
def account_key():
    """Return the private key of the service account, and the public one, as PEM."""
    key = rsa.generate_private_key(65537, 2048)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return private.decode(), public


def is_signed(token):
    """Return whether the service account has signed a token."""
    try:
        return jwt.decode(token, certs=account_key()[1])["iss"] == ACCOUNT
    except ValueError:
        return False


def describe_account(store):
    """Return the content of the file of the service account."""
    described = {"type": "service_account", "client_email": ACCOUNT, "private_key": account_key()[0]}
    return {**described, "private_key_id": "1", "token_uri": f"{store.url}/token"}


@contextlib.contextmanager
def serving_google(patched, folder, *, account=True, **content):
    """Serve while the block runs, and let this process use it.

    Args:
        patched: Sets the environment, in which there are no credentials of AWS.
        folder: Gets the file of the service account; there are no other credentials.
        account: Whether it is the service account that is used, or the account of the metadata server, which
            google-auth looks for once in a process.
        content: As for ObjectServer.
    """
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_PROFILE"):
        patched.delenv(name, raising=False)
    with serving_objects(handler=GoogleHandler, kind=GoogleServer, min_part_bytes=1, **content) as store:
        file = folder / "account.json"
        file.write_text(json.dumps(describe_account(store)))
        address = store.url.removeprefix("http://")
        variables = {"GOOGLE_BASE_URL": store.url, "GOOGLE_ALLOW_HTTP": "true", "CLOUDSDK_CONFIG": str(folder)}
        variables |= {"GCE_METADATA_HOST": address, "GCE_METADATA_IP": address}
        if account:
            variables["GOOGLE_APPLICATION_CREDENTIALS"] = str(file)
        for name, value in variables.items():
            patched.setenv(name, value)
        assert isinstance(store, GoogleServer)
        yield store
