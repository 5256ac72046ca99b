import threading

import pytest

from dsindex.errors import LimitError
from dsindex.index import task as memory
from dsindex.index.task import MemoryGate, available_memory, check_memory
from tests.support.threads import run_together


@pytest.mark.parametrize(("statistics", "expected"), [
    ("anon 1\ninactive_file 700\nactive_file 9\n", 3700),
    ("inactive_file 1\ntotal_inactive_file 700\n", 3700),
    ("anon 1\n", 3000),
], ids=["version 2", "version 1", "none"])  # fmt: skip
def test_available_memory_is_that_of_the_tighter_limit(statistics, expected, tmp_path, monkeypatch):
    machine = available_memory()
    assert machine is not None
    assert machine > 1 << 20
    for name, content in {"limit": "5000\n", "usage": "2000\n", "statistics": statistics}.items():
        (tmp_path / name).write_text(content)
    files = tuple(str(tmp_path / name) for name in ("limit", "usage", "statistics"))
    monkeypatch.setattr(memory, "_CGROUP_FILES", (files,))
    assert available_memory() == expected


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
