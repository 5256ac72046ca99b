"""What displays are shown, and how often: speeds, the time that is left, and tasks that are running."""

import contextlib
import os
import time

import pytest

from dsindex.execution import local
from dsindex.execution.calls import Call, report
from dsindex.execution.dispatch import DispatchStatistics
from dsindex.execution.progress.reporter import Reporter
from dsindex.jobs.build import run_build
from tests.jobs.progress.stage_play import MB, Kept
from tests.support.golden import OWN
from tests.support.processes import wait_until


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


def test_troubles_are_those_of_the_stage(clock):
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


def test_displays_are_shown_as_often_as_they_want(clock):
    often, seldom = Kept(1.0), Kept(10.0)
    reporter = Reporter(often, seldom)
    reporter.stage("tokenize", total=1000, unit="bytes")
    for _ in range(400):
        clock.now += 0.125
        reporter.advance(1)
    assert len(often.shown) == 50
    assert len(seldom.shown) == 5


def test_display_of_a_block_sees_its_stages_and_how_it_ended():
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


def test_build_of_one_shard_shows_progress_within_it(make_config, tmp_path, monkeypatch):
    text = OWN.docs.read_bytes().removeprefix(b"\xef\xbb\xbf").rstrip(b"\n") + b"\n"
    (tmp_path / "large.jsonl").write_bytes(text * (1 + (8 << 20) // len(text)))
    counted = []
    count = Reporter.count_running

    def counting(reporter, task):
        pass_on = count(reporter, task)

        def keep(*amounts):
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
