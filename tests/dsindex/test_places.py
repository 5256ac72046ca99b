"""Shards that write their tokens in place: when places become known, and what writes a file of its own."""

import copy
import os
import subprocess
import sys
import threading

import pytest

from dsindex.engine.shards import places as places_module
from dsindex.engine.shards.places import PlacedFile, TokenPlaces
from dsindex.errors import OutputError
from dsindex.store.storage import StoredSection
from tests.support.processes import wait_until


@pytest.fixture
def places(tmp_path):
    for name in ("a.bin", "b.bin", "sizes"):
        (tmp_path / name).touch()
    opened = TokenPlaces(str(tmp_path), "sizes", {"a": "a.bin", "b": "b.bin"}, {"a": 3, "b": 0}, 1)
    opened.open()
    yield opened
    opened.close()


def open_tokens(claim, folder, *, key="a"):
    return PlacedFile(claim, key, str(folder), f"own.{claim.shard}.{key}.bin")


def end(file, *, sizes):
    """Finish a shard whose only tokens are in one file."""
    claim = file._tokens._claim
    claim.places.tell(claim.shard, [sizes])
    stored = file.finish()
    file.close(keep=True)
    claim.places.drop(claim)
    return stored


def test_shards_write_one_after_the_other(places, tmp_path):
    first, second = (open_tokens(places.claim(shard), tmp_path) for shard in (0, 1))
    second.write(b"second")
    first.write(b"fir")
    assert (tmp_path / "a.bin").read_bytes() == b"\0\0\0fir"
    first.write(b"st")
    assert end(first, sizes={"a": 5, "b": 0}).begin == 3
    second.write(b"!")
    stored = end(second, sizes={"a": 7, "b": 0})
    assert (stored.name, stored.begin, stored.size_bytes) == ("a.bin", 8, 7)
    assert (tmp_path / "a.bin").read_bytes() == b"\0\0\0firstsecond!"
    assert not list(tmp_path.glob("own.*"))


def test_shards_that_are_kept_leave_room(places, tmp_path):
    places.tell(1, [{"a": 10, "b": 4}])
    first = open_tokens(places.claim(0), tmp_path)
    first.write(b"xy")
    third = open_tokens(places.claim(2), tmp_path, key="b")
    third.write(b"z")
    assert end(first, sizes={"a": 2, "b": 1}).begin == 3
    assert end(third, sizes={"a": 0, "b": 1}).begin == 5
    assert (tmp_path / "b.bin").read_bytes() == b"\0\0\0\0\0z"


def test_a_complete_shard_waits_for_one_that_is_being_made(places, tmp_path):
    first, second = (open_tokens(places.claim(shard), tmp_path) for shard in (0, 1))
    second.write(b"second")
    ended = []
    thread = threading.Thread(target=lambda: ended.append(end(second, sizes={"a": 6, "b": 0})))
    thread.start()
    wait_until(lambda: places._read(1, 1)[0][0] < 0)
    first.write(b"first")
    end(first, sizes={"a": 5, "b": 0})
    thread.join()
    assert isinstance(ended[0], StoredSection)
    assert (tmp_path / "a.bin").read_bytes() == b"\0\0\0firstsecond"


@pytest.mark.parametrize("ending", ["failed", "never begun", "no room"])
def test_a_complete_shard_does_not_wait_for_nothing(places, tmp_path, ending):
    if ending == "failed":
        places.drop(places.claim(0))
    if ending == "no room":  # then it waits no longer than it took so far
        places.claim(0)
        places._most_waiting = 0
    second = open_tokens(places.claim(1), tmp_path)
    second.write(b"second")
    stored = end(second, sizes={"a": 6, "b": 0})
    assert not isinstance(stored, StoredSection)
    assert (tmp_path / stored.name).read_bytes() == b"second"
    assert (tmp_path / "a.bin").read_bytes() == b""


def test_a_waiting_shard_goes_on_when_the_one_before_fails(places, tmp_path):
    first, second = places.claim(0), open_tokens(places.claim(1), tmp_path)
    second.write(b"second")
    ended = []
    thread = threading.Thread(target=lambda: ended.append(end(second, sizes={"a": 6, "b": 0})))
    thread.start()
    wait_until(lambda: places._read(1, 1)[0][0] < 0)
    places.drop(first)
    thread.join()
    assert (tmp_path / ended[0].name).read_bytes() == b"second"


