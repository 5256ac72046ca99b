"""Drivers that work in a bucket of S3 or of Google: killed or disturbed at any request, they end with the same."""

import contextlib
import os
import random
import shutil
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("boto3")
pytest.importorskip("obstore")

from tests.faults.corpus import BROKEN, write_corpus
from tests.faults.object_kills import CHAT, KINDS, name_job, objects
from tests.faults.zygote import Zygote
from tests.support.conversations import CONVERSATIONS
from tests.support.golden import GOLDEN
from tests.support.google_server import serving_google
from tests.support.object_server import ACCESS_KEY, SECRET_KEY, RandomFaults, serving_objects
from tests.support.published import published

pytestmark = pytest.mark.timeout(1800)
"""The long form's, on a busy machine."""

POINTS, LONG = {"s3-build": 20, "s3": 4, "gs-build": 8, "gs": 3}, 60
"""Points at which drivers are killed: every other one before a request is carried out, or after it and before its
answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A store, and a warm process that has its credentials."""

    scheme: str
    store: Any
    zygote: Zygote
    flags: list[str]
    texts: Path

    def run(self, folder, words):
        return self.zygote.run(folder, [*words, *self.flags], piped=self.texts / "a.jsonl")

    def run_until(self, number, moment, run, pid_file, operations=()):
        """Run a command that is killed when so many requests have come to this moment."""
        left = number

        def watch(now, operation, _):
            nonlocal left
            if now == moment and (not operations or operation in operations):
                left -= 1
                if left == 0:
                    os.kill(int(pid_file.read_text()), signal.SIGKILL)

        self.store.watch = watch
        ended = run()
        self.store.watch = None
        assert ended.code in {0, -9}, ended.errors  # the number of requests varies a little
        return ended


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    kinds = list(BROKEN.values())
    for number, name in enumerate("ab"):
        broken = dict(zip(range(9 + number, 120, 23), kinds[number * 4 :], strict=False))
        write_corpus(folder / f"{name}.jsonl", num_lines=120, broken=broken, seed=number)
    (folder / "c").mkdir()
    shutil.copy(CONVERSATIONS, folder / "c" / "chat.jsonl")
    return folder


