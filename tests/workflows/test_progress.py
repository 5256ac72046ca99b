from __future__ import annotations

import contextlib
import errno
import io
import itertools
import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dsindex.errors import DsindexError, InputError
from dsindex.shards.reporting import report
from tests.support.golden import OWN
from tests.support.processes import PATIENCE_SECONDS, wait_until
from workflows.cli import main
from workflows.execution import local
from workflows.execution.calls import Call, Outcome
from workflows.execution.dispatch import DispatchStatistics
from workflows.execution.interrupts import TerminatedError
from workflows.jobs.build import run_build
from workflows.progress import progress_file
from workflows.progress import reporter as progress
from workflows.progress.choice import make_reporter
from workflows.progress.displays import JsonDisplay, PlainDisplay, describe, describe_end, format_duration
from workflows.progress.json_lines import is_asked_for, json_lines_undone
from workflows.progress.progress_file import FolderFile, LastingFile, ProgressFile, conclude, read_progress
from workflows.progress.reporter import Reporter
from workflows.progress.series import MOST_POINTS
from workflows.progress.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from workflows.options.build import BuildConfig

MB = 10**6


class Clock:
    """Plays time.monotonic()."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress.time, "monotonic", clock)
    return clock


class Kept:
    """A display that keeps what it is shown."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.shown: list[Snapshot] = []
        self.ended: list[Snapshot] = []
        self.said: list[str] = []
        self.errors: list[BaseException | None] = []

    def show(self, snapshot: Snapshot) -> None:
        self.shown.append(snapshot)

    def end(self, snapshot: Snapshot) -> None:
        self.ended.append(snapshot)

    def say(self, text: str) -> None:
        self.said.append(text)

    def close(self, error: BaseException | None) -> None:
        self.errors.append(error)


def test_time_left_is_of_fresh_work_only(clock: Clock) -> None:
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


def test_speed_is_that_of_the_last_seconds_and_in_the_end_the_average(clock: Clock) -> None:
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


def test_troubles_are_those_of_the_stage(clock: Clock) -> None:
    kept, statistics = Kept(), DispatchStatistics()
    with Reporter(kept) as reporter:
        for stage, retries in (("tokenize", 2), ("merge", 1), ("index", 0)):
            reporter.stage(stage, total=1, unit="bytes")
            reporter.watch(statistics)
            statistics.retries += retries
            clock.now += 1
            reporter.tick()
    assert [snapshot.retries for snapshot in kept.shown] == [2, 1, 0]
    assert [snapshot.retries for snapshot in kept.ended] == [2, 1, 0]


def test_displays_are_shown_as_often_as_they_want(clock: Clock) -> None:
    often, seldom = Kept(1.0), Kept(10.0)
    reporter = Reporter(often, seldom)
    reporter.stage("tokenize", total=1000, unit="bytes")
    for _ in range(400):
        clock.now += 0.125
        reporter.advance(1)
    assert len(often.shown) == 50
    assert len(seldom.shown) == 5


def test_memory_of_speeds_is_bounded(clock: Clock) -> None:
    reporter = Reporter(Kept())
    reporter.stage("tokenize", total=10**9, unit="bytes")
    for _ in range(20_000):
        clock.now += 1
        reporter.advance(1)
    assert reporter._stage is not None
    assert len(reporter._stage._samples) < 3 * progress.WINDOW_SAMPLES


def test_display_of_a_block_sees_its_stages_and_how_it_ended() -> None:
    outer, inner = Kept(), Kept()
    reporter = Reporter(outer)
    with reporter.showing(inner):
        reporter.stage("merge", total=1, unit="bytes")
        reporter.advance(1)
    assert [snapshot.stage for snapshot in inner.ended] == ["merge"]
    assert inner.errors == [None]
    assert outer.errors == []
    reporter.stage("index", total=1, unit="datasets")
    reporter.tick()
    assert {snapshot.stage for snapshot in inner.shown} == {"merge"}
    assert outer.shown[-1].stage == "index"
    broken = ValueError("broken")
    with pytest.raises(ValueError, match="broken"), reporter.showing(inner):
        raise broken
    assert inner.errors == [None, broken]


