"""Progress: what displays and the progress file are told, and how often."""

import contextlib
import io
import json
import re
import sys
from types import SimpleNamespace

import pytest

import dsindex
from dsindex.errors import InputError
from dsindex.runtime import progress
from dsindex.runtime.executors import ThreadExecutor
from dsindex.runtime.progress import PlainDisplay, ProgressFile, Reporter
from tests.support.golden import GOLDEN

MB = 10**6


@pytest.fixture
def clock(monkeypatch):
    """Plays time.monotonic()."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock.now)
    return clock


def test_log_gets_a_line_every_few_seconds(clock, capsys):
    executor = ThreadExecutor(1)
    with Reporter().show_on(PlainDisplay()) as reporter:
        reporter.follow(executor)
        reporter.stage("tokenize", total=11 * MB, unit="bytes", tasks=11)
        for second in range(11):
            clock.now += 1
            executor.retries += second == 7
            executor.lost_workers += second == 10
            reporter.advance(1 * MB, documents=1234, tokens=2 * MB)
    assert capsys.readouterr().err.splitlines() == [
        "tokenize: 45%, 5 of 11 shards, 1.0 MB/s, 2.0 M tokens/s, ETA 6.0 s, 6,170 documents",
        "tokenize: 91%, 10 of 11 shards, 1.0 MB/s, 2.0 M tokens/s, ETA 1.0 s, 1 retry, 12,340 documents",
        "tokenize: done in 11.0 s, 11.0 MB, 1.0 MB/s, 2.0 M tokens/s, 1 retry, 1 lost worker, 13,574 documents",
    ]


def test_terminal_gets_a_bar(monkeypatch, clock):
    for name, value in {"TERM": "xterm", "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(progress, "BAR_SECONDS", 0.0)
    with Reporter().show_on(progress.choose_display()) as reporter:
        reporter.say("a [word] first")
        reporter.stage("tokenize", total=4000, unit="bytes", tasks=2)
        clock.now += 2
        reporter.advance(1000, tokens=1000)
        reporter.stage("merge", total=0, unit="bytes")
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", sys.stderr.getvalue())
    bar = r"tokenize ━+╸?━+ 25%, 1 of 2 shards, 500 B/s, 500 tokens/s "
    assert re.search(rf"a \[word\] first.*{bar}.*merge.* done in", text, re.DOTALL)


@pytest.mark.parametrize(("error", "state", "reason"), [
    (None, "done", None),
    (InputError("a.jsonl: gone"), "failed", "a.jsonl: gone"),
    (KeyError("x"), "failed", "KeyError: 'x'"),
    (KeyboardInterrupt(), "stopped", "interrupted; 2 shards are kept"),
], ids=["done", "failed", "bug", "interrupted"])  # fmt: skip
def test_file_says_how_the_job_ended(tmp_path, error, state, reason):
    beside = tmp_path / "x.progress.json"
    with contextlib.suppress(BaseException), Reporter().show_on(ProgressFile(str(tmp_path / "x"))):
        assert json.loads(beside.read_bytes())["state"] == "running"
        if error is not None:
            error.add_note("2 shards are kept")
            raise error
    entry = json.loads(beside.read_bytes())
    assert (entry["state"], entry["error"], f"{entry['output']}.progress.json") == (state, reason, str(beside))


def test_notebook_gets_bars_and_results_as_html(monkeypatch, clock):
    pages = []
    cell = SimpleNamespace(update=pages.append)
    ipython = SimpleNamespace(HTML=str, display=lambda _html, **_: cell)
    monkeypatch.setitem(sys.modules, "ipykernel", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    with Reporter().show_on(progress.choose_display()) as reporter:
        reporter.say("<b>")
        reporter.stage("tokenize", total=400, unit="bytes", tasks=2)
        clock.now += 2
        reporter.advance(100)
    assert pages[-1].startswith('&lt;b&gt;<br>tokenize <progress value="0.25"></progress> 25%, 1 of 2 shards')
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    verified = dsindex.verify(str(GOLDEN / "missing"))._repr_html_()
    assert "MISSING" in verified
    assert "\x1b" not in verified
    assert dsindex.open(GOLDEN / "merged")._repr_html_().startswith("<pre>IndexedDataset(&#x27;")
