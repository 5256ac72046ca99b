"""Content of shards that is held in memory: cut into blocks, kept for the merge, or in a file once it is large."""

import os
import random

import pytest

from dsindex.engine.shards import attempt as held_file
from dsindex.engine.worker import HeldFile
from dsindex.errors import OutputError
from dsindex.store import writing as recent
from dsindex.store.clients import Blocks
from dsindex.store.urls import ObjectUrl
from dsindex.store.writing import find_recent, hold_recent, keep_recent, let_go_read

FOLDER = ObjectUrl("s3://bucket/work")


@pytest.fixture
def holding(monkeypatch):
    """Room for 100 bytes of objects of 20 or more, and 14 of smaller ones."""
    monkeypatch.setattr(recent, "SMALL_BYTES", 20)
    hold_recent(114)
    yield
    hold_recent(0)


@pytest.fixture
def sent(monkeypatch):
    """What is written to the store, by address."""
    objects = {}
    monkeypatch.setattr(held_file, "put_object", lambda url, blocks: objects.update({str(url): b"".join(blocks)}))
    return objects


@pytest.mark.parametrize("seed", range(20))
def test_any_part_of_blocks_is_that_of_the_whole(seed):
    chosen = random.Random(seed)
    pieces = [chosen.randbytes(chosen.choice([0, 1, 7, 64])) for _ in range(chosen.randrange(1, 9))]
    whole, blocks = b"".join(pieces), Blocks(pieces)
    assert len(blocks) == len(whole)
    assert b"".join(blocks) == blocks.read() == whole
    for _ in range(50):
        begin, end = sorted(chosen.choices(range(len(whole) + 1), k=2))
        assert b"".join(blocks.part(begin, end)) == whole[begin:end]
        buffer = bytearray(end - begin)
        blocks.read_into(memoryview(buffer), begin)
        assert buffer == whole[begin:end]


@pytest.mark.usefixtures("holding")
def test_objects_written_first_are_let_go_first():
    for number in range(4):
        keep_recent(FOLDER.with_suffix(f"/{number}"), Blocks([bytes([number]) * 30]))
    assert [find_recent(f"{FOLDER}/{number}") is not None for number in range(4)] == [False, True, True, True]
    keep_recent(FOLDER.with_suffix("/large"), Blocks([bytes(101)]))  # there is no room for it
    assert find_recent(f"{FOLDER}/large") is None
    assert find_recent(f"{FOLDER}/3") is not None
    keep_recent(FOLDER.with_suffix("/small"), Blocks([bytes(14)]))
    assert [find_recent(f"{FOLDER}/{name}") is not None for name in ("small", 1, 2, 3)] == [True] * 4
    keep_recent(FOLDER.with_suffix("/other"), Blocks([bytes(1)]))
    assert [find_recent(f"{FOLDER}/{name}") is not None for name in ("small", "other", 1)] == [False, True, True]
    hold_recent(0)
    assert find_recent(f"{FOLDER}/3") is None


@pytest.mark.usefixtures("holding")
def test_object_is_let_go_once_all_of_it_was_read():
    """Two ranges of the output may share it, and are merged in any order."""
    url = FOLDER.with_suffix("/0.bin")
    keep_recent(url, Blocks([bytes(30)]))
    let_go_read(url, 12)
    assert find_recent(url) is not None
    let_go_read(url, 18)
    assert find_recent(url) is None
    let_go_read(url, 18)  # once more, in a second attempt
    keep_recent(url.with_suffix("2"), Blocks([bytes(100)]))  # there is room for all again
    assert find_recent(url.with_suffix("2")) is not None


@pytest.mark.usefixtures("holding")
@pytest.mark.parametrize("most", [0, 10, 64, 1000])
def test_file_of_any_size_is_sent_whole(most, sent, tmp_path, monkeypatch):
    monkeypatch.setattr(held_file, "HELD_BYTES", most)
    file = HeldFile(str(tmp_path), "0.bin")
    content = random.Random(0).randbytes(90)
    for begin in range(0, 90, 9):
        file.write(memoryview(content)[begin : begin + 9])
    stored = file.finish()
    assert (stored.name, stored.size_bytes) == ("0.bin", 90)
    assert os.listdir(tmp_path) == []  # in memory, or in a file without a name
    file.send(FOLDER)
    file.close(keep=True)
    assert sent == {f"{FOLDER}/0.bin": content}
    held = find_recent(f"{FOLDER}/0.bin")
    assert (None if held is None else held.read()) == (None if most < 90 else content)  # files are not held


def test_shard_too_large_for_one_request_is_refused(sent, tmp_path, monkeypatch):
    monkeypatch.setattr(held_file, "MOST_OBJECT_BYTES", 10)
    file = HeldFile(str(tmp_path), "0.bin")
    file.write(bytes(11))
    with pytest.raises(OutputError, match=r"s3://bucket/work/0.bin: expected a shard of .* use a smaller --shard-size"):
        file.send(FOLDER)
    assert not sent


def test_what_a_task_has_in_hand_is_held_for_its_time():
    """Whatever the room is, and whether a second attempt at the task ends first."""
    content = Blocks([b"abc"])
    with recent.holding({"s3://bucket/a": content}):
        assert find_recent("s3://bucket/a") is content
        with recent.holding({"s3://bucket/a": content}):
            pass
    assert find_recent("s3://bucket/a") is None
