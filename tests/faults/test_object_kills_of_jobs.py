"""Jobs other than a plain build that work in a bucket: killed at drawn requests, they end with the same objects."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("boto3")
pytest.importorskip("obstore")

from tests.faults.object_kills import CHAT, KINDS, count_moments, kill_at, name_job, objects, write_texts
from tests.support.object_server import RandomFaults, serving_objects
from tests.support.published import published

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.faults.zygote import Ended

pytestmark = pytest.mark.timeout(1800)

SHORT, LONG = 4, 60
"""Points at which drivers of a kind of job are killed."""


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return write_texts(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def store(texts):
    with serving_objects(min_part_bytes=1, equal_parts=True, buckets={"out"}) as server:
        server.put("in", texts)
        yield server


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A kind of job."""

    name: str
    start: Callable[..., Ended]
    """Starts it with the prefix of its output and more flags, and waits for its end."""
    pid_file: Path
    """Has the process that was started last."""
    expected: dict[str, bytes]
    """What it writes to a disk."""


@pytest.fixture(scope="module", params=KINDS)
def job(request, texts, store, signed_zygote, tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    (folder / "chat.yaml").write_text(CHAT)
    (folder / "disk").mkdir()

    def start(prefix, *more):
        words = name_job(request.param, prefix, source="s3://in", chat=folder / "chat.yaml")
        words += ["--endpoint-url", store.url, *more]
        return signed_zygote.run(folder / "run", words, piped=texts / "a.jsonl")

    ended = start(str(folder / "disk" / "x"))
    assert ended.code == 0, ended.errors
    return Job(name=request.param, start=start, pid_file=folder / "run" / "pid", expected=published(folder / "disk"))


@pytest.mark.exhaustive
def test_killed_at_drawn_requests(job, store, signed_zygote, tmp_path, is_long):
    """The first point is where standard input is stored, the last where the work folder is removed."""
    total = count_moments(store, lambda: job.start(f"s3://out/{job.name}-whole/x"))
    assert objects(store, f"{job.name}-whole") == job.expected
    rng = random.Random(20)
    num_killed = 0
    count = LONG if is_long else SHORT
    for number in range(count):
        moment = ("arrived", "done")[number % 2]
        folder = f"{job.name}-{number}"
        at = {0: 18, count - 1: total[moment] - 5}.get(number) or rng.randint(1, total[moment])
        kill_at(store, job.pid_file, at, moment)
        killed = job.start(f"s3://out/{folder}/x")
        store.watch = None
        assert killed.code in {0, -9}, killed.errors  # the number of requests varies a little
        num_killed += killed.code == -9
        more = []
        if number % 3 == 2 and store.names("out", f"{folder}/x.build/"):
            clean = ["clean", f"s3://out/{folder}/x", "--yes", "--endpoint-url", store.url]
            cleaned = signed_zygote.run(tmp_path, clean)
            assert cleaned.code == 0, cleaned.errors
            assert not store.names("out", f"{folder}/x.build/")
            assert not store.uploads
            more = ["--fresh"]  # nothing tells any more who wrote what was published before the kill
        again = job.start(f"s3://out/{folder}/x", *more)
        assert again.code == 0, again.errors
        assert objects(store, folder) == job.expected, (number, at)
        assert not store.uploads, (number, at)
    assert num_killed >= count / 2


@pytest.mark.quick(1)
def test_disturbed_requests_change_nothing(job, store):
    """Throttling, resets, damage on the way, and answers that are lost after the store has done what was asked."""
    store.random_faults = RandomFaults(seed=len(job.name))
    before = store.faults_taken.copy()
    ended = job.start(f"s3://out/{job.name}-disturbed/x")
    store.random_faults = None
    assert ended.code == 0, ended.errors
    assert (store.faults_taken - before).total() > 5
    assert objects(store, f"{job.name}-disturbed") == job.expected
    assert not store.uploads
