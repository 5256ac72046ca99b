"""The thread that Ray is called in: it gets no signals, may hang, and loses its cluster; the driver goes on."""

import contextlib
import os
import signal
import socket
import threading

import pytest

from dsindex.execution import ray_thread
from dsindex.execution.calls import Call, ClusterLostError, NodeAnswer, Outcome
from dsindex.execution.interrupts import TerminatedError, stop_on_signals
from dsindex.execution.ray_thread import RayInThread

CALL = Call(name="x", place="x", function=len, arguments=("abc",))


class Cluster:
    """An executor whose calls hang until `go`, and which says in which thread each was made."""

    kind = "ray"
    is_cluster = True
    note = None
    slots = backlog = 2

    def __init__(self, during_wait=lambda: None):
        self.go = threading.Event()
        self.during_wait = during_wait
        self.threads = {"connect": threading.current_thread()}
        self.head_address = None

    def _called(self, name):
        self.threads[name] = threading.current_thread()

    def share(self, value):
        self._called("share")
        return value

    def start(self, call, *, beyond_slots=False):
        self._called("start")
        return len(call.name) + beyond_slots

    def wait(self, timeout):
        self._called("wait")
        self.during_wait()
        self.go.wait()
        self.slots = 5
        return [Outcome(attempt_id=1, value=timeout)]

    def abandon(self, attempt_id):
        self._called(f"abandon {attempt_id}")

    def on_every_node(self, call, *, timeout):
        self._called("on_every_node")
        return {call.name: NodeAnswer(value=timeout)}

    def close(self):
        self._called("close")


@pytest.fixture
def cluster():
    made = Cluster()
    yield made
    made.go.set()


def test_every_call_is_made_in_one_other_thread(cluster):
    cluster.go.set()

    def connect():
        cluster.threads["connect"] = threading.current_thread()
        return cluster

    executor = RayInThread(connect)
    assert executor.share("a") == "a"
    assert executor.start(CALL, beyond_slots=True) == 2
    assert executor.slots == 2
    assert executor.wait(7.0) == [Outcome(attempt_id=1, value=7.0)]
    assert executor.slots == 5
    executor.abandon(3)
    assert executor.on_every_node(CALL, timeout=9.0) == {"x": NodeAnswer(value=9.0)}
    executor.close()
    assert len(set(cluster.threads.values())) == 1
    assert cluster.threads.keys() == {"connect", "share", "start", "wait", "abandon 3", "on_every_node", "close"}
    assert threading.main_thread() not in cluster.threads.values()


def test_signal_stops_a_driver_that_waits_for_a_hanging_cluster(cluster):
    """And nothing more is asked of the cluster: the process ends, which ends its work."""
    cluster.during_wait = lambda: os.kill(os.getpid(), signal.SIGTERM)
    executor = RayInThread(lambda: cluster)
    with pytest.raises(TerminatedError), stop_on_signals("x"), contextlib.closing(executor):
        executor.wait(1000)
    assert cluster.threads.keys() == {"connect", "wait"}


def test_ctrl_c_while_connecting_closes_what_was_connected(cluster):
    """As in a notebook, where the process goes on."""
    closed = threading.Event()
    cluster.close = closed.set  # type: ignore[method-assign]

    def connect():
        os.kill(os.getpid(), signal.SIGINT)
        interrupted.wait()
        return cluster

    interrupted = threading.Event()
    with pytest.raises(KeyboardInterrupt):
        RayInThread(connect)
    interrupted.set()
    assert closed.wait(60)


def test_lost_head_ends_every_call(cluster, monkeypatch):
    monkeypatch.setattr(ray_thread, "KNOCK_SECONDS", 0.01)
    monkeypatch.setattr(ray_thread, "LOST_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as head:
        cluster.head_address = f"127.0.0.1:{head.getsockname()[1]}"
        cluster.during_wait = head.close
        executor = RayInThread(lambda: cluster)
        assert executor.share("a") == "a"
        with pytest.raises(ClusterLostError, match=f"{cluster.head_address}: the head of the Ray cluster has not ans"):
            executor.wait(1000)
    with pytest.raises(ClusterLostError):
        executor.start(CALL)
    executor.abandon(1)
    executor.close()
    assert "close" not in cluster.threads
