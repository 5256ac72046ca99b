"""Checks as values: a name, findings known at once, the calls still to run, and how to judge their results.

Planning a check reads little and runs nothing. `run_checks` runs the calls of all checks, and `make_report` in `report`
collects the results. Both keep the order of the checks, so a report does not depend on where they ran or which ended
first.
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
    """Size in the progress display, in the stage's unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The conclusion from the results of a check's calls."""

    checked: tuple[str, ...] = ()
    """Names of completed checks that are known only from the results."""
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Sentences about parts that could not be checked, and why."""


def collect_findings(results: Iterable[Sequence[str]]) -> Verdict:
    """Judge calls that return findings."""
    return Verdict(findings=tuple(chain.from_iterable(results)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check. Without steps it is already complete, or its notes say why it cannot be made."""

    name: str | None = None
    """The name in the report; None: not listed, or named by the verdict."""
    findings: tuple[str, ...] = ()
    """Findings known without a call."""
    notes: tuple[str, ...] = ()
    """Sentences about parts that cannot be checked, and why."""
    steps: Iterable[Step] = ()
    """The steps, consumed once and only as they can be started."""
    size: int = 0
    """Total size of all steps."""
    shared: object = None
    """Last argument of every call, sent to each worker once; None: no such argument."""
    judge: Callable[[Iterator[Any]], Verdict] = collect_findings
    """Called with the results in the order of the steps, as an iterator that waits for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RanCheck:
    """A completed check and its verdict."""

    check: Check
    verdict: Verdict

    @property
    def is_sound(self) -> bool:
        """Whether the check has a name and neither it nor its verdict has findings."""
        return self.check.name is not None and not self.check.findings and not self.verdict.findings


def run_checks(
    checks: Sequence[Check], *, executor: Executor, reporter: Reporter, stage: str = "verify", unit: str = "bytes"
) -> list[RanCheck]:
    """Run the calls of all checks side by side; memory does not depend on the number of calls.

    Args:
        checks: The checks, in the order of the report.
        executor: Runs the calls.
        reporter: Shows progress.
        stage: Name of the stage in the progress display.
        unit: Unit of the steps' sizes.

    Returns:
        The checks with their verdicts, in the same order.

    Raises:
        DsindexError: The error of the first call that fails.
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
