"""Progress: what displays, metrics, JSON lines and the progress file are told, and how often."""

import contextlib
import errno
import json
import os
import pty
import re
import selectors
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dsindex.cli.main import main
from dsindex.errors import InputError
from dsindex.execution import local
from dsindex.execution.calls import Call, report
from dsindex.execution.dispatch import DispatchStatistics
from dsindex.execution.interrupts import TerminatedError
from dsindex.execution.progress import progress_file
from dsindex.execution.progress import reporter as progress
from dsindex.execution.progress.displays import PlainDisplay, RayMetrics, describe
from dsindex.execution.progress.progress_file import (
    ProgressFile,
    conclude,
    open_progress_file,
)
from dsindex.execution.progress.reporter import Display, Reporter, Snapshot
from dsindex.execution.progress.standard_streams import is_asked_for
from dsindex.jobs.build import run_build
from tests.support.golden import OWN
from tests.support.processes import PATIENCE_SECONDS, wait_until

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
    documents=123_456, tokens=60 * MB, seconds=10.0, speed=25.0 * MB, average_speed=20.0 * MB,
    tokens_per_second=6.0 * MB, eta_seconds=192.0, retries=0, lost_workers=0, stragglers=0,
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


def test_speed_is_that_of_the_last_seconds_and_in_the_end_the_average(clock):
    kept = Kept()
    with Reporter(kept) as reporter:
        reporter.stage("tokenize", total=10_000 * MB, unit="bytes")
        for second in range(200):
            clock.now += 1
            reporter.advance((1 if second < 100 else 21) * MB)
        assert kept.shown[-1].speed == pytest.approx(21 * MB, rel=0.01)
        assert kept.shown[-1].average_speed == pytest.approx(11 * MB)
    assert kept.ended[0].speed == pytest.approx(11 * MB)
    assert kept.ended[0].tokens_per_second == 0


def test_running_tasks_count_as_far_as_they_are(clock):
    kept = Kept()
    with Reporter(kept) as reporter:
        reporter.stage("tokenize", total=1000 * MB, unit="bytes", tasks=2)
        count = reporter.count_running(0)
        clock.now += 10
        count(100 * MB, 10, 1000)
        reporter.tick()
        snapshot = kept.shown[-1]
        assert (snapshot.done, snapshot.tasks_done, snapshot.documents, snapshot.tokens) == (100 * MB, 0, 10, 1000)
        assert snapshot.speed == pytest.approx(10 * MB)
        assert snapshot.tokens_per_second == pytest.approx(100)
        assert snapshot.eta_seconds == pytest.approx(90)
        count(20 * MB, 2, 200)  # a second attempt, which is not there yet
        reporter.tick()
        assert kept.shown[-1].done == 100 * MB
        reporter.advance(500 * MB, documents=50, tokens=5000, task=0)
        count(200 * MB, 20, 2000)  # an attempt that lost
        reporter.tick()
        snapshot = kept.shown[-1]
        assert (snapshot.done, snapshot.tasks_done, snapshot.documents, snapshot.tokens) == (500 * MB, 1, 50, 5000)
        assert snapshot.average_speed == pytest.approx(50 * MB)


def report_until_heard(heard):
    """Report as a shard does, until the driver has heard it."""
    text_bytes = 0
    while not os.path.exists(heard):
        text_bytes += 1
        report(text_bytes, 2, 3)
        time.sleep(0.01)
    return "done"


@pytest.mark.parametrize("kind", [local.ThreadExecutor, local.ProcessExecutor])
def test_driver_hears_what_a_call_reports(kind, tmp_path):
    heard = []

    def listener(*amounts):
        heard.append(amounts)
        (tmp_path / "heard").touch()

    with contextlib.closing(kind(1)) as executor:
        arguments = (str(tmp_path / "heard"),)
        executor.start(Call(name="x", place="x", function=report_until_heard, arguments=arguments, listener=listener))
        ended = []
        wait_until(lambda: bool(ended.extend(executor.wait(0.1)) or ended))
    assert [outcome.value for outcome in ended] == ["done"]
    assert heard == sorted(heard)
    assert heard[0][1:] == (2, 3)


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


def in_folder(folder):
    """Return the display of a work folder."""
    return ProgressFile(
        open_progress_file(str(folder / "progress.json"), temporary=f"{folder}/progress.json.tmp"), output="/x"
    )


class Folder:
    """A progress file beside an output."""

    def __init__(self, folder):
        self.path, self.temporary = folder / "x.progress.json", folder / "x.progress.json.0.partial"

    def open(self):
        return open_progress_file(str(self.path), temporary=str(self.temporary))

    def show(self):
        return ProgressFile(self.open(), output=str(self.path.with_name("x")))

    def read(self):
        assert not self.temporary.exists()
        return json.loads(self.path.read_bytes())


@pytest.fixture
def beside(tmp_path):
    return Folder(tmp_path)


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
    assert entry["output"] == str(beside.path.with_name("x"))


@pytest.mark.parametrize("theirs", ["mine", '{"format": "notes"}', "", "[]"], ids=["text", "json", "empty", "list"])
def test_file_of_the_user_is_never_replaced(beside, theirs):
    beside.path.write_text(theirs)
    file = beside.open()
    with Reporter().showing(ProgressFile(file, output="/x")):
        assert file.is_foreign
    assert beside.path.read_text() == theirs
    assert not beside.temporary.exists()


def test_link_of_the_user_is_never_followed(beside, tmp_path):
    target = tmp_path / "elsewhere.json"
    with Reporter().showing(ProgressFile(open_progress_file(str(target), temporary=f"{target}.0"), output="/x")):
        pass
    before = target.read_bytes()
    beside.path.symlink_to(target)
    with Reporter().showing(beside.show()):
        pass
    assert beside.path.is_symlink()
    assert target.read_bytes() == before


