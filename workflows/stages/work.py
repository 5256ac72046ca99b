"""The objects that a job's stages share while it owns its work folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workflows.execution.calls import Executor
    from workflows.execution.dispatch import DispatchStatistics, RetryPolicy
    from workflows.progress.reporter import Reporter
    from workflows.state.ledger import Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The objects that a job's stages share while it owns its work folder."""

    executor: Executor
    ledger: Ledger
    reporter: Reporter
    policy: RetryPolicy
    """Budgets and deadlines of tasks."""
    statistics: DispatchStatistics
    """Counts of retries, lost workers and stragglers."""
