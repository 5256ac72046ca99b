"""Progress: what displays and the progress file are told, and how often."""

import contextlib
import json
import os
import pty
import re
import selectors
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dsindex.engine import progress
from dsindex.engine.dispatch import DispatchStatistics
from dsindex.engine.executors import ThreadExecutor
from dsindex.engine.interrupts import TerminatedError
from dsindex.engine.progress import (
    Display,
    PlainDisplay,
    ProgressFile,
    Reporter,
    Snapshot,
    conclude,
    describe,
)
from dsindex.errors import InputError
from dsindex.jobs.build import run_build
from tests.support.golden import OWN
from tests.support.processes import PATIENCE_SECONDS

MB = 10**6


class Clock:
    """Plays time.monotonic()."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Kept(Display):
    """A display that keeps what it is shown."""

    def __init__(self, seconds=0.0):
        self.seconds = seconds
        self.shown = []
        self.ended = []
        self.said = []
        self.errors = []

    def show(self, snapshot):
        self.shown.append(snapshot)

    def end(self, snapshot):
        self.ended.append(snapshot)

    def say(self, text):
        self.said.append(text)

    def close(self, error):
        self.errors.append(error)


SNAPSHOT = Snapshot(
    stage="tokenize", unit="bytes", done=250 * MB, total=1000 * MB, tasks="shards", tasks_done=4, tasks_total=16,
    documents=123_456, tokens=60 * MB, seconds=10.0, speed=25.0 * MB,
    tokens_per_second=6.0 * MB, eta_seconds=192.0, retries=0, lost_workers=0,
)  # fmt: skip


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress.time, "monotonic", clock)
    return clock


def test_time_left_is_of_fresh_work_only(clock):
    kept = Kept()
    reporter = Reporter(kept)
    reporter.stage("tokenize", total=1000 * MB, unit="bytes", tasks=10)
    reporter.advance(800 * MB, tasks=8, documents=80, tokens=8000, fresh=False)
    clock.now += 10
    reporter.tick()
    assert kept.shown[-1].eta_seconds is None
    assert kept.shown[-1].speed == 0
    reporter.advance(100 * MB, documents=10, tokens=1000)
    snapshot = kept.shown[-1]
    assert (snapshot.done, snapshot.tasks_done, snapshot.documents, snapshot.tokens) == (900 * MB, 9, 90, 9000)
    assert snapshot.speed == pytest.approx(10 * MB)
    assert snapshot.tokens_per_second == pytest.approx(100)
    assert snapshot.eta_seconds == pytest.approx(10)


@pytest.mark.parametrize(("changes", "expected"), [
    ({}, "4/16 shards, 123,456 documents, 25.0 MB/s, 6.0 M tokens/s, ETA 3:12 min"),
    ({"retries": 1, "lost_workers": 2, "eta_seconds": None},
     "4/16 shards, 123,456 documents, 25.0 MB/s, 6.0 M tokens/s, 1 retry, 2 lost workers"),
    ({"unit": "datasets", "done": 1, "total": 3, "documents": 0, "tokens_per_second": 0, "eta_seconds": 5.04},
     "1/3 datasets, ETA 5.0 s"),
    ({"speed": 0.0, "tokens_per_second": 0.0, "eta_seconds": None}, "4/16 shards, 123,456 documents"),
    ({"speed": 2.5e9, "documents": 0, "eta_seconds": 0.1}, "4/16 shards, 2.5 GB/s, 6.0 M tokens/s, ETA 0.1 s"),
])  # fmt: skip
def test_line_says_what_is_known(changes, expected):
    assert describe(replace(SNAPSHOT, **changes)) == expected


def test_log_gets_a_line_every_few_seconds(clock, capsys):
    statistics = DispatchStatistics()
    with Reporter(PlainDisplay()) as reporter:
        reporter.watch(statistics)
        reporter.stage("tokenize", total=11 * MB, unit="bytes", tasks=11)
        for second in range(11):
            clock.now += 1
            statistics.retries += second == 7
            reporter.advance(1 * MB)
    assert capsys.readouterr().err.splitlines() == [
        "tokenize: 45%, 5/11 shards, 1.0 MB/s, ETA 6.0 s",
        "tokenize: 91%, 10/11 shards, 1.0 MB/s, ETA 1.0 s, 1 retry",
        "tokenize: done in 11.0 s, 11/11 shards, 1.0 MB/s, 1 retry",
    ]


def test_bar_in_a_real_terminal():
    code = (
        "from dsindex.engine.progress import make_reporter; import time\n"
        "with make_reporter() as reporter:\n"
        "    reporter.say('a [word] first')\n"
        "    reporter.stage('tokenize', total=100, unit='bytes', tasks=2)\n"
        "    time.sleep(0.4); reporter.advance(50); time.sleep(2)\n"
        "    reporter.stage('merge', total=0, unit='bytes')\n"
    )
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    command = [sys.executable, "-c", code]
    with (
        subprocess.Popen(command, stderr=theirs, env=environment, cwd=Path(__file__).parents[3]) as process,
        selectors.DefaultSelector() as terminal,  # takes descriptors above 1,023, unlike select.select
    ):
        os.close(theirs)
        terminal.register(ours, selectors.EVENT_READ)
        shown = b""
        while terminal.select(PATIENCE_SECONDS):
            try:
                shown += os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
    os.close(ours)
    assert process.returncode == 0
    text = shown.decode()
    assert "a [word] first" in text
    assert re.search(r"ETA \d", text)
    assert "50%" in text
    assert "1/2 shards" in text
    assert "merge" in text
    assert "100%" in text


class Beside:
    """A progress file beside an output."""

    def __init__(self, folder):
        self.prefix, self.path = str(folder / "x"), folder / "x.progress.json"

    def show(self):
        return ProgressFile(self.prefix)

    def read(self):
        return json.loads(self.path.read_bytes())


@pytest.fixture
def beside(tmp_path):
    return Beside(tmp_path)


def ended_by(error, note=None):
    if note is not None:
        error.add_note(note)
    return error


@pytest.mark.parametrize(("error", "state", "reason"), [
    (None, "done", None),
    (InputError("a.jsonl: gone"), "failed", "a.jsonl: gone"),
    (KeyError("x"), "failed", "KeyError: 'x'"),
    (ended_by(KeyboardInterrupt(), "2 shards are kept"), "stopped", "interrupted; 2 shards are kept"),
    (TerminatedError(), "stopped", "terminated"),
], ids=["done", "failed", "bug", "interrupted", "terminated"])  # fmt: skip
def test_file_says_how_the_job_ended(beside, error, state, reason):
    with contextlib.suppress(BaseException), Reporter().showing(beside.show()):
        assert beside.read()["state"] == "running"
        if error is not None:
            raise error
    entry = beside.read()
    assert (entry["state"], entry["error"]) == (state, reason)
    assert entry["output"] == beside.prefix


def test_file_of_a_driver_that_was_killed_after_it_published(beside):
    with Reporter().showing(beside.show()):
        pass
    beside.path.write_text(json.dumps({**beside.read(), "state": "running"}))
    conclude(beside.prefix)
    assert beside.read()["state"] == "done"
    before = beside.path.read_bytes()
    conclude(beside.prefix)
    assert beside.path.read_bytes() == before


def test_build_tells_other_tools_how_it_goes(make_config, monkeypatch):
    config = make_config(keep_shards=True, shard_size="4KiB")
    monkeypatch.setattr(ProgressFile, "seconds", 0.0)
    lasting = Path(f"{config.output_prefix}.progress.json")
    watched = []

    class Watching(Kept):
        def end(self, _snapshot):
            watched.append(json.loads(lasting.read_bytes())["state"])

    run_build(config, reporter=Reporter(Watching()))
    assert watched == ["running"] * 2
    state = json.loads(lasting.read_bytes())
    assert state["state"] == "done"
    tokenize, merge = state["finished_stages"]
    assert (tokenize["stage"], merge["stage"]) == ("tokenize", "merge")
    assert tokenize["done"] == tokenize["total"] == os.path.getsize(OWN.docs)
    assert tokenize["tasks_done"] == tokenize["tasks_total"] > 1
    assert tokenize["documents"] > 0
    assert tokenize["tokens"] * 2 == merge["total"] == merge["done"]
    assert merge["tasks_done"] == merge["tasks_total"] == 1


def test_build_that_is_stopped_says_so_before_its_threads_end(make_config, monkeypatch):
    config = make_config(shard_size="4KiB")
    path = Path(f"{config.output_prefix}.progress.json")
    seen = []
    close = ThreadExecutor.close

    def closing(executor):
        seen.append(json.loads(path.read_bytes()))
        close(executor)

    def interrupt(*_):
        raise TerminatedError

    monkeypatch.setattr(ThreadExecutor, "close", closing)
    monkeypatch.setattr(Kept, "show", interrupt)
    with pytest.raises(TerminatedError):
        run_build(config, reporter=Reporter(Kept()))
    assert seen[-1]["state"] == json.loads(path.read_bytes())["state"] == "stopped"
    assert re.match(r"terminated; \d+ finished shards are kept", seen[-1]["error"])
