"""Sequences of S3 calls, drawn by a seed, and what each answers in words that are the same for all servers."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.support.object_server import ACCESS_KEY, SECRET_KEY

if TYPE_CHECKING:
    import random

BUCKET = "bucket"
KEYS = ("a", "a/b", "a/b c", "d/é#%+&<.bin", "d/e/f", "x~*'()!")
MIN_PART_BYTES = 300
COMPARED = (
    *("ETag", "ContentLength", "ContentType", "ContentRange", "Metadata", "KeyCount", "IsTruncated", "Key", "Prefix"),
    *("Size", "PartNumber", "Deleted", "Errors", "Contents", "CommonPrefixes", "Parts", "Uploads", "Bucket", "Code"),
)


def new_client(url, *, checksums="when_required", attempts=1):
    """Return boto3's client of a server."""
    return boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        config=Config(
            retries={"total_max_attempts": attempts},
            s3={"addressing_style": "path"},
            request_checksum_calculation=checksums,
            response_checksum_validation="when_required",
        ),
    )


@dataclass(slots=True, kw_only=True)
class Caller:
    """Makes calls of one server; what differs from server to server, as ids, has a number."""

    client: Any
    bucket: str = BUCKET
    uploads: list[str] = field(default_factory=list)
    etags: dict[str, str] = field(default_factory=dict)
    """Of the last version of a key that this caller put."""

    def call(self, name, **arguments):
        """Return what a call answers, or its refusal: the same for servers that do the same."""
        arguments.setdefault("Bucket", self.bucket)
        if "upload" in arguments:
            arguments["UploadId"] = self.uploads[arguments.pop("upload")]
        if arguments.get("IfMatch") == "current":
            arguments["IfMatch"] = self.etags.get(arguments["Key"], '"none"')
        try:
            answer = getattr(self.client, name)(**arguments)
        except ClientError as error:
            # An answer to HEAD has no content, and so no code.
            status = error.response["ResponseMetadata"]["HTTPStatusCode"]
            return {"status": status, "code": "" if name == "head_object" else error.response["Error"]["Code"]}
        if name == "create_multipart_upload":
            self.uploads.append(answer["UploadId"])
        if name in {"put_object", "complete_multipart_upload"}:
            self.etags[arguments["Key"]] = answer["ETag"]
        shown = compared(answer)
        if "Uploads" in shown:
            shown["Uploads"].sort(key=lambda upload: upload["Key"])  # moto has them in the order of their beginning
        if "Body" in answer:
            shown["content"] = answer["Body"].read()
        return {"status": answer["ResponseMetadata"]["HTTPStatusCode"], **shown}


def compared(answer):
    """Return the fields of an answer that are the same on all servers."""
    if isinstance(answer, dict):
        found = {name: compared(value) for name, value in answer.items() if name in COMPARED}
        return found if "UploadId" not in answer else {name: value for name, value in found.items() if name != "Parts"}
    return [compared(value) for value in answer] if isinstance(answer, list) else answer


@dataclass(slots=True, kw_only=True)
class Draw:
    """What comes next in a sequence of calls."""

    chosen: random.Random
    keys: list[str] = field(default_factory=list)
    """Those of all uploads that were begun."""
    parts: dict[int, dict[int, bytes]] = field(default_factory=dict)
    """Content of the parts of each upload that is open: moto breaks on parts of others."""

    def next(self):
        """Return the name of a call and its arguments."""
        kinds = [self.put] * 6
        kinds += [self.get] * 3 + [self.delete, self.delete_many, self.list_objects, self.list_objects, self.create]
        if self.parts:
            kinds += [self.part] * 8 + [self.complete] * 4 + [self.abort, self.list_parts, self.list_uploads]
        return self.chosen.choice(kinds)()

    def note(self, name, arguments, answer):
        """Learn what became of a call."""
        if name in {"complete_multipart_upload", "abort_multipart_upload"} and answer["status"] < 300:
            del self.parts[arguments["upload"]]

    def content(self):
        return self.chosen.randbytes(self.chosen.choice([0, 1, 10, 299, 300, 301, 5_000]))

    def key(self):
        return self.chosen.choice(KEYS)

    def put(self):
        content = self.content()
        given = {"Key": self.key(), "Body": content}
        given |= self.chosen.choice(
            [
                {},
                {"IfNoneMatch": "*"},
                {"IfMatch": "current"},
                {"IfMatch": '"0123"'},
                {"Metadata": {"records": "17", "state": "whole"}, "ContentType": "application/json"},
                {"ContentMD5": base64.b64encode(hashlib.md5(content).digest()).decode()},
            ]
        )
        return "put_object", given

    def get(self):
        given = {"Key": self.key()}
        wanted = self.chosen.choice([None, "bytes=0-0", "bytes=3-", "bytes=5-250", "bytes=250-9000"])
        name = self.chosen.choice(["get_object", "head_object"])
        if wanted is not None and name == "get_object":
            given["Range"] = wanted
        if self.chosen.random() < 0.3:
            given["IfMatch"] = self.chosen.choice(["current", '"0123"'])
        return name, given

    def delete(self):
        return "delete_object", {"Key": self.key()}

    def delete_many(self):
        keys = sorted(self.chosen.sample(KEYS, 2))
        return "delete_objects", {"Delete": {"Objects": [{"Key": key} for key in keys]}}

    def list_objects(self):
        given = {"Prefix": self.chosen.choice(["", "a", "a/", "d/", "none"])}
        given |= self.chosen.choice([{}, {"Delimiter": "/"}, {"StartAfter": "a/b"}, {"MaxKeys": 2}])
        return "list_objects_v2", given

    def create(self):
        self.parts[len(self.keys)] = {}
        self.keys.append(self.key())
        return "create_multipart_upload", {"Key": self.keys[-1], "Metadata": {"plan": "ab12"}}

    def upload(self):
        number = self.chosen.choice([max(self.parts), *self.parts])
        return {"upload": number, "Key": self.keys[number]}

    def part(self):
        given = self.upload()
        number, content = self.chosen.choice([1, 1, 2, 2, 3, 7]), self.content()
        self.parts[given["upload"]][number] = content
        return "upload_part", {**given, "PartNumber": number, "Body": content}

    def complete(self):
        given = self.upload()
        uploaded = self.parts[given["upload"]]
        wanted = {number: hashlib.md5(content).hexdigest() for number, content in sorted(uploaded.items())}
        kind = self.chosen.choice(["all", "all", "all", "first", "wrong tag", "not there"])
        if kind == "first":
            wanted = dict(list(wanted.items())[:1])
        elif kind == "wrong tag":
            wanted = dict.fromkeys(wanted, "0" * 32)
        elif kind == "not there":
            wanted[9] = "0" * 32
        parts = [{"PartNumber": number, "ETag": f'"{digest}"'} for number, digest in wanted.items()]
        if kind == "all" and parts and self.chosen.random() < 0.4:
            given["IfNoneMatch"] = "*"
        return "complete_multipart_upload", {**given, "MultipartUpload": {"Parts": parts}}

    def abort(self):
        return "abort_multipart_upload", self.upload()

    def list_parts(self):
        return "list_parts", self.upload()

    def list_uploads(self):
        return "list_multipart_uploads", {"Prefix": self.chosen.choice(["", "a"])}
