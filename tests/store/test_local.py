import contextlib
import errno
import os

import pytest
import xxhash

from dsindex.errors import InputError, OutputError
from dsindex.store import local as storage
from dsindex.store.errors import output_error
from dsindex.store.listing import find_with_beginning
from dsindex.store.lock import hold_lock
from tests.support.failing import fail_calls


def test_digest_of_known_bytes_is_pinned():
    """Changing it would make every manifest ever written a lie."""
    digester = storage.BlockDigester()
    digester.update(b"abc")
    assert digester.hexdigest() == xxhash.xxh3_128_hexdigest(xxhash.xxh3_128_digest(b"abc"))
    assert storage.combine_digests([]) == "99aa06d3014798d86001c324468d497f"


def test_atomic_writer_leaves_the_old_file_when_the_disk_is_full(tmp_path, monkeypatch):
    path = tmp_path / "f"
    path.write_bytes(b"old")
    fail_calls(monkeypatch, "fsync", errno.ENOSPC, times=1)
    with pytest.raises(OutputError, match=r"f: cannot be written \(No space left on device\)\nhint: make room"):
        storage.LOCAL.put(str(path), b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]


def test_short_writes_and_reads_are_continued(tmp_path, monkeypatch):
    pwrite, preadv = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, data[:3], offset))
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: preadv(fd, [buffers[0][:2]], offset))
    descriptor = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    try:
        storage.write_at(descriptor, b"0123456789", 5)
    finally:
        os.close(descriptor)
    with storage.LocalFile(str(tmp_path / "f")) as file:
        assert file.read_at(99, 5) == b"0123456789"


@pytest.mark.parametrize(("number", "remedy", "transient"), [
    (errno.EDQUOT, "make room", False), (errno.EROFS, "choose a folder that you may write to", False),
    (errno.EIO, "rerun the command", True), (errno.EMFILE, "ulimit -n", False),
], ids=["EDQUOT", "EROFS", "EIO", "EMFILE"])  # fmt: skip
def test_output_error_says_what_to_do(number, remedy, transient):
    error = output_error("out.bin", OSError(number, os.strerror(number)))
    assert str(error).startswith(f"out.bin: cannot be written ({os.strerror(number)})\nhint: ")
    assert remedy in str(error)
    assert error.transient is transient


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO], ids=["EINVAL", "EIO"])
def test_sync_folder_forgives_only_what_the_file_system_cannot_do(tmp_path, monkeypatch, number):
    fail_calls(monkeypatch, "fsync", number, times=1)
    fails = pytest.raises(OutputError, match=f"{tmp_path}: cannot be written .Input/output error")
    with fails if number == errno.EIO else contextlib.nullcontext():
        storage.sync_folder(str(tmp_path))


def test_lock_on_a_disk_that_fails_is_refused(tmp_path, monkeypatch):
    """It is not a lock that its owner has removed, after which the next attempt would succeed."""
    fail_calls(monkeypatch, "lstat", errno.ESTALE, times=99)
    with pytest.raises(OutputError, match=r"x: cannot be written \(Stale"), hold_lock(f"{tmp_path}/x", resource="x"):
        pass


PASSING = {errno.EIO: "Input/output error", errno.ESTALE: "Stale file handle"}


READS = {
    "preadv": lambda path: storage.LOCAL.open(path).read(),
    "open": lambda path: storage.LOCAL.read(path)[0],
    "stat": lambda path: b"content"[: storage.LOCAL.head(path).size_bytes],
    "scandir": lambda path: b"content" if storage.LOCAL.list(os.path.dirname(path)) else b"",
}


@pytest.mark.parametrize("number", PASSING)
@pytest.mark.parametrize("name", READS)
def test_reading_goes_on_after_three_errors_of_a_disk_and_the_fourth_is_an_error(tmp_path, monkeypatch, name, number):
    path = str(tmp_path / "file")
    (tmp_path / "file").write_bytes(b"content")
    fail_calls(monkeypatch, name, number, times=3)
    assert READS[name](path) == b"content"
    fail_calls(monkeypatch, name, number, times=4)
    with pytest.raises((OSError, InputError), match=PASSING[number]) as raised:
        READS[name](path)
    assert str(tmp_path) in str(raised.value)
    assert getattr(raised.value, "transient", True)


def test_what_cannot_be_read_is_not_absent(tmp_path, monkeypatch):
    """A marker, a state.json or a folder that returned an error is not one that is not there."""
    assert storage.LOCAL.read(str(tmp_path / "none")) is None
    assert storage.LOCAL.list(str(tmp_path / "none")) == []
    (tmp_path / "file").write_bytes(b"content")
    for name, read, path in (
        ("open", storage.LOCAL.read, tmp_path / "file"), ("scandir", storage.LOCAL.list, tmp_path),
        ("scandir", find_with_beginning, tmp_path / "fi"),
    ):  # fmt: skip
        fail_calls(monkeypatch, name, errno.EACCES, times=1)
        with pytest.raises(InputError, match="Permission denied"):
            read(str(path))
