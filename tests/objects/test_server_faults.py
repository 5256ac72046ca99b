"""What the tests' own server of objects does wrong when it is told to, and S3's rules that moto does not have."""

import random
import signal
import subprocess
import sys
import threading

import pytest

pytest.importorskip("boto3")

from botocore.exceptions import BotoCoreError, ClientError

from tests.objects.calls import BUCKET, Caller, new_client
from tests.support.golden import ROOT
from tests.support.object_server import Fault, RandomFaults, serving_objects

CONTENT = random.Random(5).randbytes(3_000_000)


@pytest.fixture
def store():
    with serving_objects(buckets={BUCKET}, min_part_bytes=300) as server:
        yield server


@pytest.fixture
def caller(store):
    return Caller(client=new_client(store.url))


def refusal(caller, name, **arguments):
    answer = caller.call(name, **arguments)
    assert answer["status"] >= 300
    return f"{answer['status']} {answer['code']}"


@pytest.mark.parametrize("name", ["PutObject", "UploadPart", "CompleteMultipartUpload", "CreateMultipartUpload"])
@pytest.mark.parametrize(("kind", "is_done"), [("lost", True), ("reset", False), ("503", False), ("200", False)])
def test_faults_of_writes_are_before_or_after_the_work(store, caller, name, kind, is_done):
    caller.call("create_multipart_upload", Key="m")
    caller.call("upload_part", Key="m", upload=0, PartNumber=1, Body=CONTENT)
    etag = caller.client.list_parts(Bucket=BUCKET, Key="m", UploadId=caller.uploads[0])["Parts"][0]["ETag"]
    calls = {
        "PutObject": ("put_object", {"Key": "p", "Body": CONTENT}),
        "UploadPart": ("upload_part", {"Key": "m", "upload": 0, "PartNumber": 2, "Body": CONTENT}),
        "CreateMultipartUpload": ("create_multipart_upload", {"Key": "m"}),
        "CompleteMultipartUpload": (
            "complete_multipart_upload",
            {"Key": "m", "upload": 0, "MultipartUpload": {"Parts": [{"PartNumber": 1, "ETag": etag}]}},
        ),
    }
    before = (sorted(store.objects), {name: sorted(upload.parts) for name, upload in store.uploads.items()})
    store.faults = [Fault(kind=kind, operation=name, code="InternalError")]
    function, arguments = calls[name]
    try:
        answer = caller.call(function, **arguments)
    except BotoCoreError:
        answer = {"status": 0}
    assert answer["status"] in {"lost": {0}, "reset": {0}, "503": {503}, "200": {200, 500}}[kind]
    after = (sorted(store.objects), {name: sorted(upload.parts) for name, upload in store.uploads.items()})
    assert (after != before) == is_done
    assert store.faults_taken == {f"{name} {kind}": 1}


@pytest.mark.parametrize("checksums", ["when_required", "when_supported"])
def test_content_that_changed_on_the_way_is_refused(store, checksums):
    caller = Caller(client=new_client(store.url, checksums=checksums))
    store.faults = [Fault(kind="corrupt", operation="PutObject")]
    code = "BadDigest" if checksums == "when_supported" else "XAmzContentSHA256Mismatch"
    assert refusal(caller, "put_object", Key="a", Body=CONTENT) == f"400 {code}"
    assert not store.objects
    wrong = {"Key": "a", "Body": b"b", "ContentMD5": "AAAAAAAAAAAAAAAAAAAAAA=="}
    assert refusal(caller, "put_object", **wrong) == "400 BadDigest"
    assert caller.call("put_object", Key="a", Body=CONTENT)["status"] == 200
    assert store.content(f"{BUCKET}/a") == CONTENT


@pytest.mark.parametrize("kind", ["slow", "hang"])
def test_slow_content_is_whole(store, caller, kind):
    store.faults = [Fault(kind=kind, operation=name, seconds=0.01) for name in ("PutObject", "GetObject")]
    caller.call("put_object", Key="a", Body=CONTENT)
    assert caller.call("get_object", Key="a")["content"] == CONTENT
    assert not any(fault.times for fault in store.faults)


def test_requests_to_parts_of_gone_uploads_are_refused(caller):
    caller.call("create_multipart_upload", Key="m")
    assert refusal(caller, "upload_part", Key="n", upload=0, PartNumber=1, Body=b"") == "404 NoSuchUpload"
    assert refusal(caller, "upload_part", Key="m", upload=0, PartNumber=10_001, Body=b"") == "400 InvalidArgument"
    caller.call("abort_multipart_upload", Key="m", upload=0)
    assert refusal(caller, "upload_part", Key="m", upload=0, PartNumber=1, Body=b"") == "404 NoSuchUpload"


@pytest.mark.parametrize("remembers", [False, True])
def test_uploads_are_completed_once(store, caller, remembers):
    store.remembers_completed = remembers
    caller.call("create_multipart_upload", Key="m")
    etag = caller.call("upload_part", Key="m", upload=0, PartNumber=4, Body=b"x")["ETag"]
    wanted = {"Key": "m", "upload": 0, "MultipartUpload": {"Parts": [{"PartNumber": 4, "ETag": etag}]}}
    first = caller.call("complete_multipart_upload", **wanted)
    assert first["ETag"].endswith('-1"')
    again = caller.call("complete_multipart_upload", **wanted)
    assert again == (first if remembers else {"status": 404, "code": "NoSuchUpload"})


