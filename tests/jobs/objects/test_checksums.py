"""By what a store checks content: CRC-32 where it does, MD5 where it does not know it."""

import pytest

pytest.importorskip("boto3")
pytest.importorskip("obstore")

from dsindex.errors import OutputError
from tests.jobs.objects.object_builds import build, built, on_disk
from tests.support.object_server import Fault

KINDS = ["checked", "ignored", "refused"]


@pytest.fixture(params=KINDS)
def kind(request, store):
    store.crc32 = request.param
    return str(request.param)


@pytest.fixture
def checked_by(monkeypatch):
    """Operation and checksums of each request with content that a build sends."""
    from botocore.httpsession import URLLib3Session

    sent = []
    send = URLLib3Session.send
    names = {"x-amz-checksum-crc32": "crc32", "Content-MD5": "md5"}

    def watched(self, request):
        headers, method, url = request.headers, request.method, request.url  # type: ignore[attr-defined]
        if method == "PUT":
            sums = frozenset(short for name, short in names.items() if name in headers)
            sent.append(("UploadPart" if "partNumber=" in url else "PutObject", sums))
        return send(self, request)

    monkeypatch.setattr(URLLib3Session, "send", watched)
    return sent


@pytest.mark.quick(1)
@pytest.mark.usefixtures("small_ranges")
def test_content_is_checked_by_what_the_store_knows(kind, store, text, tmp_path, checked_by):
    build(text, "s3://out/x")
    build(text, str(tmp_path / "x"))
    assert built(store, "out/x") == on_disk(tmp_path / "x")
    assert checked_by[0] == ("PutObject", {"crc32", "md5"})  # nothing is known yet
    later = {"checked": {"crc32"}, "ignored": {"md5"}, "refused": {"md5"}}[kind]
    assert {sums for _, sums in checked_by[1:]} == {frozenset(later)}
    assert {operation for operation, _ in checked_by[1:]} == {"PutObject", "UploadPart"}


@pytest.mark.quick(1)
@pytest.mark.usefixtures("small_ranges", "kind")
def test_damaged_content_is_sent_again(store, text, tmp_path):
    store.faults += [Fault(kind="corrupt", operation=name, times=3) for name in ("UploadPart", "PutObject")]
    build(text, "s3://out/x")
    build(text, str(tmp_path / "x"))
    assert (store.faults_taken["UploadPart corrupt"], store.faults_taken["PutObject corrupt"]) == (3, 3)
    assert built(store, "out/x") == on_disk(tmp_path / "x")


@pytest.mark.quick(1)
@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("first", ["checked", "ignored"])
def test_upload_goes_on_as_it_was_begun(first, store, text, tmp_path):
    """The ledger says by what parts are checked: all of an upload are by the same, also if the store knows more now."""
    store.crc32 = first
    store.faults.append(Fault(kind="403", code="AccessDenied", operation="UploadPart", after=3, times=99))
    with pytest.raises(OutputError, match="AccessDenied"):
        build(text, "s3://out/x", workers=1)
    store.faults.clear()
    assert store.uploads
    store.crc32 = "checked"
    begun = store.operations["CreateMultipartUpload"]
    build(text, "s3://out/x", workers=1)
    build(text, str(tmp_path / "x"))
    assert built(store, "out/x") == on_disk(tmp_path / "x")
    assert store.operations["CreateMultipartUpload"] - begun == 2  # the index and the provenance