@pytest.mark.parametrize("is_edited", [True, False], ids=["edited", "removed"])
def test_file_that_the_user_changes_meanwhile_is_theirs(beside, *, is_edited):
    with Reporter().showing(beside.show()):
        if is_edited:
            beside.path.write_text(beside.path.read_text() + "my notes")
        else:
            beside.path.unlink()
    if is_edited:
        assert beside.path.read_text().endswith("my notes")
    else:
        assert beside.read()["state"] == "done"


def test_full_disk_does_not_leave_the_file_running(beside, monkeypatch):
    def refuse(*_paths):
        raise OSError(errno.ENOSPC, "full")

    with contextlib.suppress(InputError), Reporter().showing(beside.show()):
        monkeypatch.setattr(progress_file.os, "replace", refuse)
        raise InputError("the disk is full")
    assert beside.read()["state"] == "failed"


def test_file_of_a_driver_that_was_killed_after_it_published(beside):
    with Reporter().showing(beside.show()):
        pass
    beside.path.write_text(json.dumps({**beside.read(), "state": "running"}))
    conclude(beside.open())
    assert beside.read()["state"] == "done"
    before = beside.path.read_bytes()
    conclude(beside.open())
    assert beside.path.read_bytes() == before


def test_build_tells_other_tools_how_it_goes(make_config, monkeypatch):
    config = make_config(keep_shards=True, shard_size="4KiB")
    monkeypatch.setattr(ProgressFile, "seconds", 0.0)
    folder = Path(f"{config.output_prefix}.build")
    lasting = Path(f"{config.output_prefix}.progress.json")
    watched = []

    class Watching(Kept):
        def end(self, _snapshot):
            watched.extend(json.loads(path.read_bytes())["state"] for path in (folder / "progress.json", lasting))

    run_build(config, reporter=Reporter(Watching()))
    assert watched == ["running"] * 4
    assert json.loads((folder / "progress.json").read_bytes())["state"] == "done"
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
    close = local.ThreadExecutor.close

    def closing(executor):
        seen.append(json.loads(path.read_bytes()))
        close(executor)

    def interrupt(*_):
        raise TerminatedError

    monkeypatch.setattr(local.ThreadExecutor, "close", closing)
    monkeypatch.setattr(Kept, "show", interrupt)
    with pytest.raises(TerminatedError):
        run_build(config, reporter=Reporter(Kept()))
    assert seen[-1]["state"] == json.loads(path.read_bytes())["state"] == "stopped"
    assert re.match(r"terminated; \d+ of \d+ shards are finished and kept", seen[-1]["error"])


def test_errors_are_json_lines_too(tmp_path, cli):
    words = ["build", "--tokenizer-model", str(OWN.plain_tokenizer), "--output-prefix", str(tmp_path / "x")]
    line = json.loads(cli([*words, "--input", "/nowhere.jsonl", "--log-json"], 1).err)
    assert (line["event"], line["exit_code"]) == ("error", 1)
    assert "/nowhere.jsonl: cannot be read" in line["message"]
    (tmp_path / "c.yaml").write_text(f"log_json: true\ninput: [{tmp_path}/none]\n")
    assert json.loads(cli([*words, "--config", str(tmp_path / "c.yaml")], 1).err)["event"] == "error"


@pytest.mark.parametrize(("words", "message"), [
    (["--shard-size"], "dsindex build: argument --shard-size: expected one argument"),
    (["--replace", "--replace"], "dsindex build: argument --fresh: expected once, got it twice; leave one out"),
    (["--workers", "0"], "dsindex build: "),
], ids=["argument", "twice", "value"])  # fmt: skip
@pytest.mark.parametrize("flag", ["--log-json", "--log-j"])
def test_wrong_usage_is_a_json_line_too(words, message, flag, capsys):
    before = sys.stderr
    assert main(["build", flag, *words]) == 2
    assert sys.stderr is before
    shown = capsys.readouterr()
    line = json.loads(shown.err)
    assert (line["event"], line["exit_code"]) == ("error", 2)
    assert line["message"].startswith(message)
    assert shown.out == ""


def test_log_of_a_whole_job_is_json_lines(tmp_path, cli):
    prefix = str(tmp_path / "x")
    words = ["build", "--tokenizer-model", str(OWN.plain_tokenizer), "--output-prefix", prefix, "--executor", "local"]
    options = tmp_path / "c.yaml"
    options.write_text("log_json: true\n")
    for flags in (["--log-json", "--log-interval", "5"], ["--config", str(options)]):  # a note about a flag
        shown = cli([*words, "--input", str(OWN.docs), *flags])
        assert shown.out == ""
        lines = [json.loads(line) for line in shown.err.splitlines()]
        summary = lines[-1]
        assert summary["event"] == "summary"
        assert "lines = " in summary["message"]
        [output] = summary["outputs"]
        assert output["prefix"] == f"{prefix}_text_document"
        assert output["tokens"] > output["documents"] > 0
        assert summary["already_complete"] == (len(lines) == 1)
        if len(lines) > 1:
            assert [line["event"] for line in lines] == ["message", "stage", "stage", "summary"]
            assert "--log-interval" in lines[0]["message"]


def test_submitted_command_has_flags_of_its_own():
    assert is_asked_for(["build", "--log-json"])
    assert not is_asked_for(["build", "--input", "--", "--log-json"])
    assert not is_asked_for(["build", "--l", "--log-jsonl", "-"])
