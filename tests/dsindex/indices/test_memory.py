import threading

import pytest

from dsindex.errors import LimitError
from dsindex.index import task as memory
from dsindex.index.task import MemoryGate, available_memory, check_memory
from tests.support.threads import run_together


def test_available_memory_is_that_of_the_tighter_limit(monkeypatch):
    machine = available_memory()
    assert machine is not None
    assert machine > 1 << 20
    numbers = {"limit": 5000, "usage": 2000}
    monkeypatch.setattr(memory, "_CGROUP_FILES", (("limit", "usage"),))
    monkeypatch.setattr(memory, "_read_number", numbers.__getitem__)
    assert available_memory() == 3000


def test_work_that_does_not_fit_is_refused_with_both_sizes(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 3 << 30)
    check_memory(3 << 30, place="web", what="the index")
    with pytest.raises(LimitError, match=r"^web: the index takes 3\.5 GiB of memory and 3\.0 GiB are available; use a"):
        check_memory(7 << 29, place="web", what="the index")
    with pytest.raises(LimitError, match="takes"), MemoryGate().reserve(7 << 29, place="web", what="the index"):
        pass


def test_tasks_that_do_not_fit_together_run_one_after_the_other(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 100)
    gate, running, most, lock = MemoryGate(), [0], [0], threading.Lock()

    def work(_):
        with gate.reserve(40, place="p", what="w"):
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            threading.Event().wait(0.02)
            with lock:
                running[0] -= 1

    run_together(work, 6)
    assert most[0] == 2, "two of 40 fit into 100, three do not"
