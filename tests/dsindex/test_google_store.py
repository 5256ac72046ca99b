"""Conditions, metadata and versions in Google's words."""

import pytest

pytest.importorskip("boto3")
pytest.importorskip("obstore")
pytest.importorskip("google.auth")

from dsindex.store.clients import Blocks, checksum_arguments
from dsindex.store.stores import get_range
from dsindex.store.uploads import begin_upload, complete_upload, is_completed, list_uploads, write_part
from dsindex.store.urls import parse_url
from dsindex.store.writing import (
    find_object,
    list_objects,
    put_if_absent,
    put_if_same,
    put_object,
    read_object,
    remove_objects,
)
from tests.support.google_server import generation_of, serving_google
from tests.support.object_server import Fault

URL = parse_url("gs://b/k")


@pytest.fixture
def store(monkeypatch, tmp_path):
    with serving_google(monkeypatch, tmp_path, buckets={"b"}) as server:
        yield server


def test_conditions_compare_generations(store):
    first = put_if_absent(URL, b"one")
    assert first == f'"{generation_of(store.find("b/k"))}"'
    assert put_if_absent(URL, b"two") is None
    found = find_object(URL)
    assert (found.etag, found.size_bytes, found.tag) == (first, 3, None)
    second = put_if_same(URL, b"three", found.etag)
    assert second not in {None, first}
    assert put_if_same(URL, b"four", found.etag) is None
    read = read_object(URL)
    assert (read[0], read[1].etag) == (b"three", second)
    remove_objects([URL, URL.with_key("never")])
    assert put_if_same(URL, b"five", str(second)) is None
    assert list_objects(parse_url("gs://b/k")) == []


def test_condition_that_was_met_before_its_answer_was_lost_is_met(store):
    store.faults.append(Fault(kind="lost", operation="PutObject"))
    assert put_if_absent(URL, b"one") == f'"{generation_of(store.find("b/k"))}"'


def test_tag_tells_whose_object_it_is(store):
    upload = begin_upload(URL)
    put_object(URL, b"mine", tag="another")
    for number, content in ((2, b"b"), (1, b"aaa")):
        part = Blocks.of(content)
        write_part(upload, number, part, checked=checksum_arguments(upload.checksum, part))
    assert list_uploads(URL) == [upload.upload_id]
    assert not is_completed(upload)
    store.faults.append(Fault(kind="lost", operation="CompleteMultipartUpload"))
    complete_upload(upload, size_bytes=4)
    complete_upload(upload, size_bytes=4)
    assert is_completed(upload)
    assert bytes(get_range(URL, 0, 4)[0]) == b"aaab"