def test_parts_of_other_sizes_are_refused_where_all_are_equal(store, caller):
    store.equal_parts = True
    caller.call("create_multipart_upload", Key="m")
    sizes = {1: 400, 2: 400, 3: 401, 4: 10}
    parts = [
        {"PartNumber": n, "ETag": caller.call("upload_part", Key="m", upload=0, PartNumber=n, Body=bytes(size))["ETag"]}
        for n, size in sizes.items()
    ]
    wrong = {"Key": "m", "upload": 0, "MultipartUpload": {"Parts": parts}}
    assert refusal(caller, "complete_multipart_upload", **wrong) == "400 InvalidPart"
    right = {"Key": "m", "upload": 0, "MultipartUpload": {"Parts": [*parts[:2], parts[3]]}}
    assert caller.call("complete_multipart_upload", **right)["status"] == 200


def test_one_of_many_writers_puts_an_object_that_must_be_new(store):
    answers = []

    def write(number):
        client = Caller(client=new_client(store.url))
        answers.append((client.call("put_object", Key="lock", Body=b"%d" % number * 1000, IfNoneMatch="*"), number))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [number for answer, number in answers if answer["status"] == 200]
    assert [answer["code"] for answer, _ in answers if answer["status"] != 200] == ["PreconditionFailed"] * 7
    assert store.content(f"{BUCKET}/lock") == b"%d" % winners[0] * 1000


def test_object_that_goes_away_while_it_is_written_is_a_conflict(store, caller):
    caller.call("put_object", Key="a", Body=b"1")

    def remove(moment, operation, _):
        if (moment, operation) == ("reading", "PutObject"):
            store.remove(f"{BUCKET}/a")

    store.watch = remove
    answer = refusal(caller, "put_object", Key="a", Body=b"2", IfMatch="current")
    assert answer == "409 ConditionalRequestConflict"


def test_lists_of_uploads_and_parts_have_pages(store, caller):
    store.page_size = 2
    for key in ("b/1", "b/2", "b/2", "b/3 é", "c"):
        caller.call("create_multipart_upload", Key=key)
    for number in (1, 3, 5):
        caller.call("upload_part", Key="b/1", upload=0, PartNumber=number, Body=b"x" * number)
    pages = caller.client.get_paginator("list_multipart_uploads").paginate(Bucket=BUCKET, Prefix="b/")
    assert [upload["Key"] for page in pages for upload in page["Uploads"]] == ["b/1", "b/2", "b/2", "b/3 é"]
    pages = caller.client.get_paginator("list_parts").paginate(Bucket=BUCKET, Key="b/1", UploadId=caller.uploads[0])
    assert [(part["PartNumber"], part["Size"]) for page in pages for part in page["Parts"]] == [(1, 1), (3, 3), (5, 5)]


def test_requests_for_another_region_are_refused_with_the_right_one(store, caller):
    store.region = "eu-west-1"
    assert caller.call("put_object", Key="a", Body=b"1")["status"] == 200  # boto3 learns the region and asks again
    assert store.operations["PutObject"] >= 2


@pytest.mark.parametrize(
    ("status", "code"), [("403", "AccessDenied"), ("403", "RequestTimeTooSkewed"), ("404", "NoSuchBucket")]
)
def test_refusals_have_the_names_that_they_are_told(store, caller, status, code):
    store.faults = [Fault(kind=status, code=code, operation="CreateMultipartUpload", after=1, times=2)]
    assert caller.call("create_multipart_upload", Key="m")["status"] == 200
    for _ in range(2):
        assert refusal(caller, "create_multipart_upload", Key="m") == f"{status} {code}"
    assert caller.call("create_multipart_upload", Key="m")["status"] == 200


def test_random_faults_are_the_same_for_the_same_seed_and_pass():
    taken = []
    for seed in (1, 1, 2):
        faults = RandomFaults(seed=seed, rate=0.5)
        with serving_objects(buckets={BUCKET}, min_part_bytes=300, random_faults=faults) as store:
            client = new_client(store.url)
            for number in range(12):
                for _ in range(3):
                    try:
                        client.put_object(Bucket=BUCKET, Key=f"k{number}", Body=CONTENT[:1000])
                        break
                    except (BotoCoreError, ClientError):
                        continue
            assert [store.content(f"{BUCKET}/k{number}") for number in range(12)] == [CONTENT[:1000]] * 12
            taken.append(store.faults_taken)
    assert taken[0] == taken[1] != taken[2]
    assert taken[0].total() > 3


def test_program_keeps_what_is_put_in_files(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_bytes(b"text")
    command = [sys.executable, "-m", "tests.support.object_server", "--folder", str(tmp_path), "--bucket", BUCKET]
    with subprocess.Popen([*command, "--min-part-bytes", "300"], cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            caller = Caller(client=new_client(server.stdout.readline().strip()))
            assert int(server.stdout.readline()) == server.pid
            assert caller.call("get_object", Key="a.txt", Bucket="in")["content"] == b"text"
            caller.call("create_multipart_upload", Key="m")
            parts = [
                {
                    "PartNumber": n,
                    "ETag": caller.call("upload_part", Key="m", upload=0, PartNumber=n, Body=body)["ETag"],
                }
                for n, body in enumerate([CONTENT[:1_500_000], CONTENT[1_500_000:], b"more"], 1)
            ]
            kept = {path.read_bytes() for path in tmp_path.rglob("*.piece")}
            assert kept == {CONTENT[:1_500_000], CONTENT[1_500_000:], b"more"}
            wanted = {"Key": "m", "upload": 0, "MultipartUpload": {"Parts": parts[:2]}}
            assert caller.call("complete_multipart_upload", **wanted)["status"] == 200
            assert caller.call("get_object", Key="m")["content"] == CONTENT
            asked = caller.call("get_object", Key="m", Range="bytes=1499998-1500001")
            assert asked["content"] == CONTENT[1_499_998:1_500_002]
            caller.call("delete_object", Key="m")
            assert not list(tmp_path.rglob("*.piece"))
        finally:
            server.send_signal(signal.SIGTERM)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
