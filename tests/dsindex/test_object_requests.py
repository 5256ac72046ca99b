"""Requests that are made again: one loop and one gate for those that read and those that write."""

import pytest

pytest.importorskip("boto3")
pytest.importorskip("obstore")

from botocore.exceptions import ConnectionClosedError, EndpointConnectionError

from dsindex.store.clients import StoreWriteError, persist
from dsindex.store.requests import MOST_REQUESTS, Backoff, gate_of
from dsindex.store.stores import get_range
from dsindex.store.urls import Access, parse_url
from dsindex.store.writing import put_object
from tests.support.object_server import ACCESS_KEY, SECRET_KEY, Fault, serving_objects

QUICK = Backoff(attempts=6, first_pause=0.0, unreachable_attempts=2)
UNREACHABLE = EndpointConnectionError(endpoint_url="http://a")
BROKEN = ConnectionClosedError(endpoint_url="http://a")


def failing(*errors):
    """Return a request that fails so, and then is answered."""
    left = list(errors)

    def request():
        if left:
            raise left.pop(0)
        return "answered"

    return request


def test_only_a_server_that_stays_unreachable_is_given_up_early():
    url = parse_url("s3://b/k")
    errors = (UNREACHABLE, BROKEN, UNREACHABLE, BROKEN, UNREACHABLE)
    assert persist(url, failing(*errors), backoff=QUICK) == "answered"
    with pytest.raises(StoreWriteError, match="the server cannot be reached") as failed:
        persist(url, failing(BROKEN, UNREACHABLE, UNREACHABLE), backoff=QUICK)
    assert failed.value.transient


def test_throttled_reads_and_writes_count_together(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    with serving_objects(buckets={"b"}) as store:
        url = parse_url("s3://b/k", Access(endpoint_url=store.url))
        store.faults += [Fault(kind="503", operation="PutObject"), Fault(kind="503", operation="GetObject")]
        put_object(url, b"content")
        assert bytes(get_range(url, 0, 7)[0]) == b"content"
        assert gate_of(url).limit == MOST_REQUESTS // 4
