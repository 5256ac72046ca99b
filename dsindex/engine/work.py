"""The objects that a job's stages share while it owns its work folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsindex.engine.dispatch import DispatchStatistics, RetryPolicy
    from dsindex.engine.executors import Executor
    from dsindex.engine.ledger import Ledger
    from dsindex.engine.progress import Reporter
    from dsindex.store.lock import Lock


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The objects that a job's stages share while it owns its work folder."""

    executor: Executor
    ledger: Ledger
    reporter: Reporter
    policy: RetryPolicy
    """Budgets and deadlines of tasks."""
    statistics: DispatchStatistics
    """Counts of retries and lost workers."""
    work_dir: str
    keep_shards: bool
    """Whether the tokens of shards are kept once they are merged."""
    locks: tuple[Lock, ...]
    """The locks of the work folder and of each output."""

    def require_locks(self) -> None:
        """Check, before anything is published, that no other driver can have taken this job over.

        Raises:
            PlanError: If a lock was lost.
        """
        for lock in self.locks:
            lock.require_held()
