"""An answer that is cut off in the middle is asked for again, also where no more than so many bytes are wanted."""

import pytest

pytest.importorskip("boto3")

from dsindex.store.urls import Access, parse_url
from dsindex.store.writing import read_object
from tests.support.object_server import ACCESS_KEY, SECRET_KEY, Fault, serving_objects


@pytest.mark.parametrize("most_bytes", [None, 50, 100, 5_000])
def test_small_object_is_read_whole_or_again(most_bytes, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    content = bytes(range(100))
    with serving_objects(objects={"b/marker.json": content}) as store:
        store.faults.append(Fault(kind="truncate", operation="GetObject"))
        url = parse_url("s3://b/marker.json", Access(endpoint_url=store.url))
        found = read_object(url, most_bytes=most_bytes)
    assert found[0] == content[:most_bytes]
    assert (found[1].size_bytes, found[1].tag) == (100, None)
