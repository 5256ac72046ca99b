"""The lines, bars and logs that people see."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import selectors
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import PATIENCE_SECONDS
from tests.workflows.progress.stage_play import MB, SNAPSHOT, Clock
from workflows.execution.dispatch import DispatchStatistics
from workflows.progress.choice import make_reporter
from workflows.progress.displays import JsonDisplay, PlainDisplay, describe, describe_end, format_duration
from workflows.progress.json_lines import json_lines_undone
from workflows.progress.reporter import Reporter


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "4/16 shards, 123,456 documents, 25 MB/s, 6 M tokens/s, ETA 3:12 min"),
        (
            {"retries": 1, "stragglers": 2, "lost_workers": 1, "eta_seconds": None},
            "4/16 shards, 123,456 documents, 25 MB/s, 6 M tokens/s, 1 retry, 1 lost worker, 2 stragglers",
        ),
        (
            {"unit": "datasets", "done": 1, "total": 3, "documents": 0, "tokens_per_second": 0, "eta_seconds": 5.04},
            "1/3 datasets, ETA 5.0 s",
        ),
        ({"speed": 0.0, "tokens_per_second": 0.0, "eta_seconds": None}, "4/16 shards, 123,456 documents"),
        ({"speed": 2.5e9, "documents": 0, "eta_seconds": 0.1}, "4/16 shards, 2.50 GB/s, 6 M tokens/s, ETA 0.1 s"),
    ],
)
def test_line_says_what_is_known(changes: dict[str, Any], expected: str) -> None:
    assert describe(replace(SNAPSHOT, **changes)) == expected


def test_bar_says_first_what_a_narrow_terminal_must_not_cut_off() -> None:
    shown = describe(replace(SNAPSHOT, retries=3), most_important_first=True)
    assert shown.startswith("ETA 3:12 min, 3 retries, 25 MB/s")


def test_end_says_the_average() -> None:
    assert describe_end(SNAPSHOT) == "done in 10.0 s, 4/16 shards, 123,456 documents, 20 MB/s, 6 M tokens/s"


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.04, "0.0 s"), (59.9, "59.9 s"), (60, "1:00 min"), (3600, "1:00:00 h")]
)
def test_durations(seconds: float, expected: str) -> None:
    assert format_duration(seconds) == expected


def test_log_gets_a_line_every_few_seconds(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_json_log_is_one_object_per_line(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_standard_error_decides_what_people_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert isinstance(make_reporter()._displays[0], PlainDisplay)
    with json_lines_undone():
        assert isinstance(make_reporter(log_json=True)._displays[0], JsonDisplay)


@pytest.mark.slow
def test_bar_in_a_real_terminal() -> None:
    code = (
        "from workflows.progress.choice import make_reporter; import time\n"
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
