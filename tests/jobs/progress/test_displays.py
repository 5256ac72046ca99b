"""The lines, bars and logs that people see."""

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

from dsindex.execution.dispatch import DispatchStatistics
from dsindex.execution.progress import displays
from dsindex.execution.progress.displays import (
    JsonDisplay,
    PlainDisplay,
    RayMetrics,
    describe,
    describe_end,
    format_duration,
)
from dsindex.execution.progress.reporter import Reporter
from tests.jobs.progress.stage_play import MB, SNAPSHOT
from tests.support.processes import PATIENCE_SECONDS, wait_until


@pytest.mark.parametrize(("changes", "expected"), [
    ({}, "4/16 shards, 123,456 documents, 25 MB/s, 6 M tokens/s, ETA 3:12 min"),
    ({"retries": 1, "stragglers": 2, "lost_workers": 1, "eta_seconds": None},
     "4/16 shards, 123,456 documents, 25 MB/s, 6 M tokens/s, 1 retry, 1 lost worker, 2 stragglers"),
    ({"unit": "datasets", "done": 1, "total": 3, "documents": 0, "tokens_per_second": 0, "eta_seconds": 5.04},
     "1/3 datasets, ETA 5.0 s"),
    ({"speed": 0.0, "tokens_per_second": 0.0, "eta_seconds": None}, "4/16 shards, 123,456 documents"),
    ({"speed": 2.5e9, "documents": 0, "eta_seconds": 0.1}, "4/16 shards, 2.50 GB/s, 6 M tokens/s, ETA 0.1 s"),
])  # fmt: skip
def test_line_says_what_is_known(changes, expected):
    assert describe(replace(SNAPSHOT, **changes)) == expected


def test_bar_says_first_what_a_narrow_terminal_must_not_cut_off():
    shown = describe(replace(SNAPSHOT, retries=3), most_important_first=True)
    assert shown.startswith("ETA 3:12 min, 3 retries, 25 MB/s")


def test_end_says_the_average():
    assert describe_end(SNAPSHOT) == "done in 10.0 s, 4/16 shards, 123,456 documents, 20 MB/s, 6 M tokens/s"


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.04, "0.0 s"), (59.9, "59.9 s"), (60, "1:00 min"), (3600, "1:00:00 h")]
)
def test_durations(seconds, expected):
    assert format_duration(seconds) == expected


def test_log_gets_a_line_every_few_seconds(clock, capsys):
    statistics = DispatchStatistics()
    with Reporter(PlainDisplay()) as reporter:
        reporter.watch(statistics)
        reporter.stage("tokenize", total=100 * MB, unit="bytes", tasks=100)
        for second in range(11):
            clock.now += 1
            statistics.retries += second == 7
            reporter.advance(1 * MB)
    assert capsys.readouterr().err.splitlines() == [
        "tokenize: 5%, 5/100 shards, 1 MB/s, ETA 1:35 min",
        "tokenize: 10%, 10/100 shards, 1 MB/s, ETA 1:30 min, 1 retry",
        "tokenize: done in 11.0 s, 11/100 shards, 1 MB/s, 1 retry",
    ]


def test_json_log_is_one_object_per_line(clock, capsys):
    with Reporter(JsonDisplay()) as reporter:
        reporter.say("hello")
        reporter.stage("merge", total=100, unit="bytes")
        clock.now += 5
        reporter.advance(50)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == ["message", "progress", "stage"]
    assert lines[0]["message"] == "hello"
    assert lines[1]["eta_seconds"] == pytest.approx(5)
    assert all(line["time"].endswith("Z") for line in lines)


def test_bar_in_a_real_terminal():
    code = (
        "from dsindex.execution.progress.displays import make_reporter; import time\n"
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


# What Ray's dashboard and Prometheus get.


@pytest.fixture
def gauges(monkeypatch):
    """What is set, in place of Ray's agent: name, build and stage → value."""
    values = {}

    class Fake:
        def __init__(self, name, _description, tag_keys):
            self.name, self.labels = name, tag_keys

        def set(self, value, tags):
            assert tags["build"].isascii()  # Ray refuses others
            values[self.name, *(tags[label] for label in self.labels)] = value

    monkeypatch.setattr("ray.util.metrics.Gauge", Fake)
    return values


def test_metrics_name_the_build_and_begin_at_zero(gauges):
    display = RayMetrics(build="/out/ä x")
    display.show(replace(SNAPSHOT, documents=0, tokens=0, done=0, eta_seconds=None))
    display.close(None)
    build = "/out/\\xe4 x"
    for name in ("documents", "tokens", "retries", "lost_workers", "stragglers"):
        assert gauges.pop((f"dsindex_{name}_total", build, "tokenize")) == 0
    assert gauges.pop(("dsindex_done", build, "tokenize")) == 0
    assert gauges.pop(("dsindex_total", build, "tokenize")) == 1000 * MB
    assert {name for name, *_ in gauges} == {
        f"dsindex_{name}" for name in ("tasks_done", "tasks_total", "speed", "tokens_per_second")
    }  # nothing about the ETA, which is unknown


def test_counts_of_every_stage_stay_and_other_figures_end_with_their_stage(gauges):
    display = RayMetrics(build="/out/x")
    display.show(SNAPSHOT)
    assert gauges["dsindex_eta_seconds", "/out/x", "tokenize"] == 192.0
    display.end(replace(SNAPSHOT, documents=200_001, retries=2))
    gauges.clear()  # as Ray's agent does with what is not set again
    display.show(replace(SNAPSHOT, stage="merge", documents=0, retries=1))
    display.close(None)
    assert gauges["dsindex_documents_total", "/out/x", "tokenize"] == 200_001
    assert gauges["dsindex_retries_total", "/out/x", "tokenize"] == 2
    assert gauges["dsindex_retries_total", "/out/x", "merge"] == 1
    assert gauges["dsindex_done", "/out/x", "merge"] == 250 * MB
    assert ("dsindex_done", "/out/x", "tokenize") not in gauges


def test_figures_are_repeated_while_the_driver_is_busy(gauges, monkeypatch):
    monkeypatch.setattr(displays, "BEAT_SECONDS", 0.01)
    display = RayMetrics(build="/out/x")
    display.show(SNAPSHOT)
    gauges.clear()
    wait_until(lambda: ("dsindex_speed", "/out/x", "tokenize") in gauges)
    display.close(None)
    gauges.clear()
    assert not gauges