def test_running_tasks_count_as_far_as_they_are(clock: Clock) -> None:
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


def report_until_heard(heard: str) -> str:
    """Report as a shard does, until the driver has heard it."""
    text_bytes = 0
    while not os.path.exists(heard):
        text_bytes += 1
        report(text_bytes, 2, 3)
        time.sleep(0.01)
    return "done"


@pytest.mark.parametrize("kind", [local.ThreadExecutor, local.ProcessExecutor])
def test_driver_hears_what_a_call_reports(
    kind: type[local.ThreadExecutor | local.ProcessExecutor], tmp_path: Path
) -> None:
    heard: list[tuple[int, ...]] = []

    def listener(*amounts: int) -> None:
        heard.append(amounts)
        (tmp_path / "heard").touch()

    with contextlib.closing(kind(1)) as executor:
        arguments = (str(tmp_path / "heard"),)
        executor.start(Call(name="x", place="x", function=report_until_heard, arguments=arguments, listener=listener))
        ended: list[Outcome] = []
        wait_until(lambda: bool(ended.extend(executor.wait(0.1)) or ended))
    assert [outcome.value for outcome in ended] == ["done"]
    assert heard == sorted(heard)
    assert heard[0][1:] == (2, 3)


def test_build_of_one_shard_shows_progress_within_it(
    make_config: Callable[..., BuildConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = OWN.docs.read_bytes().removeprefix(b"\xef\xbb\xbf").rstrip(b"\n") + b"\n"
    (tmp_path / "large.jsonl").write_bytes(text * (1 + (8 << 20) // len(text)))
    counted: list[tuple[int, int, int]] = []
    count = Reporter.count_running

    def counting(reporter: Reporter, task: int) -> Callable[[int, int, int], None]:
        pass_on = count(reporter, task)

        def keep(*amounts: int) -> None:
            counted.append((amounts[0], amounts[1], amounts[2]))
            pass_on(*amounts)

        return keep

    monkeypatch.setattr(Reporter, "count_running", counting)
    kept = Kept()
    config = make_config(input=(str(tmp_path / "large.jsonl"),), shard_size="1GiB", workers=1, no_provenance=True)
    with Reporter(kept) as reporter:
        run_build(config, reporter=reporter)
    [tokenize] = [snapshot for snapshot in kept.ended if snapshot.stage == "tokenize"]
    assert tokenize.done == tokenize.total
    assert tokenize.tasks_total == 1
    assert counted == sorted(counted)
    assert len(set(counted)) > 2
    assert counted[-1] == (tokenize.total, tokenize.documents, tokenize.tokens)


SNAPSHOT = Snapshot(
    stage="tokenize",
    unit="bytes",
    done=250 * MB,
    total=1000 * MB,
    tasks="shards",
    tasks_done=4,
    tasks_total=16,
    documents=123_456,
    tokens=60 * MB,
    seconds=10.0,
    speed=25.0 * MB,
    average_speed=20.0 * MB,
    tokens_per_second=6.0 * MB,
    eta_seconds=192.0,
    retries=0,
    lost_workers=0,
    stragglers=0,
)


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
    with subprocess.Popen(command, stderr=theirs, env=environment, cwd=Path(__file__).parents[2]) as process:
        os.close(theirs)
        shown = b""
        while select.select([ours], [], [], PATIENCE_SECONDS)[0]:
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


# progress.json


def test_file_is_whole_at_any_moment_and_says_how_the_job_ended(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    reporter = Reporter()
    with (
        contextlib.suppress(RuntimeError),
        reporter.showing(ProgressFile(FolderFile(str(tmp_path)).write, output="/x")),
    ):
        assert json.loads(path.read_bytes())["state"] == "running"
        reporter.stage("tokenize", total=10, unit="bytes", tasks=1)
        reporter.stage("merge", total=10, unit="bytes", tasks=1)
        state = json.loads(path.read_bytes())
        assert [stage["stage"] for stage in state["finished_stages"]] == ["tokenize"]
        raise RuntimeError("no disk")
    state = json.loads(path.read_bytes())
    assert state["format"] == "dsindex progress 1"
    assert (state["state"], state["error"], state["pid"]) == ("failed", "RuntimeError: no disk", os.getpid())
    assert os.listdir(tmp_path) == ["progress.json"]


def test_file_has_a_stage_over_its_time_in_few_points(tmp_path: Path) -> None:
    file = ProgressFile(FolderFile(str(tmp_path)).write, output="/x")
    path = str(tmp_path / "progress.json")
    for second in range(2000):
        file.show(replace(SNAPSHOT, seconds=second + 1.0, done=second + 8, average_speed=1.0, retries=second // 1500))
    file.end(replace(SNAPSHOT, seconds=2001.5, done=2007, retries=1, lost_workers=2))
    file.show(replace(SNAPSHOT, stage="merge", seconds=0.5, done=1, average_speed=2.0))
    entry = read_progress(path)
    assert entry is not None
    series = entry["finished_stages"][0]["series"]
    assert 60 < len(series) <= MOST_POINTS
    assert (series[0], series[-1]) == ([0.0, 7, 0, 0], [2001.5, 2007, 1, 2])  # 7 were kept from an earlier run
    times = [point[0] for point in series]
    assert max(later - time for time, later in itertools.pairwise(times)) < 2000 / 50
    assert [point[:2] for point in entry["stage"]["series"]] == [[0.0, 0], [0.5, 1]]
    file.close(OSError("full"))
    entry = read_progress(path)
    assert entry is not None
    assert [stage["series"] for stage in (entry["stage"], *entry["finished_stages"])] == [[], []]


def test_file_that_cannot_be_written_does_not_end_the_job(tmp_path: Path) -> None:
    with Reporter().showing(ProgressFile(FolderFile(str(tmp_path / "gone")).write, output="/x")):
        pass
    assert not os.listdir(tmp_path)


class Folder:
    """A progress file beside an output."""

    def __init__(self, folder: Path) -> None:
        self.path, self.temporary = folder / "x.progress.json", folder / "x.progress.json.0.partial"

    def open(self) -> LastingFile:
        return LastingFile(str(self.path), temporary=str(self.temporary))

    def show(self) -> ProgressFile:
        return ProgressFile(self.open().write, output=str(self.path.with_name("x")))

    def read(self) -> dict[str, Any]:
        assert not self.temporary.exists()
        entry: dict[str, Any] = json.loads(self.path.read_bytes())
        return entry


@pytest.fixture
def beside(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def ended_by(error: BaseException, note: str | None = None) -> BaseException:
    if note is not None:
        error.add_note(note)
    return error


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (None, "done", None),
        (InputError("a.jsonl: gone"), "failed", "a.jsonl: gone"),
        (KeyError("x"), "failed", "KeyError: 'x'"),
        (ended_by(KeyboardInterrupt(), "2 shards are kept"), "stopped", "interrupted; 2 shards are kept"),
        (TerminatedError(), "stopped", "terminated"),
    ],
    ids=["done", "failed", "bug", "interrupted", "terminated"],
)
def test_file_says_how_the_job_ended(
    beside: Folder, error: BaseException | None, state: str, reason: str | None
) -> None:
    with contextlib.suppress(BaseException), Reporter().showing(beside.show()):
        assert beside.read()["state"] == "running"
        if error is not None:
            raise error
    entry = beside.read()
    assert (entry["state"], entry["error"]) == (state, reason)
    assert entry["output"] == str(beside.path.with_name("x"))


def test_file_is_written_while_the_driver_is_busy(beside: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_file, "BEAT_SECONDS", 0.01)
    with Reporter().showing(beside.show()):
        first = beside.path.stat().st_ino
        beside.path.with_name("held").hardlink_to(beside.path)  # so that no other file gets its number
        wait_until(lambda: beside.path.stat().st_ino != first)


def test_file_says_what_a_job_waits_for_until_there_is_progress(beside: Folder) -> None:
    display = beside.show()
    display.show(SNAPSHOT)
    display.say("waiting for nodes")
    display.show(SNAPSHOT)
    assert beside.read()["message"] == "waiting for nodes"
    display.show(replace(SNAPSHOT, done=SNAPSHOT.done + 1))
    assert beside.read()["message"] is None
    display.close(None)


def test_file_of_an_earlier_run_is_replaced(beside: Folder) -> None:
    for _ in range(2):
        with Reporter().showing(beside.show()):
            pass
        assert beside.read()["state"] == "done"


@pytest.mark.parametrize("theirs", ["mine", '{"format": "notes"}', "", "[]"], ids=["text", "json", "empty", "list"])
def test_file_of_the_user_is_never_replaced(beside: Folder, theirs: str) -> None:
    beside.path.write_text(theirs)
    file = beside.open()
    with Reporter().showing(ProgressFile(file.write, output="/x")):
        assert file.is_foreign
    assert beside.path.read_text() == theirs
    assert not beside.temporary.exists()


def test_link_of_the_user_is_never_followed(beside: Folder, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere.json"
    with Reporter().showing(ProgressFile(LastingFile(str(target), temporary=f"{target}.0").write, output="/x")):
        pass
    before = target.read_bytes()
    beside.path.symlink_to(target)
    with Reporter().showing(beside.show()):
        pass
    assert beside.path.is_symlink()
    assert target.read_bytes() == before


@pytest.mark.parametrize("is_edited", [True, False], ids=["edited", "removed"])
def test_file_that_the_user_changes_meanwhile_is_theirs(beside: Folder, *, is_edited: bool) -> None:
    with Reporter().showing(beside.show()):
        if is_edited:
            beside.path.write_text(beside.path.read_text() + "my notes")
        else:
            beside.path.unlink()
    if is_edited:
        assert beside.path.read_text().endswith("my notes")
    else:
        assert beside.read()["state"] == "done"


def test_full_disk_does_not_leave_the_file_running(beside: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_paths: str) -> None:
        raise OSError(errno.ENOSPC, "full")

    with contextlib.suppress(InputError), Reporter().showing(beside.show()):
        monkeypatch.setattr(progress_file.os, "replace", refuse)
        raise InputError("the disk is full")
    assert beside.read()["state"] == "failed"


def test_file_of_a_driver_that_was_killed_after_it_published(beside: Folder) -> None:
    with Reporter().showing(beside.show()):
        pass
    beside.path.write_text(json.dumps({**beside.read(), "state": "running"}))
    conclude(beside.open())
    assert beside.read()["state"] == "done"
    before = beside.path.read_bytes()
    conclude(beside.open())
    assert beside.path.read_bytes() == before


def test_build_tells_other_tools_how_it_goes(
    make_config: Callable[..., BuildConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(keep_shards=True, shard_size="4KiB")
    monkeypatch.setattr(ProgressFile, "seconds", 0.0)
    folder = Path(f"{config.output_prefix}.build")
    lasting = Path(f"{config.output_prefix}.progress.json")
    watched: list[str] = []

    class Watching(Kept):
        def end(self, _snapshot: Snapshot) -> None:
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


def test_build_that_is_stopped_says_so_before_its_threads_end(
    make_config: Callable[..., BuildConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(shard_size="4KiB")
    path = Path(f"{config.output_prefix}.progress.json")
    seen: list[dict[str, Any]] = []
    close = local.ThreadExecutor.close

    def closing(executor: local.ThreadExecutor) -> None:
        seen.append(json.loads(path.read_bytes()))
        close(executor)

    def interrupt(*_: object) -> None:
        raise TerminatedError

    monkeypatch.setattr(local.ThreadExecutor, "close", closing)
    monkeypatch.setattr(Kept, "show", interrupt)
    with pytest.raises(TerminatedError):
        run_build(config, reporter=Reporter(Kept()))
    assert seen[-1]["state"] == json.loads(path.read_bytes())["state"] == "stopped"
    assert re.match(r"terminated; \d+ of \d+ shards are finished and kept", seen[-1]["error"])


def test_build_that_is_refused_late_says_so_in_the_file(make_config: Callable[..., BuildConfig]) -> None:
    config = make_config(max_record_size=8)
    with pytest.raises(DsindexError) as refused:
        run_build(config, reporter=Reporter())
    state = json.loads(Path(f"{config.output_prefix}.progress.json").read_bytes())
    assert (state["state"], state["error"]) == ("failed", str(refused.value))


def test_errors_are_json_lines_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["build", "--tokenizer-model", str(OWN.plain_tokenizer), "--output-prefix", str(tmp_path / "x")]
    assert main([*words, "--input", "/nowhere.jsonl", "--log-json"]) == 1
    line = json.loads(capsys.readouterr().err)
    assert (line["event"], line["exit_code"]) == ("error", 1)
    assert "/nowhere.jsonl: cannot be read" in line["message"]
    (tmp_path / "c.yaml").write_text(f"log_json: true\ninput: [{tmp_path}/none]\n")
    assert main([*words, "--config", str(tmp_path / "c.yaml")]) == 1
    assert json.loads(capsys.readouterr().err)["event"] == "error"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--shard-size"], "dsindex build: argument --shard-size: expected one argument"),
        (["--fresh", "--fresh"], "dsindex build: argument --fresh: expected once, got it twice; leave one out"),
        (["--workers", "0"], "dsindex build: "),
    ],
    ids=["argument", "twice", "value"],
)
@pytest.mark.parametrize("flag", ["--log-json", "--log-j"])
def test_wrong_usage_is_a_json_line_too(
    words: list[str], message: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sys.stderr
    assert main(["build", flag, *words]) == 2
    assert sys.stderr is before
    shown = capsys.readouterr()
    line = json.loads(shown.err)
    assert (line["event"], line["exit_code"]) == ("error", 2)
    assert line["message"].startswith(message)
    assert shown.out == ""


def test_log_of_a_whole_job_is_json_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prefix = str(tmp_path / "x")
    words = ["build", "--tokenizer-model", str(OWN.plain_tokenizer), "--output-prefix", prefix, "--executor", "local"]
    options = tmp_path / "c.yaml"
    options.write_text("log_json: true\n")
    for flags in (["--log-json", "--log-interval", "5"], ["--config", str(options)]):  # a note about a flag
        assert main([*words, "--input", str(OWN.docs), *flags]) == 0
        shown = capsys.readouterr()
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


def test_submitted_command_has_flags_of_its_own() -> None:
    assert is_asked_for(["build", "--log-json"])
    assert not is_asked_for(["build", "--input", "--", "--log-json"])
    assert not is_asked_for(["build", "--l", "--log-jsonl", "-"])


# Prometheus


Gauges = dict[tuple[str, ...], float]


@pytest.fixture
def gauges(monkeypatch: pytest.MonkeyPatch) -> Gauges:
    """What is set, in place of Ray's agent: name, build and stage → value."""
    from workflows.progress import metrics

    values: Gauges = {}

    class Fake:
        def __init__(self, name: str, _description: str, tag_keys: tuple[str, ...]) -> None:
            self.name, self.labels = name, tag_keys

        def set(self, value: float, tags: dict[str, str]) -> None:
            assert tags["build"].isascii()  # Ray refuses others
            values[self.name, *(tags[label] for label in self.labels)] = value

    monkeypatch.setattr(metrics, "Gauge", Fake)
    return values


def metrics_display(build: str = "/out/x") -> Any:
    from workflows.progress.metrics import RayMetrics

    return RayMetrics(build=build)


def test_metrics_name_the_build_and_begin_at_zero(gauges: Gauges) -> None:
    display = metrics_display("/out/ä x")
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


def test_counts_of_every_stage_stay_and_other_figures_end_with_their_stage(gauges: Gauges) -> None:
    display = metrics_display()
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


def test_figures_are_repeated_while_the_driver_is_busy(gauges: Gauges, monkeypatch: pytest.MonkeyPatch) -> None:
    from workflows.progress import metrics

    monkeypatch.setattr(metrics, "BEAT_SECONDS", 0.01)
    display = metrics_display()
    display.show(SNAPSHOT)
    gauges.clear()
    wait_until(lambda: ("dsindex_speed", "/out/x", "tokenize") in gauges)
    display.close(None)
    gauges.clear()
    assert not gauges
