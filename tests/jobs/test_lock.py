import errno
import json
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import dsindex.store.lock
from dsindex.errors import OutputError, PlanError
from dsindex.store.lock import LEASE_SECONDS, hold_lock

HOLD = """\
import sys, time
from dsindex.store.lock import hold_lock
with hold_lock(sys.argv[1], what="out/x"):
    print("held", flush=True)
    time.sleep(600)
"""


def hold(path):
    return hold_lock(str(path), what="out/x")


def age(path, seconds):
    """Make the last heartbeat that old."""
    then = time.time() - seconds
    os.utime(path, (then, then))


def holder(path, *inside):
    """Another process that holds the lock, `inside` of a command that starts it."""
    root = Path(__file__).parents[2]
    program = [*inside, sys.executable, "-c", HOLD, str(path)]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True, cwd=root)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_lock_is_held_once_and_given_back(tmp_path):
    path = tmp_path / "owner.json"
    with hold(path):
        assert json.loads(path.read_bytes())["pid"] == os.getpid()
        with pytest.raises(PlanError, match="works on out/x"), hold(path):
            pass
        assert path.exists()
    assert os.listdir(tmp_path) == []


def test_living_owner_is_named_and_a_dead_one_taken_over_at_once(tmp_path):
    path = tmp_path / "owner.json"
    with holder(path) as process:
        with pytest.raises(PlanError, match=rf"another driver \(process {process.pid} on .*wait for it"):
            hold(path).__enter__()
        process.kill()
        process.wait()
        assert path.exists()
        with hold(path):  # without waiting for its lease to lapse: it would be refused
            assert json.loads(path.read_bytes())["pid"] == os.getpid()
    assert os.listdir(tmp_path) == []


def other_owner(path, **change):
    """Put the lock there of a driver that differs from this one."""
    with hold(path):
        own = json.loads(path.read_bytes())
    path.write_text(json.dumps({**own, "token": "other", **change}))


@pytest.mark.parametrize("change", [
    {"host": "elsewhere", "boot": "another"}, {"boot": "another", "started": "1"}, {"boot": None, "started": "1"},
    {"pid_namespace": "pid:[1]", "started": "1"}, {"pid_namespace": None, "started": "1"}, {"started": None},
], ids=["host", "boot", "no boot", "container", "no /proc", "no start"])  # fmt: skip
def test_owner_whose_process_cannot_be_seen_has_a_lease(tmp_path, change):
    path = tmp_path / "owner.json"
    other_owner(path, **change)
    lapses = "owner.json: another driver .process .* on .* works on out/x; wait .*; if .*, its lock lapses in"
    for heartbeat in (0, LEASE_SECONDS / 2):
        age(path, heartbeat)
        with pytest.raises(PlanError, match=rf"{lapses} \d+ s"):
            hold(path).__enter__()
    age(path, LEASE_SECONDS + 1)
    with hold(path):
        assert json.loads(path.read_bytes())["token"] != "other"
    assert os.listdir(tmp_path) == []


def test_lease_is_measured_by_the_clock_that_stamps_the_file(tmp_path, monkeypatch):
    path = tmp_path / "owner.json"
    other_owner(path, host="elsewhere", boot="another")
    monkeypatch.setattr("dsindex.store.lock.time.time", lambda: 4e9)  # this host's clock is wrong
    with pytest.raises(PlanError, match="on elsewhere"):
        hold(path).__enter__()
    assert os.listdir(tmp_path) == ["owner.json"]
    written = path.stat().st_mtime
    monkeypatch.setattr(dsindex.store.lock, "_now_there", lambda _folder: written + LEASE_SECONDS - 1)
    with pytest.raises(PlanError, match="lapses in 1 s"):
        hold(path).__enter__()
    monkeypatch.setattr(dsindex.store.lock, "_now_there", lambda _folder: written + LEASE_SECONDS)
    with hold(path):
        assert json.loads(path.read_bytes())["token"] != "other"


@pytest.mark.parametrize("own_proc", [True, False], ids=["own /proc", "the host's /proc"])
def test_owner_in_another_container_is_not_taken_for_dead(tmp_path, own_proc):
    """Its hostname and boot are this host's; its process id is another process's here, or none's."""
    path = tmp_path / "owner.json"
    container = ["unshare", "--pid", "--fork", "--kill-child", *(["--mount-proc"] if own_proc else [])]
    if subprocess.run([*container, "true"], capture_output=True).returncode != 0:
        pytest.skip("a process-id namespace cannot be made here")
    with holder(path, *container) as process:
        try:
            owner = json.loads(path.read_bytes())
            assert owner["host"] == socket.gethostname()
            with pytest.raises(PlanError, match=rf"process {owner['pid']} on .*lapses in"):
                hold(path).__enter__()
            # Nor does a driver in a third container take it over.
            command = [*container, sys.executable, "-c", HOLD, str(path)]
            third = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
            assert "lapses in" in third.stderr
        finally:
            process.kill()
    with pytest.raises(PlanError, match="lapses in"):  # dead, but that cannot be seen from here
        hold(path).__enter__()
    age(path, LEASE_SECONDS + 1)
    with hold(path):
        assert json.loads(path.read_bytes())["pid"] == os.getpid()


