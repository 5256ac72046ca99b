"""Ranges of the output that are merged while shards are still made: that it happens, and that nothing else changes."""

import contextlib
import json
import os
import re

import pytest

from dsindex.options.build import BuildConfig
from dsindex.runtime.executors import ThreadExecutor
from dsindex.runtime.work_folder import Journal, RangeMerged
from dsindex.store.read import digest_file
from tests.support.golden import OWN
from tests.support.jobs import config_of, run_config

STEP = 4096
"""Bytes of a range, and so of a digest block, in these tests."""
OWN_BIN = OWN.run("eod").prefixes["text"].with_name("eod_text_document.bin")

pytestmark = pytest.mark.usefixtures("small_ranges")


@pytest.fixture
def small_ranges(monkeypatch):
    monkeypatch.setattr("dsindex.runtime.job.RANGE_BYTES", STEP)
    monkeypatch.setattr("dsindex.store.local.DIGEST_BLOCK_BYTES", STEP)


@pytest.fixture
def started(monkeypatch):
    """Names of all calls, in the order in which they were begun."""
    names = []
    start = ThreadExecutor.start

    def recorded(executor, call, **options):
        names.append(call.name)
        return start(executor, call, **options)

    monkeypatch.setattr(ThreadExecutor, "start", recorded)
    return names


def early(started):
    """Ranges that were begun before the last shard was."""
    last = max(place for place, name in enumerate(started) if name.startswith("tokenize["))
    return [name for name in started[:last] if name.startswith("merge[")]


def merged(started):
    return [name for name in started if name.startswith("merge[")]


class Stopped(Exception):
    """The job ended in the middle."""


@contextlib.contextmanager
def stopped_after(num_ranges):
    """Let the job in the block end when it has committed so many ranges; gives the names of their calls."""
    committed = []
    record = Journal.record

    def recorded(journal, line):
        record(journal, line)
        if isinstance(line, RangeMerged):
            committed.append(f"merge[{line.output}.bin:{line.number:05d}]")
            if len(committed) == num_ranges:
                raise Stopped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "record", recorded)
        with pytest.raises(Stopped):
            yield committed


@contextlib.contextmanager
def stopped_in(function):
    """Let the job in the block end when it calls a function of the package `runtime`."""

    def stop(*_):
        raise Stopped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"dsindex.runtime.{function}", stop)
        with pytest.raises(Stopped):
            yield


def partials(folder):
    return sorted(folder.glob("*.partial"))


@pytest.mark.parametrize("name", ["eod", "keys"])
def test_ranges_are_merged_before_the_last_shard_is_begun(name, tmp_path, started):
    run = OWN.run(name)
    own = {"tokenizer_model": str(run.tokenizer), "json_keys": run.json_keys, "append_eod": True}
    own |= {"output_prefix": str(tmp_path / run.name), "workers": 1, "shard_size": "4KiB", "replace": True}
    run_config(config_of(BuildConfig, run.input, **own))
    assert len(early(started)) >= 6
    assert len(merged(started)) == len(set(merged(started)))
    for key, expected in run.prefixes.items():
        prefix = tmp_path / f"{run.name}_{key}_document"
        for suffix in ("bin", "idx"):
            assert (tmp_path / f"{prefix.name}.{suffix}").read_bytes() == expected.with_name(
                f"{expected.name}.{suffix}"
            ).read_bytes()
        recorded = json.loads((tmp_path / f"{prefix.name}.manifest.json").read_bytes())["content"]["digests"]["bin"]
        assert recorded["xxh3_128"] == digest_file(f"{prefix}.bin")
    assert not partials(tmp_path)


@pytest.mark.parametrize("what", ["gone", "shorter"])
@pytest.mark.parametrize("keep_shards", [False, True])
def test_file_that_lost_its_ranges_gets_them_all_again(what, keep_shards, tmp_path, make_config, started):
    config = make_config(workers=1, shard_size="4KiB", keep_shards=keep_shards)
    with stopped_after(3) as committed:
        run_config(config)
    [partial] = partials(tmp_path / "out")
    if what == "gone":
        partial.unlink()
    else:
        os.truncate(partial, 2 * STEP)
    started.clear()
    run_config(config)
    lost = committed if what == "gone" else committed[2:]
    assert {*committed} & {*started} == {*lost}
    assert ("tokenize[00000]" in started) == (what == "gone" and not keep_shards)  # only the file had its tokens
    assert_is_golden(tmp_path / "out")


@pytest.mark.parametrize("num_ranges", [1, 4, 9])
def test_file_given_twice_has_shards_of_its_own_each_time(num_ranges, tmp_path):
    """Otherwise the shard that both use is removed when the first of them is merged."""
    own = {"append_eod": True, "output_prefix": str(tmp_path / "docs"), "workers": 1, "shard_size": "4KiB"}
    config = config_of(BuildConfig, (str(OWN.docs),) * 2, **own)
    with stopped_after(num_ranges):
        run_config(config)
    run_config(config)
    assert (tmp_path / "docs_text_document.bin").read_bytes() == OWN_BIN.read_bytes() * 2
    assert not partials(tmp_path)


