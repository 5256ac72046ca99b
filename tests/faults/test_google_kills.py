"""Drivers that work in Google Cloud Storage: killed or disturbed at any request, they end with the same objects."""

import pytest

pytest.importorskip("boto3")
pytest.importorskip("obstore")
pytest.importorskip("google.auth")

from tests.faults.corpus import TOKENIZER, write_corpus
from tests.faults.object_kills import CHAT, KINDS, count_moments, kill_at, name_job, objects, write_texts
from tests.faults.zygote import Zygote
from tests.support.golden import GOLDEN
from tests.support.google_server import serving_google
from tests.support.object_server import RandomFaults
from tests.support.published import published

KILLS = 8
UPLOADS = ("CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload", "PutObject", "DeleteObjects")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    write_corpus(folder / "a.jsonl", num_lines=120, broken={}, seed=1)
    (folder / "jobs").mkdir()
    write_texts(folder / "jobs")
    with pytest.MonkeyPatch.context() as patched:
        home = tmp_path_factory.mktemp("home")
        with serving_google(patched, home, account=False, buckets={"out"}) as server:
            server.put("in", folder)
            server.put("golden", GOLDEN)
            yield server


@pytest.fixture(scope="module")
def zygote(store):
    """A warm process that has the metadata server of the test's server."""
    assert store.url
    with Zygote() as running:
        yield running


@pytest.fixture(scope="module")
def expected(zygote, tmp_path_factory):
    """What the same command writes to a disk."""
    out = tmp_path_factory.mktemp("disk")
    ended = zygote.run(out / "run", build(str(out / "x")))
    assert ended.code == 0, ended.errors
    return published(out)


def build(prefix):
    command = ["build", *TOKENIZER, "--workers", "2", "--shard-size", "6KiB", "--input", "gs://in/*.jsonl"]
    return [*command, "--output-prefix", prefix]


@pytest.mark.exhaustive
def test_killed_at_several_requests(store, zygote, expected, tmp_path):
    total = count_moments(store, lambda: zygote.run(tmp_path / "run", build("gs://out/whole/x")))
    assert objects(store, "whole") == expected
    num_killed = 0
    for number in range(KILLS):
        folder = f"killed-{number}"
        command, run = build(f"gs://out/{folder}/x"), tmp_path / str(number)
        moment = ("arrived", "done")[number % 2]
        kill_at(store, run / "pid", 1 + round(number * (total[moment] - 2) / (KILLS - 1)), moment)
        killed = zygote.run(run, command)
        store.watch = None
        assert killed.code in {0, -9}, killed.errors  # the number of requests varies a little
        num_killed += killed.code == -9
        again = zygote.run(run, command)
        assert again.code == 0, again.errors
        assert objects(store, folder) == expected, number
        assert not store.uploads, number
    assert num_killed >= KILLS - 2


def test_disturbed_requests_change_nothing(store, zygote, expected, tmp_path):
    """Throttling, resets, damage on the way, and answers that are lost after the store has done what was asked."""
    store.random_faults = RandomFaults(seed=1, rate=0.2, operations=UPLOADS)
    ended = zygote.run(tmp_path / "run", build("gs://out/disturbed/x"))
    store.random_faults = None
    assert ended.code == 0, ended.errors
    assert store.faults_taken.total() > 5
    assert objects(store, "disturbed") == expected
    assert not store.uploads


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", [*KINDS, "merge"])
def test_other_jobs_are_killed_and_continued_or_cleaned(kind, store, zygote, tmp_path):
    (tmp_path / "chat.yaml").write_text(CHAT)
    (tmp_path / "disk").mkdir()
    (tmp_path / "text.jsonl").write_bytes(store.content("in/jobs/a.jsonl"))

    def start(place, run="run"):
        source = "gs://golden/eod_text_document" if kind == "merge" else "gs://in/jobs"
        words = name_job(kind, f"{place}/x", source=source, chat=tmp_path / "chat.yaml")
        return zygote.run(tmp_path / run, words, piped=tmp_path / "text.jsonl")

    ended = start(str(tmp_path / "disk"))
    assert ended.code == 0, ended.errors
    expected = published(tmp_path / "disk")
    total = count_moments(store, lambda: start(f"gs://out/{kind}"))
    assert objects(store, kind) == expected
    for number in range(2 if kind in {"piped", "merge"} else 1):
        folder = f"{kind}-{number}"
        kill_at(store, tmp_path / folder / "pid", total["done"] * (number + 1) // 3, "done")
        assert start(f"gs://out/{folder}", folder).code == -9
        store.watch = None
        if number:
            cleaned = zygote.run(tmp_path / "clean", ["clean", f"gs://out/{folder}/x", "--yes"])
            assert cleaned.code == 0, cleaned.errors
            assert not store.names("out", f"{folder}/x.build/")
        else:
            again = start(f"gs://out/{folder}")
            assert again.code == 0, again.errors
            assert objects(store, folder) == expected
        assert not store.uploads
