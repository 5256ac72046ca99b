from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsindex.engine import ledger as journal
from dsindex.engine.ledger import Ledger
from dsindex.engine.tasks import MergeRange, Piece
from dsindex.engine.tasks import KeyResult, ShardResult, ShardTask
from dsindex.store.journal import FileJournal
from dsindex.store.storage import StoredFile

FILE = StoredFile(name="shards/0000/00000000.x.0.bin", size_bytes=2, digest="ab")
PIECE = Piece(path="/work/shards/x.bin", identity="shards/x.bin", offset=0, size_bytes=8)
RANGE = MergeRange(number=4, begin=32, end=40, output="/out/x.bin.id.partial", pieces=(PIECE,))
TASK = ShardTask(shard=0, input=0, path="/in", begin=0, end=10, input_size_bytes=20, input_version="5")


def result_of(shard):
    of_key = {"num_sequences": 1, "num_documents": 2, "num_tokens": 3, "num_empty_documents": 1, "eod_in_text": 0}
    counts = {"num_lines": 2, "num_blank": 0, "num_records": 2, "num_quarantined": 0}
    keys = (KeyResult(key="text", bin=FILE, idx=FILE, **of_key),)
    return ShardResult(shard=shard, keys=keys, provenance=FILE, quarantine=None, input_fingerprint="f", **counts)


def task_of(shard):
    return replace(TASK, shard=shard, begin=shard * 10, end=shard * 10 + 10)


def written(path, *, num_shards=3):
    ledger = Ledger(str(path))
    for shard in range(num_shards):
        ledger.record_shard(task_of(shard), result_of(shard))
    ledger.record_range(RANGE, RangeResult(number=4, block_digests=("aa", "bb")))
    ledger.record_assembled(RANGE.output, "parts", {"bin": {"size_bytes": 1, "digest": "cc"}})
    ledger.close()


def test_ledger_gives_back_what_was_recorded(tmp_path):
    written(tmp_path / "ledger")
    ledger = Ledger(str(tmp_path / "ledger"))
    assert [ledger.shard(task_of(n)) for n in range(4)] == [result_of(0), result_of(1), result_of(2), None]
    assert ledger.range(RANGE) == RangeResult(number=4, block_digests=("aa", "bb"))
    assert ledger.written_bytes(RANGE.output) == 40
    assert ledger.written_bytes("/out/x.bin.other.partial") == 0
    assert ledger.assembled(RANGE.output, "parts") == {"bin": {"size_bytes": 1, "digest": "cc"}}
    assert ledger.assembled(RANGE.output, "other parts") is None
    assert ledger.assembled("/out/y.bin.id.partial", "parts") is None
    ledger.close()


@pytest.mark.parametrize(("stopped_at", "is_kept"), [("write", False), ("fsync", True)])
def test_who_is_stopped_while_recording_knows_what_is_on_file(tmp_path, monkeypatch, stopped_at, is_kept):
    ledger = Ledger(str(tmp_path / "ledger"))
    done = RangeResult(number=4, block_digests=("aa", "bb"))

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(FileJournal, "sync_seconds", 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(journal.os, stopped_at, stop)
        for record in (
            lambda: ledger.record_shard(task_of(0), result_of(0)),
            lambda: ledger.record_range(RANGE, done),
            lambda: ledger.record_assembled(RANGE.output, "parts", {"bin": {"size_bytes": 1, "digest": "cc"}}),
        ):
            with pytest.raises(KeyboardInterrupt):
                record()
    on_file = Ledger(str(tmp_path / "ledger"))
    for kept in (ledger, on_file):
        assert kept.shard(task_of(0)) == (result_of(0) if is_kept else None)
        assert kept.range(RANGE) == (done if is_kept else None)
        assert (kept.assembled(RANGE.output, "parts") is not None) == is_kept
        kept.close()


@pytest.mark.parametrize("changed", [
    {"output": "/out/x.bin.other.partial"},
    {"begin": 24, "end": 32},
    {"pieces": (replace(PIECE, identity="shards/another-attempt.bin"),)},
    {"pieces": (replace(PIECE, offset=8),)},
], ids=["another plan", "another place", "a shard made again", "other bytes of it"])  # fmt: skip
def test_range_counts_only_for_what_it_was_made_of(tmp_path, changed):
    written(tmp_path / "ledger")
    ledger = Ledger(str(tmp_path / "ledger"))
    assert ledger.range(replace(RANGE, **changed)) is None
    moved = replace(RANGE, output="/elsewhere/x.bin.id.partial", pieces=(replace(PIECE, path="/elsewhere/x.bin"),))
    assert ledger.range(moved) is not None
    ledger.close()


def test_file_that_is_made_again_has_no_ranges(tmp_path):
    written(tmp_path / "ledger")
    ledger = Ledger(str(tmp_path / "ledger"))
    other = replace(RANGE, output="/out/y.bin.id.partial")
    ledger.record_range(other, RangeResult(number=4, block_digests=()))
    ledger.record_merge_again(RANGE.output)
    ledger.close()
    again = Ledger(str(tmp_path / "ledger"))
    assert again.range(RANGE) is None
    assert again.assembled(RANGE.output, "parts") is None
    assert again.written_bytes(RANGE.output) == 0
    assert again.range(other) is not None
    again.close()


def test_ledger_finds_a_shard_whose_number_moved(tmp_path):
    """Added inputs move the numbers of later shards; what a shard reads is what it is known by."""
    written(tmp_path / "ledger")
    ledger = Ledger(str(tmp_path / "ledger"))
    assert ledger.shard(replace(task_of(1), shard=99, input=7)) == result_of(1)
    assert ledger.shard(replace(task_of(1), input_version="6")) is None
    ledger.close()


@pytest.mark.parametrize("lost", [1, 10, 100, 300])
def test_ledger_forgets_only_a_torn_line(tmp_path, lost):
    written(tmp_path / "ledger")
    data = (tmp_path / "ledger").read_bytes()
    (tmp_path / "ledger").write_bytes(data[:-lost])
    ledger = Ledger(str(tmp_path / "ledger"))
    assert ledger.shard(task_of(0)) == result_of(0)
    ledger.record_shard(task_of(9), result_of(9))
    ledger.close()
    again = Ledger(str(tmp_path / "ledger"))
    assert again.shard(task_of(9)) == result_of(9)
    again.close()


@given(place=st.integers(0, 10**6), value=st.integers(0, 255))
def test_damaged_line_is_as_if_never_written(tmp_path_factory, place, value):
    path = tmp_path_factory.mktemp("ledger") / "ledger"
    written(path)
    data = bytearray(path.read_bytes())
    data[place % len(data)] = value
    path.write_bytes(data)
    ledger = Ledger(str(path))
    for shard in range(3):
        assert ledger.shard(task_of(shard)) in {None, result_of(shard)}
    ledger.close()
