"""Ranges of the output that are merged while shards are still made: that it happens, and that nothing else changes."""

import contextlib
import json
import os

import pytest

from dsindex.engine import merge as ranges
from dsindex.engine.assemble import EarlyRanges
from dsindex.engine.executors import ThreadExecutor
from dsindex.engine.ledger import Ledger
from dsindex.errors import BadRecordError, InputError
from dsindex.formats.pbin import PBIN_VERSIONS
from dsindex.options.build import BuildConfig
from dsindex.options.pack import PackConfig
from dsindex.store.reading import digest_file
from tests.jobs.instruct.instruct_jobs import SPLIT_IN_PARTS, job
from tests.jobs.test_dispatch import FakeExecutor
from tests.support.golden import OWN
from tests.support.jobs import config_of, run_config
from tests.support.published import published

STEP = 4096
"""Bytes of a range in these tests; it has two digest blocks."""
OWN_BIN = OWN.run("eod").prefixes["text"].with_name("eod_text_document.bin")

pytestmark = pytest.mark.usefixtures("small_ranges")


@pytest.fixture
def small_ranges(monkeypatch):
    monkeypatch.setattr(ranges, "range_bytes", lambda _total: STEP)
    monkeypatch.setattr(ranges, "DIGEST_BLOCK_BYTES", STEP // 2)
    monkeypatch.setattr(ranges, "COPY_BYTES", STEP // 4)
    monkeypatch.setattr("dsindex.store.storage.DIGEST_BLOCK_BYTES", STEP // 2)


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
    record = Ledger.record_range

    def recorded(ledger, task, result):
        record(ledger, task, result)
        name = os.path.basename(task.output).rpartition(".partial")[0].rsplit(".", 2)[0]
        committed.append(f"merge[{name}:{task.number:05d}]")
        if len(committed) == num_ranges:
            raise Stopped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "record_range", recorded)
        with pytest.raises(Stopped):
            yield committed


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


@pytest.mark.quick(1)
@pytest.mark.parametrize("version", PBIN_VERSIONS)
def test_packed_ranges_but_the_first_are_merged_early(version, tmp_path, started, monkeypatch):
    """The first one has the header, which says how many tokens there are."""

    def pack(folder):
        output = str(tmp_path / folder / "docs.pbin")
        config = config_of(PackConfig, OWN.docs, output=output, pbin_era=version, workers=1, shard_size="4KiB")
        run_config(config)
        return published(tmp_path / folder)

    with_them = pack("early")
    assert len(early(started)) >= 4
    assert "merge[docs:00000]" not in early(started)
    with monkeypatch.context() as patch:
        patch.setattr(EarlyRanges, "take_shard", lambda *_: [])
        started.clear()
        assert pack("late") == with_them
    assert not early(started)


def test_tokens_and_masks_of_instructions_are_merged_early(tmp_path, started, monkeypatch):
    def instruct(folder):
        run_config(job(tmp_path / folder / "chat", workers=1, shard_size="8KiB"), SPLIT_IN_PARTS)
        return published(tmp_path / folder)

    with_them = instruct("early")
    kinds = {name.partition("[")[2].partition(":")[0] for name in early(started)}
    assert {"chat_train_text_document", "chat_train_loss_mask"} <= kinds
    monkeypatch.setattr(EarlyRanges, "take_shard", lambda *_: [])
    assert instruct("late") == with_them


@pytest.mark.parametrize("num_ranges", [1, 3, 6])
def test_finished_ranges_are_not_merged_again(num_ranges, tmp_path, make_config, started):
    config = make_config(workers=1, shard_size="4KiB")
    with stopped_after(num_ranges) as committed:
        run_config(config)
    assert committed == merged(started)[:num_ranges]
    assert not partials(tmp_path / "out")  # they are in the work folder
    started.clear()
    run_config(config)
    assert not set(committed) & set(started)
    assert len(merged(started)) == -(-OWN_BIN.stat().st_size // STEP) - num_ranges
    assert_is_golden(tmp_path / "out")


@pytest.mark.parametrize("what", ["gone", "shorter"])
def test_file_that_lost_its_ranges_gets_them_all_again(what, tmp_path, make_config, started):
    config = make_config(workers=1, shard_size="4KiB", keep_shards=True)
    with stopped_after(3) as committed:
        run_config(config)
    [partial] = partials(tmp_path / "out")
    if what == "gone":
        partial.unlink()
    else:
        os.truncate(partial, 3 * STEP - 1)
    started.clear()
    run_config(config)
    assert set(committed) < set(started)
    assert_is_golden(tmp_path / "out")


def test_range_with_other_bytes_is_merged_again(tmp_path, make_config):
    config = make_config(workers=1, shard_size="4KiB", keep_shards=True)
    with stopped_after(3):
        run_config(config)
    turn_bit(partials(tmp_path / "out")[0], STEP + 7)
    run_config(config)
    assert_is_golden(tmp_path / "out")


@pytest.mark.parametrize("suffix", ["bin", "idx", "provenance.parquet"])
def test_assembled_file_with_other_bytes_is_made_again(suffix, tmp_path, make_config, monkeypatch):
    config = make_config(workers=1, shard_size="4KiB", keep_shards=True)
    stop_at_publishing(config, monkeypatch)
    [path] = [path for path in partials(tmp_path / "out") if f".{suffix}." in path.name]
    before = path.read_bytes()
    turn_bit(path, len(before) // 2)
    run_config(config)
    assert (tmp_path / "out" / f"docs_text_document.{suffix}").read_bytes() == before
    assert_is_golden(tmp_path / "out")


def stop_at_publishing(config, monkeypatch):
    def stop(*_):
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr("dsindex.engine.frame.publish", stop)
        with pytest.raises(Stopped):
            run_config(config)


def turn_bit(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_shard_that_is_made_again_takes_its_ranges_with_it(tmp_path, make_config, started):
    """A disk turned bits round before its ranges were merged, so they are as wrong as the shard."""
    config = make_config(workers=1, shard_size="4KiB", keep_shards=True)
    with stopped_after(5) as committed:
        run_config(config)
    [partial] = partials(tmp_path / "out")
    shards = sorted((tmp_path / "out" / "docs.build" / "shards" / "0000").glob("*.bin"))
    begin = sum(shard.stat().st_size for shard in shards[:3])
    end = begin + shards[3].stat().st_size
    shards[3].write_bytes(bytes(byte ^ 1 for byte in shards[3].read_bytes()))
    data = bytearray(partial.read_bytes())
    data[begin:end] = shards[3].read_bytes()
    partial.write_bytes(data)
    started.clear()
    run_config(config)
    touched = {f"merge[docs_text_document:{number:05d}]" for number in range(begin // STEP, -(-end // STEP))}
    assert set(committed) & set(started) == set(committed) & touched != set()
    assert next(name for name in started if name.startswith("tokenize[")) == "tokenize[00003]"
    assert_is_golden(tmp_path / "out")


@pytest.mark.parametrize("keep_shards", [False, True])
def test_assembled_dataset_is_made_again_where_a_shard_was(tmp_path, make_config, monkeypatch, keep_shards):
    config = make_config(workers=1, shard_size="4KiB", keep_shards=keep_shards)
    stop_at_publishing(config, monkeypatch)
    [tokens] = [path for path in partials(tmp_path / "out") if ".bin." in path.name]
    shards = sorted((tmp_path / "out" / "docs.build" / "shards" / "0000").glob("*.bin"))
    for path in (shards[-1], tokens) if keep_shards else (tokens,):  # the shard was damaged before it was merged
        turn_bit(path, -1)
    run_config(config)
    assert_is_golden(tmp_path / "out")


def test_bad_record_is_told_although_a_range_failed_before(tmp_path, make_config, monkeypatch):
    """Which error is told does not depend on what was merged meanwhile: the shard is allowed to end."""
    text = OWN.docs.read_bytes()
    bad = text.index(b"\n", 12 * 2048) + 1  # in a shard that runs when the first range does
    bad_line = text[:bad].count(b"\n") + 1
    (tmp_path / "in.jsonl").write_bytes(text[:bad] + b"broken\n" + text[bad:])
    failed = []

    def fail(task, _):
        failed.append(task)
        raise InputError("the storage went away")

    executor = FakeExecutor(slots=3, backlog=6)  # ends one call at a time, in the order in which they were begun
    monkeypatch.setattr(executor, "is_cluster", False, raising=False)
    monkeypatch.setattr("dsindex.engine.start.make_executor", lambda *_, **__: executor)
    monkeypatch.setattr("dsindex.engine.assemble.merge_range", fail)
    with pytest.raises(BadRecordError, match=rf"in\.jsonl, line {bad_line}:"):
        run_config(make_config(input=(str(tmp_path / "in.jsonl"),), shard_size="2KiB"))
    assert failed


def assert_is_golden(folder):
    assert (folder / "docs_text_document.bin").read_bytes() == OWN_BIN.read_bytes()
    assert (folder / "docs_text_document.idx").read_bytes() == OWN_BIN.with_suffix(".idx").read_bytes()
    assert not partials(folder)
