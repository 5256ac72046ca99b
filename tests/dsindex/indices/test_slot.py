"""One cache on disk: no kill leaves a mixture that Megatron would take, and nobody else's file is written over."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import dsindex.index.slot
from dsindex.errors import OutputError
from dsindex.index.slot import CacheSlot, has_recorded_files, lock_slot, read_record, write_content, write_slot

NAMES = ("a.npy", "b.npy", "c.npy", "description.txt")


def slot_in(folder):
    return CacheSlot(paths=tuple(str(folder / name) for name in NAMES), record=str(folder / "dsindex.json"))


def contents(number):
    """Another cache for each number; the description is the same, since its name is its hash."""
    return (*(np.full(9 + number, number, np.int32) for _ in range(3)), b"{}")


def put(folder, number):
    slot = slot_in(folder)
    with lock_slot(slot):
        return write_slot(slot, contents(number), {"settings": {"number": number}})


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def cache(folder):
    return {name: content for name, content in files(folder).items() if name in NAMES}


@pytest.fixture
def whole(tmp_path_factory):
    """What the cache of a number is when nothing happens."""

    def write(number):
        folder = tmp_path_factory.mktemp("whole")
        assert not put(folder, number)
        return files(folder)

    return write


@pytest.mark.parametrize("array", [
    np.arange(7, dtype=np.int32),
    np.zeros((1, 2), np.int32),
    np.arange(12, dtype=np.int64).reshape(6, 2),
    np.zeros(0, np.uint32),
    np.arange(3, dtype=np.int16),
    np.arange(10, dtype=np.uint32)[::2],
], ids=["int32", "one-row", "rows", "empty", "int16", "strided"])  # fmt: skip
def test_array_is_written_as_numpy_saves_it(array, tmp_path):
    np.save(tmp_path / "numpy.npy", array, allow_pickle=True)
    write_content(str(tmp_path / "ours.npy"), array)
    assert (tmp_path / "ours.npy").read_bytes() == (tmp_path / "numpy.npy").read_bytes()
    assert len(list(tmp_path.iterdir())) == 2, "no temporary file is left"


@pytest.mark.quick(1)
@pytest.mark.parametrize("locks", [True, False], ids=["flock", "no flock"])
def test_tasks_that_write_one_cache_at_once_leave_no_mixture(tmp_path, whole, monkeypatch, locks):
    """On a file system without flock one of them stops instead of waiting."""
    if not locks:

        def flock(_descriptor, _operation):
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr("dsindex.index.slot.fcntl.flock", flock)

    def attempt(number):
        try:
            put(tmp_path, number)
        except OutputError:
            return False
        return True

    expected = {number: {name: whole(number)[name] for name in NAMES} for number in range(2)}
    for _ in range(40):
        with ThreadPoolExecutor(2) as pool:
            done = list(pool.map(attempt, range(2)))
        assert not slot_in(tmp_path).exists() or cache(tmp_path) in expected.values()
        assert all(done) or not locks
    while not attempt(0):
        pass
    assert cache(tmp_path) == expected[0]
    assert not (tmp_path / "dsindex.lock").exists()


@pytest.mark.parametrize("missing", ["description.txt", "b.npy", None])
def test_another_programs_cache_that_differs_is_refused_and_kept(tmp_path, whole, missing):
    """One that is not whole may be about to be built by a job."""
    for name in NAMES:
        if name != missing:
            (tmp_path / name).write_bytes(whole(1)[name])
    before = files(tmp_path)
    with pytest.raises(
        OutputError, match=r"a.npy: expected no file or one that dsindex wrote, got another one, .*move"
    ):
        put(tmp_path, 2)
    assert files(tmp_path) == before


def test_file_that_was_put_into_our_cache_is_refused_and_kept(tmp_path):
    put(tmp_path, 1)
    (tmp_path / "b.npy").write_bytes(b"my own")
    before = files(tmp_path)
    with pytest.raises(OutputError, match=r"b.npy: expected no file or one that dsindex wrote"):
        put(tmp_path, 2)
    assert files(tmp_path) == before
    (tmp_path / "b.npy").unlink()
    assert not put(tmp_path, 2)


@pytest.mark.parametrize("name", ["a.npy", "description.txt"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "dangling link", "link"])
def test_what_is_no_file_is_refused_and_kept(tmp_path, name, kind):
    folder = tmp_path / "cache"
    folder.mkdir()
    put(folder, 1)
    (folder / name).unlink()
    if kind == "pipe":
        os.mkfifo(folder / name)
    elif kind == "folder":
        (folder / name).mkdir()
    else:
        (folder / name).symlink_to(tmp_path / "mine")
        if kind == "link":
            (tmp_path / "mine").write_text("mine")
    before = os.lstat(folder / name)
    with pytest.raises(OutputError, match=f"{name}: expected no file or one that dsindex wrote"):
        put(folder, 2)
    assert os.path.samestat(os.lstat(folder / name), before)
    if kind == "link":
        assert (tmp_path / "mine").read_text() == "mine"


def test_lock_file_of_somebody_else_is_refused_and_kept(tmp_path):
    (tmp_path / "dsindex.lock").write_text("mine")
    with pytest.raises(OutputError, match=r"dsindex.lock: expected the empty lock file of dsindex or nothing"):
        put(tmp_path, 1)
    assert files(tmp_path) == {"dsindex.lock": b"mine"}


def test_dead_writers_lock_is_taken_over_where_the_system_can_tell(tmp_path, monkeypatch):
    (tmp_path / "dsindex.lock").touch()
    assert not put(tmp_path, 1)

    def flock(_descriptor, _operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("dsindex.index.slot.fcntl.flock", flock)
    (tmp_path / "dsindex.lock").touch()
    with pytest.raises(OutputError, match=r"dsindex.lock: another process is writing .*, or was .*remove this file"):
        put(tmp_path, 2)


def test_task_that_waits_too_long_says_for_what(tmp_path, monkeypatch):
    monkeypatch.setattr(dsindex.index.slot, "WAIT_SECONDS", 0.0)
    with lock_slot(slot_in(tmp_path)), pytest.raises(OutputError, match="another process is writing this cache; wait"):
        put(tmp_path, 1)
    assert not put(tmp_path, 1)


@pytest.mark.parametrize("record", [
    "{",
    "[]",
    '{"version": 99}',
    '{"version": 1, "files": []}',
    '{"version": 1, "files": {"a.npy": [[1]]}}',
    '{"version": 1, "files": {"a.npy": [["1", 2]]}, "building": "../../x"}',
    '{"version": 1, "files": {"a.npy": 7}, "building": 7}',
])  # fmt: skip
def test_damaged_record_proves_nothing(tmp_path, record):
    put(tmp_path, 1)
    (tmp_path / "dsindex.json").write_text(record)
    with pytest.raises(OutputError, match=r"a.npy: expected no file or one that dsindex wrote"):
        put(tmp_path, 2)
    assert not has_recorded_files(slot_in(tmp_path), read_record(str(tmp_path / "dsindex.json")) or {})
    assert put(tmp_path, 1)
