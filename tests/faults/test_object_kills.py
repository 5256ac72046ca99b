"""Drivers that work in a bucket: killed at any request, or disturbed at every tenth, they end with the same objects."""

import os
import signal

import pytest

pytest.importorskip("boto3")
pytest.importorskip("obstore")

from tests.faults.corpus import BROKEN, TOKENIZER, write_corpus
from tests.faults.object_kills import count_moments, kill_at, objects
from tests.support.object_server import RandomFaults, serving_objects
from tests.support.published import published

pytestmark = pytest.mark.timeout(1800)
"""The long form's, on a busy machine."""

SHORT, LONG = 20, 60
"""Points at which drivers are killed: every other one before a request is carried out, or after it and before its
answer."""


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    kinds = list(BROKEN.values())
    for number, name in enumerate("ab"):
        broken = dict(zip(range(9 + number, 120, 23), kinds[number * 4 :], strict=False))
        write_corpus(folder / f"{name}.jsonl", num_lines=120, broken=broken, seed=number)
    with serving_objects(min_part_bytes=1, equal_parts=True, buckets={"out"}) as server:
        server.put("in", folder)
        yield server


@pytest.fixture(scope="module")
def expected(store, signed_zygote, tmp_path_factory):
    """What the same command writes to a disk."""
    out = tmp_path_factory.mktemp("disk")
    ended = signed_zygote.run(out / "run", build(store, str(out / "x")))
    assert ended.code == 0, ended.errors
    return published(out)


def build(store, prefix, *options):
    command = ["build", *TOKENIZER, "--json-keys", "text", "title", "--on-bad-record", "quarantine", "--workers", "2"]
    command += ["--shard-size", "6KiB", "--input", "s3://in/*.jsonl", "--endpoint-url", store.url]
    return [*command, "--output-prefix", prefix, *options]


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
def test_killed_at_any_request(store, signed_zygote, expected, tmp_path, is_long):
    whole = build(store, "s3://out/whole/x")
    total = count_moments(store, lambda: signed_zygote.run(tmp_path / "run", whole))
    assert objects(store, "whole") == expected
    count = LONG if is_long else SHORT
    num_killed = 0
    for number in range(count):
        folder = f"killed-{number}"
        command = build(store, f"s3://out/{folder}/x")
        run = tmp_path / str(number)
        moment = ("arrived", "done")[number % 2]
        kill_at(store, run / "pid", 1 + round(number * (total[moment] - 2) / (count - 1)), moment)
        killed = signed_zygote.run(run, command)
        store.watch = None
        assert killed.code in {0, -9}, killed.errors  # the number of requests varies a little
        num_killed += killed.code == -9
        what_stands_is_whole(objects(store, folder), expected)
        again = signed_zygote.run(run, command)
        assert again.code == 0, again.errors
        assert objects(store, folder) == expected, number
        assert not store.uploads, number
    assert num_killed >= 0.8 * count


def test_killed_again_and_again(store, signed_zygote, expected, tmp_path):
    """A run of kills, each a little after the start: work is kept, so it ends."""
    command = build(store, "s3://out/again/x")
    for number in range(40):
        kill_at(store, tmp_path / "run" / "pid", 60 + 5 * number, "done")
        ended = signed_zygote.run(tmp_path / "run", command)
        store.watch = None
        if ended.code == 0:
            break
        assert ended.code == -9, ended.errors
    assert ended.code == 0
    assert objects(store, "again") == expected
    assert not store.uploads


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(3))
def test_disturbed_requests_change_nothing(seed, store, signed_zygote, expected, tmp_path):
    """Throttling, resets, damage on the way, and answers that are lost after the store has done what was asked."""
    store.random_faults = RandomFaults(seed=seed)
    before = store.faults_taken.copy()
    ended = signed_zygote.run(tmp_path / "run", build(store, f"s3://out/disturbed-{seed}/x"))
    store.random_faults = None
    assert ended.code == 0, ended.errors
    assert (store.faults_taken - before).total() > 5
    assert objects(store, f"disturbed-{seed}") == expected
    assert not store.uploads


@pytest.mark.exhaustive
def test_killed_while_it_replaces_an_older_output(store, signed_zygote, expected, tmp_path):
    """No moment mixes two outputs: the index of the older one goes before its tokens are replaced."""
    older = build(store, "s3://out/older/x")
    older[older.index("s3://in/*.jsonl")] = "s3://in/a.jsonl"
    first = signed_zygote.run(tmp_path / "run", older)
    assert first.code == 0, first.errors
    stood = objects(store, "older")
    command = build(store, "s3://out/older/x", "--fresh")
    publishing = ("CompleteMultipartUpload", "DeleteObjects")
    for number in range(1, 9):
        left = number

        def watch(now, operation, _):
            nonlocal left
            if now == "done" and operation in publishing:
                left -= 1
                if left == 0:
                    os.kill(int((tmp_path / "run" / "pid").read_text()), signal.SIGKILL)

        store.watch = watch
        ended = signed_zygote.run(tmp_path / "run", command)
        store.watch = None
        assert ended.code in {0, -9}, ended.errors
        stands = objects(store, "older")
        for key in ("text", "title"):
            if f"x_{key}_document.idx" in stands:
                pair = [f"x_{key}_document.{suffix}" for suffix in ("bin", "idx")]
                assert [stands.get(name) for name in pair] in (
                    [stood.get(name) for name in pair],
                    [expected[name] for name in pair],
                )
    again = signed_zygote.run(tmp_path / "run", command)
    assert again.code == 0, again.errors
    assert objects(store, "older") == expected
    assert not store.uploads
