from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import workflows.lock
from dsindex.errors import PlanError
from workflows.lock import LEASE_SECONDS, hold_lock

HOLD = """\
import sys, time
from workflows.lock import hold_lock
with hold_lock(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


def holder(path: Path) -> subprocess.Popen[str]:
    """Another process that holds the lock."""
    root = Path(__file__).parents[2]
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True, cwd=root)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_lock_is_held_once_and_given_back(tmp_path: Path) -> None:
    path = tmp_path / "owner.json"
    with hold_lock(str(path)):
        assert json.loads(path.read_bytes())["pid"] == os.getpid()
        with pytest.raises(PlanError, match="another driver works here"), hold_lock(str(path)):
            pass
        assert path.exists()
    assert os.listdir(tmp_path) == []


def test_lock_is_given_back_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), hold_lock(str(tmp_path / "owner.json")):
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []


def test_living_owner_is_named_and_a_dead_one_taken_over_at_once(tmp_path: Path) -> None:
    path = tmp_path / "owner.json"
    with holder(path) as process:
        with pytest.raises(PlanError, match=rf"another driver works here \(process {process.pid} on .*wait for it"):
            hold_lock(str(path)).__enter__()
        process.kill()
        process.wait()
        assert path.exists()
        began = time.monotonic()
        with hold_lock(str(path)):
            assert time.monotonic() - began < 1
    assert os.listdir(tmp_path) == []


def test_process_id_that_was_given_again_is_no_owner(tmp_path: Path) -> None:
    """The same number with another start time, or before the last boot, is another process."""
    path = tmp_path / "owner.json"
    with hold_lock(str(path)):
        own = json.loads(path.read_bytes())
    for change in ({"started": "1"}, {"boot": "another"}):
        path.write_text(json.dumps({**own, "token": "other", **change}))
        with hold_lock(str(path)):
            pass


def test_owner_on_another_host_has_a_lease(tmp_path: Path) -> None:
    path = tmp_path / "owner.json"
    with hold_lock(str(path)):
        own = json.loads(path.read_bytes())
    path.write_text(json.dumps({**own, "host": "elsewhere", "token": "other"}))
    with pytest.raises(PlanError, match="on elsewhere"), hold_lock(str(path)):
        pass
    fresh = time.time() - LEASE_SECONDS / 2
    os.utime(path, (fresh, fresh))
    with pytest.raises(PlanError, match="on elsewhere"), hold_lock(str(path)):
        pass
    stale = time.time() - LEASE_SECONDS - 1
    os.utime(path, (stale, stale))
    with hold_lock(str(path)):
        assert json.loads(path.read_bytes())["host"] != "elsewhere"
    assert os.listdir(tmp_path) == []


def test_lease_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflows.lock, "HEARTBEAT_SECONDS", 0.01)
    path = tmp_path / "owner.json"
    with hold_lock(str(path)):
        os.utime(path, (1, 1))
        end = time.monotonic() + 10
        while path.stat().st_mtime == 1:
            assert time.monotonic() < end
            time.sleep(0.01)


def test_lock_that_somebody_took_is_left_to_him(tmp_path: Path) -> None:
    """A driver that was frozen past its lease must not remove its successor's lock."""
    path = tmp_path / "owner.json"
    with hold_lock(str(path)):
        path.write_text('{"host": "elsewhere"}')
    assert path.read_text() == '{"host": "elsewhere"}'


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"host": 7}', b"\xff" * 9000], ids=repr)
def test_damaged_lock_is_taken_over(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "owner.json"
    path.write_bytes(content)
    stale = time.time() - 1000
    os.utime(path, (stale, stale))
    with hold_lock(str(path)):
        assert json.loads(path.read_bytes())["pid"] == os.getpid()


def test_one_of_many_takes_a_dead_lock_over(tmp_path: Path) -> None:
    path = tmp_path / "owner.json"
    with hold_lock(str(path)):
        dead = {**json.loads(path.read_bytes()), "started": "1"}
    for _ in range(40):
        path.write_text(json.dumps(dead))

        def attempt(_number: int) -> object:
            lock = hold_lock(str(path))
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
