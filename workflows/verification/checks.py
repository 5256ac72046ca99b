"""Checks as values: what they are called, what looking alone found, the calls that they need, and how those are judged.

Whoever plans checks only looks. `run_checks` is the one place that runs their calls, and `make_report` in `report`
folds what came of them. Both keep the order of the plan, so a report says the same wherever the checks ran and
whichever ended first.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from itertools import chain, groupby, tee
from typing import TYPE_CHECKING, Any

from workflows.execution.ordered import run_in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from workflows.execution.calls import Call, Executor
    from workflows.progress.reporter import Reporter


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call of a check."""

    call: Call
    size: int = 0
    """What it counts for in the progress display, in the stage's unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the results of a check's calls say."""

    checked: tuple[str, ...] = ()
    """What was checked to its end, where that is known only from the results."""
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What could not be checked, and why."""


def collect_findings(results: Iterable[Sequence[str]]) -> Verdict:
    """Judge calls that return findings."""
    return Verdict(findings=tuple(chain.from_iterable(results)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Something to check. One without calls was checked by looking, or tells why it cannot be checked."""

    name: str | None = None
    """What the report lists once the calls ended; None: nothing, or what the verdict says."""
    findings: tuple[str, ...] = ()
    """Known without a call."""
    notes: tuple[str, ...] = ()
    """What cannot be checked, and why."""
    steps: Iterable[Step] = ()
    """Asked for the next one when that can be started; consumed once."""
    size: int = 0
    """Of all steps."""
    shared: object = None
    """Last argument of every call, sent to each worker once; None: there is none."""
    judge: Callable[[Iterator[Any]], Verdict] = collect_findings
    """Gets the results in the order of the steps, each as soon as those before it have been taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RanCheck:
    """A check whose calls ended, and what they say."""

    check: Check
    verdict: Verdict

    @property
    def is_sound(self) -> bool:
        """True if the check has a name and found nothing, neither by looking nor by its calls."""
        return self.check.name is not None and not self.check.findings and not self.verdict.findings


def run_checks(
    checks: Sequence[Check], *, executor: Executor, reporter: Reporter, stage: str = "verify", unit: str = "bytes"
) -> list[RanCheck]:
    """Run the calls of all checks side by side; memory does not depend on how many there are.

    Args:
        checks: In the order of the report.
        executor: Where to run.
        reporter: Is told how it goes.
        stage: What the progress display calls it.
        unit: Of the sizes of steps.

    Returns:
        The checks with their verdicts, in the same order.

    Raises:
        DsindexError: The fault of the first call that has one.
    """
    reporter.stage(stage, total=sum(check.size for check in checks), unit=unit)
    planned, awaited = tee(_all_steps(checks, executor))
    with contextlib.closing(
        run_in_order(executor, (step.call for _, step in planned), on_idle=reporter.tick)
    ) as results:

        def taken() -> Iterator[tuple[int, Any]]:
            for value, (number, step) in zip(results, awaited, strict=True):
                reporter.advance(step.size)
                yield number, value

        verdicts = {
            number: checks[number].judge(value for _, value in group)
            for number, group in groupby(taken(), key=lambda numbered: numbered[0])
        }
    return [
        RanCheck(check=check, verdict=verdicts[number] if number in verdicts else check.judge(iter(())))
        for number, check in enumerate(checks)
    ]


def _all_steps(checks: Sequence[Check], executor: Executor) -> Iterator[tuple[int, Step]]:
    """Yield the steps of all checks, each with the number of its check."""
    for number, check in enumerate(checks):
        if check.shared is None:
            yield from ((number, step) for step in check.steps)
            continue
        shared = executor.share(check.shared)
        for step in check.steps:
            yield number, replace(step, call=replace(step.call, arguments=(*step.call.arguments, shared)))