def test_partial_file_that_is_too_long_is_cut(tmp_path, make_config):
    config = make_config(workers=1, shard_size="4KiB")
    with stopped_after(3):
        run_config(config)
    [partial] = partials(tmp_path / "out")
    os.truncate(partial, OWN_BIN.stat().st_size + STEP)
    run_config(config)
    assert_is_golden(tmp_path / "out")


def test_commit_of_a_file_that_was_damaged_since_is_not_carried_out(tmp_path, make_config):
    config = make_config(workers=1, shard_size="4KiB", keep_shards=True)
    with stopped_in("publish._rename"):
        run_config(config)
    assert [*(tmp_path / "out").rglob("*.commit")]
    [partial] = (tmp_path / "out").glob("*.bin.*.partial")
    data = partial.read_bytes()
    partial.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    run_config(config)
    assert_is_golden(tmp_path / "out")


@pytest.mark.parametrize("flipped", [(b'"provenance":', b'"provenence":'), (b'"eod_in_text":0', b'"eod_in_text":8')])
def test_journal_line_with_a_flipped_bit_does_not_count(flipped, tmp_path, make_config, started):
    run_config(make_config(workers=1, output_prefix=str(tmp_path / "clean" / "docs")))
    config = make_config(workers=1, shard_size="4KiB", keep_shards=True)
    with stopped_after(3):
        run_config(config)
    [journal] = (tmp_path / "out").rglob("journal.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    [first, *_] = [number for number, line in enumerate(lines) if flipped[0] in line]
    lines[first] = lines[first].replace(*flipped)
    journal.write_bytes(b"".join(lines))
    started.clear()
    run_config(config)
    assert "tokenize[00000]" in started
    assert_is_golden(tmp_path / "out")
    name = "docs_text_document.provenance.parquet"
    assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "clean" / name).read_bytes()


def test_file_that_was_complete_and_lost_is_not_complete_before_all_its_ranges_are(tmp_path, make_config):
    config = make_config(workers=1, shard_size="4KiB", keep_shards=True)
    with stopped_in("job.publish"):
        run_config(config)
    [partial] = (tmp_path / "out").glob("*.bin.*.partial")
    partial.unlink()
    with stopped_after(1):
        run_config(config)
    os.truncate(partial, OWN_BIN.stat().st_size)  # as where the last range was written first
    run_config(config)
    assert_is_golden(tmp_path / "out")


def test_what_a_power_cut_must_not_take_is_synced_first(make_config, monkeypatch):
    """A range before it is recorded, its record before tokens of shards go, and the .bin before the .idx is there."""
    events = []

    def note(owner, name, what):
        function = getattr(owner, name)

        def noted(*arguments, **options):
            events.append(what(arguments[-1]))
            return function(*arguments, **options)

        monkeypatch.setattr(owner, name, noted)

    def name_of(path):
        return re.sub(r"^docs_text_document|^0.*(?=\.bin)|\.\w+\.partial$", "", os.path.basename(path))

    note(os, "fsync", lambda descriptor: f"sync {name_of(os.readlink(f'/proc/self/fd/{descriptor}'))}")
    note(os, "unlink", lambda path: f"remove {name_of(path)}")
    note(os, "replace", lambda path: f"name {name_of(path)}")
    note(Journal, "record", lambda line: "record" if isinstance(line, RangeMerged) else "other")
    run_config(make_config(workers=1, shard_size="4KiB"))
    assert {"record", "remove .bin", "name .idx"} <= {*events}
    for number, event in enumerate(events):
        before = events[:number]
        if event == "record":
            assert before.count("sync .bin") > before.count("record")
        if event == "remove .bin":
            assert [each for each in before if each in {"record", "sync journal.jsonl"}][-1] == "sync journal.jsonl"
        if event == "name .idx":
            assert [each for each in before if each in {"name .bin", "sync out"}][-2:] == ["name .bin", "sync out"]


@pytest.mark.parametrize(("suffix", "is_cut"), [("bin", False), ("idx", False), ("provenance", False), ("bin", True)])
def test_damaged_shard_is_made_again(suffix, is_cut, tmp_path, make_config, started):
    """At once if it has another size, otherwise when it is merged: in the same run."""
    config = make_config(workers=1, shard_size="4KiB", keep_shards=True)
    with stopped_after(3):
        run_config(config)
    work_dir = tmp_path / "out" / "docs.build"
    last = list(Journal(str(work_dir)).shards.values())[-1].keys[0]
    damaged = work_dir / getattr(last, suffix).name
    data = damaged.read_bytes()
    damaged.write_bytes(data[:-2] if is_cut else bytes([data[0] ^ 1]) + data[1:])
    started.clear()
    run_config(config)
    assert started.count(f"tokenize[{last.bin.name.split('/')[-1][3:8]}]") == 1
    assert_is_golden(tmp_path / "out")
    assert not damaged.exists()


def assert_is_golden(folder):
    assert (folder / "docs_text_document.bin").read_bytes() == OWN_BIN.read_bytes()
    assert (folder / "docs_text_document.idx").read_bytes() == OWN_BIN.with_suffix(".idx").read_bytes()
    assert not partials(folder)