def test_few_bytes_are_held(places, tmp_path, monkeypatch):
    monkeypatch.setattr(places_module, "HELD_BYTES", 10)
    places.claim(0)
    second = open_tokens(places.claim(1), tmp_path)
    second.write(b"0123456789")
    assert not list(tmp_path.glob("own.*"))
    second.write(b"!")
    second.write(b"?")
    stored = end(second, sizes={"a": 12, "b": 0})
    assert (tmp_path / stored.name).read_bytes() == b"0123456789!?"


def test_only_one_attempt_writes_in_place(places):
    first = places.claim(0)
    assert places.claim(0).is_apart
    places.drop(first)
    again = places.claim(0)
    assert not again.is_apart
    places.tell(0, [{"a": 1, "b": 1}])
    places.drop(again)
    assert places.claim(0).is_apart  # others have begun to write after it


def test_a_second_attempt_tells_where_the_next_shard_begins(places, tmp_path):
    hangs = places.claim(0)
    second, other = (open_tokens(places.claim(shard), tmp_path) for shard in (0, 1))
    second.write(b"first")
    other.write(b"second")
    assert not isinstance(end(second, sizes={"a": 5, "b": 0}), StoredSection)
    assert end(other, sizes={"a": 6, "b": 0}).begin == 8
    assert (tmp_path / "a.bin").read_bytes() == b"\0\0\0\0\0\0\0\0second"
    assert hangs.begins == {"a": 3, "b": 0}


def test_an_attempt_begins_in_vain_once_all_are_closed(places):
    places.close()
    with pytest.raises(OutputError, match="given up"):
        places.claim(0)


def test_an_attempt_that_was_given_up_writes_no_more(places, tmp_path):
    late = open_tokens(places.claim(0), tmp_path)
    late.write(b"early")
    places.close()
    with pytest.raises(OutputError, match="given up"):
        late.write(b"late")
    late.close(keep=False)
    assert (tmp_path / "a.bin").read_bytes() == b"\0\0\0early"


def test_files_are_closed_with_the_last_attempt(places):
    claim = places.claim(0)
    descriptors = list(places._descriptors.values())
    places.close()
    os.fstat(descriptors[0])  # still open: its number cannot become another file's
    places.drop(claim)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptors[0])


def test_what_fails_is_removed(places, tmp_path):
    places.drop(places.claim(0))
    second = open_tokens(places.claim(1), tmp_path)
    second.write(b"second")
    second.finish()
    second.close(keep=False)
    assert not list(tmp_path.glob("own.*"))


WRITER = """\
import sys
from dsindex.engine.shards.places import PlacedFile, TokenPlaces

folder, shard = sys.argv[1:]
places = TokenPlaces(folder, "sizes", {"a": "a.bin", "b": "b.bin"}, {"a": 3, "b": 0}, 1)
claim = places.claim(int(shard))
file = PlacedFile(claim, "a", folder, f"own.{claim.shard}.bin")
file.write(b"other")
print(flush=True)
if input() == "end":
    places.tell(claim.shard, [{"a": 5, "b": 0}])
    print(file.finish().name)
    places.drop(claim)
"""


@pytest.fixture
def writer(tmp_path):
    """Start another process that makes a shard, and wait until it has its tokens."""
    begun = []

    def begin(shard):
        command = [sys.executable, "-c", WRITER, str(tmp_path), str(shard)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        begun.append(process)
        process.stdout.readline()
        return process

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


def test_processes_write_one_after_the_other(places, tmp_path, writer):
    other = writer(0)
    assert places.claim(0).is_apart
    second = open_tokens(places.claim(1), tmp_path)
    second.write(b"second")
    assert other.communicate("end\n")[0] == "a.bin\n"
    stored = end(second, sizes={"a": 6, "b": 0})
    assert (stored.name, stored.begin) == ("a.bin", 8)
    assert (tmp_path / "a.bin").read_bytes() == b"\0\0\0othersecond"


def test_a_killed_process_is_not_waited_for(places, tmp_path, writer):
    other = writer(0)
    second = open_tokens(places.claim(1), tmp_path)
    second.write(b"second")
    other.kill()
    other.wait()
    assert not isinstance(end(second, sizes={"a": 6, "b": 0}), StoredSection)
    assert not places.claim(0).is_apart


def test_files_that_are_gone_are_an_error_of_the_work_folder(places, tmp_path):
    other = copy.copy(places)
    (tmp_path / "sizes").unlink()
    with pytest.raises(OutputError, match=str(tmp_path)):
        other.claim(0)