@pytest.fixture(scope="module", params=["s3", "gs"])
def place(request, texts, tmp_path_factory):
    with contextlib.ExitStack() as stack:
        patched = stack.enter_context(pytest.MonkeyPatch.context())
        if request.param == "gs":
            pytest.importorskip("google.auth")
            home = tmp_path_factory.mktemp("home")
            store = stack.enter_context(serving_google(patched, home, account=False, buckets={"out"}))
        else:
            patched.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
            patched.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
            store = stack.enter_context(serving_objects(min_part_bytes=1, equal_parts=True, buckets={"out"}))
        store.put("in", texts)
        store.put("golden", GOLDEN)
        patched.setenv("AWS_ENDPOINT_URL", store.url)
        flags = []
        zygote = stack.enter_context(Zygote())
        yield Place(scheme=request.param, store=store, zygote=zygote, flags=flags, texts=texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A kind of job in a place."""

    kind: str
    place: Place
    folder: Path
    expected: dict
    """What it writes to a disk."""

    def start(self, folder, *more):
        """Start it with a folder of the bucket for its output, and wait for its end."""
        return self.run(f"{self.place.scheme}://out/{self.kind}-{folder}/x", *more)

    def run(self, prefix, *more):
        source = f"{self.place.scheme}://{'golden/eod_text_document' if self.kind == 'merge' else 'in'}"
        words = name_job(self.kind, prefix, source=source, chat=self.folder / "chat.yaml")
        return self.place.run(self.folder / "run", [*words, *more])

    def kill(self, folder, number, moment, *more, operations=()):
        pid_file = self.folder / "run" / "pid"
        return self.place.run_until(number, moment, lambda: self.start(folder, *more), pid_file, operations)

    def objects(self, folder):
        return objects(self.place.store, f"{self.kind}-{folder}")

    def assert_ends(self, folder, *more):
        ended = self.start(folder, *more)
        assert ended.code == 0, ended.errors
        assert self.objects(folder) == self.expected, folder
        assert not self.place.store.uploads, folder


def make_job(kind, place, folder):
    (folder / "chat.yaml").write_text(CHAT)
    (folder / "disk").mkdir()
    ended = Job(kind=kind, place=place, folder=folder, expected={}).run(str(folder / "disk" / "x"))
    assert ended.code == 0, ended.errors
    return Job(kind=kind, place=place, folder=folder, expected=published(folder / "disk"))


@pytest.fixture(scope="module", params=KINDS)
def job(request, place, tmp_path_factory):
    return make_job(request.param, place, tmp_path_factory.mktemp("job"))


@pytest.fixture(scope="module")
def build(place, tmp_path_factory):
    if place.scheme != "s3":
        pytest.skip("the other store has the same moments")
    return make_job("build", place, tmp_path_factory.mktemp("build"))


def what_stands_is_whole(stands, after):
    """An .idx stands only beside its own whole .bin, and a manifest only beside all of its files."""
    for key in ("text", "title"):
        names = [name for name in after if name.startswith(f"x_{key}_")]
        last = {"idx": ("bin", "idx"), "manifest.json": tuple(name.partition(".")[2] for name in names)}
        for suffix, others in last.items():
            if f"x_{key}_document.{suffix}" in stands:
                for other in others:
                    name = f"x_{key}_document.{other}"
                    assert stands.get(name) == after[name], name


@pytest.mark.exhaustive
def test_killed_at_drawn_requests(job, tmp_path, is_long):
    """The first point is where standard input is stored, the last where the work folder is removed."""
    place = job.place
    total = Counter()
    place.store.watch = lambda moment, *_: total.update([moment])
    job.assert_ends("whole")
    place.store.watch = None
    count = LONG if is_long else POINTS.get(f"{place.scheme}-{job.kind}", POINTS[place.scheme])
    rng = random.Random(20)
    num_killed = 0
    for number in range(count):
        moment = ("arrived", "done")[number % 2]
        at = {0: 18, count - 1: total[moment] - 5}.get(number) or rng.randint(1, total[moment])
        if job.kind == "build":
            at = 1 + round(number * (total[moment] - 2) / (count - 1))
        killed = job.kill(str(number), at, moment)
        num_killed += killed.code == -9
        what_stands_is_whole(job.objects(str(number)), job.expected)
        more = []
        work = f"{job.kind}-{number}/x.build/"
        if job.kind != "build" and number % 3 == 1 and number < count - 1 and place.store.names("out", work):
            cleaned = place.run(tmp_path, ["clean", f"{place.scheme}://out/{job.kind}-{number}/x", "--yes"])
            assert cleaned.code == 0, cleaned.errors
            assert not place.store.names("out", work)
            assert not place.store.uploads
            more = ["--replace"]  # nothing tells any more who wrote what was published before the kill
        job.assert_ends(str(number), *more)
    assert num_killed >= count / 2


@pytest.mark.quick(3)
def test_disturbed_requests_change_nothing(job):
    """Throttling, resets, damage on the way, and answers that are lost after the store has done what was asked."""
    store = job.place.store
    before = store.faults_taken.copy()
    store.random_faults = RandomFaults(seed=len(job.kind), rate=0.2)
    job.assert_ends("disturbed")
    store.random_faults = None
    assert (store.faults_taken - before).total() > 3


def test_killed_again_and_again(build):
    """A run of kills, each a little after the start: work is kept, so it ends."""
    for number in range(40):
        if build.kill("again", 60 + 5 * number, "done").code == 0:
            break
    build.assert_ends("again")


@pytest.mark.exhaustive
def test_killed_while_it_replaces_an_older_output(build, tmp_path):
    """No moment mixes two outputs: the index of the older one goes before its tokens are replaced."""
    older = name_job("build", "s3://out/build-older/x", source="s3://in", chat=None)
    older[older.index("s3://in/*.jsonl")] = "s3://in/a.jsonl"
    first = build.place.run(tmp_path / "run", older)
    assert first.code == 0, first.errors
    stood = build.objects("older")
    for number in range(1, 9):
        build.kill("older", number, "done", "--replace", operations=("CompleteMultipartUpload", "DeleteObjects"))
        stands = build.objects("older")
        for key in ("text", "title"):
            if f"x_{key}_document.idx" in stands:
                pair = [f"x_{key}_document.{suffix}" for suffix in ("bin", "idx")]
                assert [stands.get(name) for name in pair] in (
                    [stood.get(name) for name in pair],
                    [build.expected[name] for name in pair],
                )
    build.assert_ends("older", "--replace")
