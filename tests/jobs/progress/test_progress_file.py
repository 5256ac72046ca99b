"""`<output>.progress.json`: whole at any moment, of this job alone, and with how the job ended."""

import contextlib
import errno
import itertools
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from dsindex.errors import DsindexError, InputError
from dsindex.execution import local
from dsindex.execution.interrupts import TerminatedError
from dsindex.execution.progress import progress_file
from dsindex.execution.progress.progress_file import (
    MOST_POINTS,
    ProgressFile,
    conclude,
    open_progress_file,
    read_progress,
)
from dsindex.execution.progress.reporter import Reporter
from dsindex.jobs.build import run_build
from tests.jobs.progress.stage_play import SNAPSHOT, Kept
from tests.support.golden import OWN
from tests.support.jobs import run_config
from tests.support.processes import wait_until


def in_folder(folder):
    """Return the display of a work folder."""
    return ProgressFile(
        open_progress_file(str(folder / "progress.json"), temporary=f"{folder}/progress.json.tmp"), output="/x"
    )


def test_file_is_whole_at_any_moment_and_says_how_the_job_ended(tmp_path):
    path = tmp_path / "progress.json"
    reporter = Reporter()
    with contextlib.suppress(RuntimeError), reporter.showing(in_folder(tmp_path)):
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


def test_file_has_a_stage_over_its_time_in_few_points(tmp_path):
    file = in_folder(tmp_path)
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


def test_file_that_cannot_be_written_does_not_end_the_job(tmp_path):
    with Reporter().showing(in_folder(tmp_path / "gone")):
        pass
    assert not os.listdir(tmp_path)


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


def test_file_is_written_while_the_driver_is_busy(beside, monkeypatch):
    monkeypatch.setattr(progress_file, "BEAT_SECONDS", 0.01)
    with Reporter().showing(beside.show()):
        first = beside.path.stat().st_ino
        beside.path.with_name("held").hardlink_to(beside.path)  # so that no other file gets its number
        wait_until(lambda: beside.path.stat().st_ino != first)


def test_file_says_what_a_job_waits_for_until_there_is_progress(beside):
    display = beside.show()
    display.show(SNAPSHOT)
    display.say("waiting for nodes")
    display.show(SNAPSHOT)
    assert beside.read()["message"] == "waiting for nodes"
    display.show(replace(SNAPSHOT, done=SNAPSHOT.done + 1))
    assert beside.read()["message"] is None
    display.close(None)


def test_file_of_an_earlier_run_is_replaced(beside):
    for _ in range(2):
        with Reporter().showing(beside.show()):
            pass
        assert beside.read()["state"] == "done"


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


def test_build_that_is_refused_late_says_so_in_the_file(make_config):
    config = make_config(max_record_size=8)
    with pytest.raises(DsindexError) as refused:
        run_config(config)
    state = json.loads(Path(f"{config.output_prefix}.progress.json").read_bytes())
    assert (state["state"], state["error"]) == ("failed", str(refused.value))
