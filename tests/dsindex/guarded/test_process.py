"""Guarded processes: whatever a record does ends its process only, and the record is known."""

import contextlib
import gc
import os
import pickle
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from dsindex.text import guarded_process as process
from dsindex.text.guarded.limits import Limits
from dsindex.text.guarded_process import GuardedWork, LimitReachedError
from tests.support.golden import ROOT
from tests.support.processes import PATIENCE_SECONDS, is_running, wait_until

SMALL = Limits(cpu_seconds=0.5, memory_bytes=200 << 20)


def guarded(limits=SMALL, **definition):
    return GuardedWork("tests.dsindex.guarded.work", definition, subject="the work", limits=limits)


def until_stopped(work, records):
    """The answers before the limit, and what is said of it."""
    answers = []
    with pytest.raises(LimitReachedError) as caught:
        answers.extend(work.run(records))
    return answers, str(caught.value)


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[11]) / os.sysconf("SC_CLK_TCK")


def test_records_are_answered_in_order_by_one_process():
    work = guarded()
    assert list(work.run([b"echo a", b"surrogate", "echo é\u2028".encode(), b"echo "])) == [
        "a",
        "\ud800",
        "é\u2028",
        "",
    ]
    assert list(work.run([])) == []
    assert list(work.run([b"pid"])) == [work.facts["pid"]]


@pytest.mark.quick(1)
@pytest.mark.parametrize(("record", "message"), [
    pytest.param(b"hang", "the work used more than 0.5 s of CPU time on this record; change it, or", id="cpu"),
    pytest.param(b"take 900", "the work needed more than 200 MiB of memory on this record; change", id="memory"),
    pytest.param(b"nest", "the work crashed on this record (SIGSEGV: data nested too deep", id="crash"),
])  # fmt: skip
def test_record_past_a_limit_is_known_and_the_next_ones_are_answered(record, message):
    work = guarded()
    answers, said = until_stopped(work, [b"echo 1", b"echo 2", record, b"echo 3"])
    assert answers == ["1", "2"]
    assert said.startswith(message)
    assert list(work.run([b"echo 3"])) == ["3"]


@pytest.mark.parametrize("record", ["hang", "take 900", "nest"])
def test_preparing_has_the_same_limits(record):
    with pytest.raises(LimitReachedError, match=r"^the work .* while it was compiled"):
        guarded(prepare=record)


def test_memory_full_of_other_records_is_not_held_against_one():
    work = guarded()
    assert list(work.run([b"keep 80", b"keep 80", b"keep 80", b"keep 80"])) == [1, 2, 1, 2]


def test_process_that_was_killed_is_replaced(tmp_path):
    work = guarded()
    record = f"die-once {tmp_path}/died".encode()
    assert list(work.run([b"echo 1", record, b"echo 2"])) == ["1", "survived", "2"]
    os.kill(next(work.run([b"pid"])), signal.SIGKILL)
    assert list(work.run([b"echo 3", b"echo 4"])) == ["3", "4"]


def test_large_records_get_more():
    work = guarded()
    padding = b" " * (8 << 20)
    assert next(work.run([b"take 300" + padding])) == 300 << 20
    assert "CPU" in until_stopped(work, [b"hang" + b" " * (1 << 18)])[1]


def test_answers_of_any_size_come_through_and_do_not_pile_up():
    """Twelve answers of 4 MiB: the child stops after 16 MiB each time and is asked on."""
    work = guarded(limits=Limits(cpu_seconds=20.0))
    size = 4 << 20
    for answer in work.run([f"repeat {size}".encode()] * 12):
        assert len(answer) == size
        assert os.fstat(work._idle[0]._answers).st_size == 0
    assert list(work.run([b"pid"])) == [work.facts["pid"]]


def test_fault_of_the_work_itself_is_no_limit():
    with pytest.raises(RuntimeError, match="KeyError: 'it'"):
        list(guarded().run([b"echo 1", b"fail it"]))


def test_texts_have_the_same_hash_in_every_process():
    assert guarded().facts["hash"] == guarded().facts["hash"]


def test_threads_have_processes_of_their_own():
    work = guarded(limits=Limits(cpu_seconds=20.0))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: list(work.run([b"echo %d" % n] * 50)), range(40)))
    assert found == [[str(n)] * 50 for n in range(40)]
    assert 1 <= len(work._idle) <= 4


def test_pickled_work_starts_its_own_process():
    work = guarded()
    copy = pickle.loads(pickle.dumps(work))  # noqa: S301
    assert copy.facts == work.facts
    assert [*copy.run([b"pid"])] != [*work.run([b"pid"])]


def test_processes_end_with_the_work():
    work = guarded()
    pid, files = work.facts["pid"], work._idle[0]._files()
    del work
    gc.collect()
    assert not is_running(pid)
    for file in files:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(file)


def test_forked_process_starts_its_own_and_leaves_the_parents():
    work = guarded()
    parents = work.facts["pid"]
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            [own] = work.run([b"pid"])
            code = 0 if own != parents else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert list(work.run([b"pid"])) == [parents]


def test_interrupted_exchange_ends_its_process(monkeypatch):
    """An answer that nobody took must never be taken for that of the next record."""
    work = guarded()

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(process, "_take_frames", interrupt)
    with pytest.raises(KeyboardInterrupt):
        next(work.run([b"echo old"]))
    monkeypatch.undo()
    assert not is_running(work.facts["pid"])
    assert list(work.run([b"echo new"])) == ["new"]


PARENT = """
import sys
from dsindex.text.guarded.limits import Limits
from dsindex.text.guarded_process import GuardedWork
work = GuardedWork("tests.dsindex.guarded.work", {}, subject="the work", limits=Limits(cpu_seconds=1000.0))
print(work.facts["pid"], flush=True)
list(work.run([sys.argv[1].encode()]))
print("answered", flush=True)
sys.stdin.read()
"""


@pytest.mark.quick(1)
@pytest.mark.parametrize("record", ["hang", "echo idle"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_its_parent(record, number):
    command = [sys.executable, "-c", PARENT, record]  # in ROOT: where `tests` is
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, process_group=0, cwd=ROOT
    ) as parent:
        pid = int(parent.stdout.readline())
        if record != "hang":
            assert parent.stdout.readline() == b"answered\n"
        if record == "hang":
            wait_until(lambda: cpu_seconds(pid) >= 0.5)
        assert is_running(pid)
        os.killpg(parent.pid, number)  # as a terminal does: the child is not of this group
        parent.wait(PATIENCE_SECONDS)
    wait_until(lambda: not is_running(pid))