def test_lease_is_renewed(tmp_path, monkeypatch):
    monkeypatch.setattr(dsindex.store.lock, "HEARTBEAT_SECONDS", 0.01)
    path = tmp_path / "owner.json"
    with hold(path):
        os.utime(path, (1, 1))
        end = time.monotonic() + 120
        while path.stat().st_mtime == 1:
            assert time.monotonic() < end
            time.sleep(0.01)


def test_lock_that_somebody_took_is_left_to_him(tmp_path):
    """A driver that was frozen past its lease must not remove its successor's lock, nor keep it alive."""
    path = tmp_path / "owner.json"
    for replace in (True, False):
        with hold(path):
            if replace:
                path.unlink()
            path.write_text('{"host": "elsewhere"}')
        assert path.read_text() == '{"host": "elsewhere"}'
        path.unlink()


@pytest.mark.parametrize("content", [b"", bytes(200)], ids=["empty", "zeros"])
def test_lock_that_was_cut_off_while_it_was_written_has_a_lease(tmp_path, content):
    """Its owner may be about to write it; zeros are what a power cut leaves."""
    path = tmp_path / "owner.json"
    path.write_bytes(content)
    with pytest.raises(PlanError, match=r"another driver works on out/x; .* lapses in"):
        hold(path).__enter__()
    age(path, LEASE_SECONDS + 1)
    with hold(path):
        assert json.loads(path.read_bytes())["pid"] == os.getpid()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "content",
    [b"{", b"[1]", b'{"host": 7}', b"\xff" * 9000, b"my notes"],
    ids=["cut off", "list", "not ours", "bytes", "text"],
)
def test_file_that_is_no_lock_is_refused_and_kept(tmp_path, content):
    path = tmp_path / "owner.json"
    path.write_bytes(content)
    for seconds in (0, 1000):
        age(path, seconds)
        with pytest.raises(PlanError, match=r"owner.json: expected a lock of dsindex or nothing, got another file"):
            hold(path).__enter__()
    assert path.read_bytes() == content


@pytest.mark.parametrize(("make", "named"), [
    (lambda path: path.symlink_to(path.parent / "notes"), "a symbolic link"),
    (lambda path: path.symlink_to("nowhere"), "a symbolic link"),
    (lambda path: path.mkdir(), "a folder"),
    (lambda path: os.mkfifo(path), "a pipe, socket or device"),
], ids=["link", "dangling link", "folder", "pipe"])  # fmt: skip
def test_what_is_no_file_is_refused_and_kept(tmp_path, make, named):
    path = tmp_path / "owner.json"
    (tmp_path / "notes").write_text('{"host": "a", "pid": 1, "token": "b"}')
    age(tmp_path / "notes", 1000)
    make(path)
    with pytest.raises(PlanError, match=f"expected a lock of dsindex or nothing, got {named}; move it away"):
        hold(path).__enter__()
    assert path.is_symlink() or path.exists()
    assert sorted(os.listdir(tmp_path)) == ["notes", "owner.json"]
    assert (tmp_path / "notes").read_text() == '{"host": "a", "pid": 1, "token": "b"}'


def test_lock_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    def full(_descriptor, _data):
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "owner.json"
    monkeypatch.setattr("dsindex.store.lock.os.write", full)
    with pytest.raises(OutputError, match=r"owner.json: cannot be written \(No space"):
        hold(path).__enter__()
    assert os.listdir(tmp_path) == []
    with pytest.raises(OutputError, match=r"nowhere/owner.json: cannot be written"):
        hold(tmp_path / "nowhere" / "owner.json").__enter__()


def test_one_of_many_takes_a_dead_lock_over(tmp_path):
    path = tmp_path / "owner.json"
    with hold(path):
        dead = {**json.loads(path.read_bytes()), "started": "1"}
    for _ in range(40):
        path.write_text(json.dumps(dead))

        def attempt(_number):
            lock = hold(path)
            try:
                lock.__enter__()
            except PlanError:
                return None
            return lock

        with ThreadPoolExecutor(8) as pool:
            held = [lock for lock in pool.map(attempt, range(8)) if lock is not None]
        assert len(held) == 1
        held[0].__exit__(None, None, None)  # type: ignore[attr-defined]
        assert os.listdir(tmp_path) == []
