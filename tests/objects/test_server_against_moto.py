"""The tests' own server of objects does what moto's does, in any sequence of calls."""

import contextlib
import random

import pytest

pytest.importorskip("boto3")
pytest.importorskip("moto.server", reason="moto and flask are not installed (the extra dev has them)")

from botocore.exceptions import ResponseStreamingError

from tests.objects.calls import BUCKET, MIN_PART_BYTES, Caller, Draw, new_client
from tests.support.object_proxy import serving_before, serving_moto
from tests.support.object_server import Fault, serving_objects

STEPS = 80
CONTENT = b"text" * 100_000


@pytest.fixture(scope="module")
def moto():
    from moto.s3 import models

    with pytest.MonkeyPatch.context() as patch, serving_moto() as url:
        patch.setattr(models, "S3_UPLOAD_PART_MIN_SIZE", MIN_PART_BYTES)
        yield url


@pytest.mark.parametrize("seed", range(6))
def test_same_calls_have_the_same_answers(moto, seed):
    bucket = f"{BUCKET}-{seed}"
    with serving_objects(min_part_bytes=MIN_PART_BYTES, remembers_completed=True, sums_of_parts=False) as store:
        checksums = ("when_required", "when_supported")[seed % 2]
        callers = [Caller(client=new_client(url, checksums=checksums), bucket=bucket) for url in (moto, store.url)]
        for caller in callers:
            caller.client.create_bucket(Bucket=bucket)
        draw = Draw(chosen=random.Random(seed))
        for step in range(STEPS):
            name, arguments = draw.next()
            theirs, ours = (caller.call(name, **arguments) for caller in callers)
            assert ours == theirs, (step, name, arguments)
            draw.note(name, arguments, ours)


@pytest.mark.parametrize(("name", "arguments"), [
    ("get_object", {"Key": "gone"}),
    ("head_object", {"Key": "gone"}),
    ("delete_object", {"Key": "gone"}),
    ("list_objects_v2", {"Bucket": "no-such-bucket"}),
    ("get_object", {"Key": "a", "Bucket": "no-such-bucket"}),
    ("put_object", {"Key": "a", "Body": b"", "Bucket": "no-such-bucket"}),
    ("put_object", {"Key": "a", "Body": b"", "IfMatch": "*"}),
    ("create_multipart_upload", {"Key": "a", "Bucket": "no-such-bucket"}),
    ("abort_multipart_upload", {"Key": "a", "UploadId": "none"}),
    ("list_parts", {"Key": "a", "UploadId": "none"}),
])  # fmt: skip
def test_same_calls_have_the_same_refusals(moto, name, arguments):
    with serving_objects(buckets={BUCKET}) as store:
        callers = [Caller(client=new_client(url)) for url in (moto, store.url)]
        callers[0].client.create_bucket(Bucket=BUCKET)
        theirs, ours = (caller.call(name, **arguments) for caller in callers)
        assert ours == theirs


@pytest.mark.parametrize("kind", ["503", "reset", "lost", "truncate"])
def test_proxy_fails_before_moto_and_clients_that_ask_again_succeed(moto, kind):
    bucket = f"{BUCKET}-{kind}"
    with serving_before(moto, bucket) as proxy:
        client = new_client(proxy.url, attempts=4)
        client.create_bucket(Bucket=bucket)
        proxy.faults = [Fault(kind=kind, operation=name) for name in ("PutObject", "UploadPart", "GetObject")]
        client.put_object(Bucket=bucket, Key="a b", Body=CONTENT, Metadata={"x": "1"})
        upload = client.create_multipart_upload(Bucket=bucket, Key="c")["UploadId"]
        part = {"PartNumber": 1}
        part |= {"ETag": client.upload_part(Bucket=bucket, Key="c", UploadId=upload, **part, Body=CONTENT)["ETag"]}
        client.complete_multipart_upload(Bucket=bucket, Key="c", UploadId=upload, MultipartUpload={"Parts": [part]})
        assert proxy.operations["UploadPart"] == proxy.operations["PutObject"] == 1 + (kind != "truncate")
        with contextlib.suppress(ResponseStreamingError):  # boto3 does not ask again for the rest of an answer
            client.get_object(Bucket=bucket, Key="a b")["Body"].read()
        for key in ("a b", "c"):
            assert client.get_object(Bucket=bucket, Key=key)["Body"].read() == CONTENT
        assert client.head_object(Bucket=bucket, Key="a b")["Metadata"] == {"x": "1"}
