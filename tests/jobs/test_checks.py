"""Checks as values: run side by side, judged in the order of the plan, and folded into a report."""

import pytest

from dsindex.errors import FormatError
from dsindex.execution.calls import Call
from dsindex.execution.progress.reporter import Reporter
from dsindex.tools.verify_report import Check, Step, Verdict, VerifyReport, make_report, run_checks
from tests.jobs.test_dispatch import FakeExecutor


def steps(name, function, *arguments):
    return [Step(call=Call(name=name, place=name, function=function, arguments=(each,))) for each in arguments]


def report_of(checks, reporter):
    executor = FakeExecutor(last_first=True, backlog=10)
    return make_report("p", run_checks(checks, executor=executor, reporter=reporter))


def test_report_keeps_the_order_of_the_plan():
    def judge(results):
        return Verdict(checked=("sum",), findings=(f"sum {sum(results)}",), notes=("of the calls",))

    checks = [
        Check(name="looked at", findings=("found by looking",)),
        Check(name="first", steps=steps("first", lambda finding: [finding], "a", "b")),
        Check(steps=steps("sum", lambda number: number, 1, 2, 3), judge=judge),
        Check(notes=("cannot be checked",)),
        Check(name="no calls"),
        Check(name="last", steps=steps("last", lambda _: [], 0), findings=("known of the last",)),
    ]
    assert report_of(checks, Reporter()) == VerifyReport(
        prefix="p",
        checks=("no calls", "sum"),
        failed=("looked at", "first", "last"),
        findings=("found by looking", "known of the last", "a", "b", "sum 6"),
        notes=("cannot be checked", "of the calls"),
    )


def test_check_that_did_not_end_is_not_reported():
    def fail(_):
        raise FormatError("f: expected more")

    with pytest.raises(FormatError, match="expected more"):
        report_of([Check(name="whole"), Check(name="fails", steps=steps("fails", fail, 0))], Reporter())


def test_shared_value_is_the_last_argument():
    check = Check(steps=steps("a", lambda own, shared: [f"{own} {shared}"], 1, 2), shared="of all")
    assert report_of([check], Reporter()).findings == ("1 of all", "2 of all")


@pytest.mark.parametrize(("check", "verdict", "sound"), [
    (Check(name="a"), Verdict(), True), (Check(), Verdict(), False),
    (Check(name="a", findings=("b",)), Verdict(), False), (Check(name="a"), Verdict(findings=("b",)), False),
], ids=["sound", "not-checked", "found-by-looking", "found-by-calls"])  # fmt: skip
def test_only_a_check_that_ran_and_found_nothing_is_sound(check, verdict, sound):
    judged = Check(name=check.name, findings=check.findings, judge=lambda _: verdict)
    [ran] = run_checks([judged], executor=FakeExecutor(), reporter=Reporter())
    assert ran.is_sound is sound
