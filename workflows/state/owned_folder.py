"""A work folder that a driver owns, on a disk or in an object store, and the rules by which its work is continued."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsindex.errors import PlanError
from dsindex.json_text import decode_json, encode_json
from workflows.state.identity import describe_changes
from workflows.state.journal import has_journal, ledger_path
from workflows.state.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from workflows.state.history import History
    from workflows.state.identity import Plan

PLAN_FILE = "plan.json"
LOCK_FILE = "owner.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkFolder(ABC):
    """A work folder that this driver owns."""

    path: str
    """Its path or its address."""
    folder_id: str
    history: History
    """The ledger's history of earlier runs."""
    keep: bool = False
    """Whether the folder stays when its job is done."""
    was_damaged: bool
    """Whether the ledger has work but its plan.json cannot be read."""

    @abstractmethod
    def start_over(self, plan: Plan | None = None) -> None:
        """Remove what earlier runs wrote, here and for their outputs, except marker and lock."""

    @abstractmethod
    def write_plan(self, plan: bytes) -> None:
        """Write plan.json."""

    @contextlib.contextmanager
    def open_ledger(self, plan: Plan, *, fresh: bool, outputs: Sequence[str] = ()) -> Iterator[Ledger]:
        """Begin or continue a plan.

        Args:
            plan: The job's plan.
            fresh: Whether the output of another plan is replaced.
            outputs: Prefixes of the job's outputs, whose locks this driver holds.

        Raises:
            FormatError: If the ledger cannot be read.
            OutputError: If the folder cannot be written.
        """
        self.write_plan(encode_json(plan.to_json()))
        ledger = Ledger(ledger_path(self.path))
        try:
            ledger.record_run(plan.to_json(), keep=self.keep, fresh=fresh, outputs=outputs)
            yield ledger
        finally:
            ledger.close()

    def read_ledger(self) -> Ledger | None:
        """Return the ledger as earlier runs left it, closed; None if there is none.

        Raises:
            FormatError: If it cannot be read.
        """
        path = ledger_path(self.path)
        if not has_journal(path):
            return None
        ledger = Ledger(path)
        ledger.close()
        return ledger


def may_be_removed(history: History, plan: Plan) -> bool:
    """Tell whether a finished plan's run may remove the work folder that has this history."""
    is_own = history.plan == decode_json(encode_json(plan.to_json()))
    return not history.keep and (is_own or (history.plan is None and not history.has_work))


def refuse_other_work(folder: WorkFolder, plan: Plan, *, fresh: bool) -> None:
    """Refuse a folder with work that the plan does not continue; with `fresh`, only work on another output.

    Raises:
        PlanError: Naming what differs.
    """
    _refuse_other_output(folder, plan)
    if not fresh:
        _refuse_other_plan(folder, plan)


def _refuse_other_output(folder: WorkFolder, plan: Plan) -> None:
    """Refuse a folder with work on another output: --fresh must not discard that."""
    stored = folder.history.plan
    if stored is None or not folder.history.has_work:
        return
    for name in ("output-prefix", "output"):
        before, now = stored["settings"].get(name), plan.settings.get(name)
        if before != now:
            msg = (
                f"{folder.path}: expected no work on another output, got work on {before or 'one of another kind'}; "
                f"choose another --work-dir, or remove this folder if nobody needs it"
            )
            raise PlanError(msg)


def _refuse_other_plan(folder: WorkFolder, plan: Plan) -> None:
    history = folder.history
    if not history.has_work:
        return
    if history.plan is None:
        msg = (
            f"{folder.path}: expected the plan of the ledger's shards, but neither plan.json nor the ledger has one "
            f"that can be read; restore one of them, or make all shards again with --fresh"
        )
        raise PlanError(msg)
    changes = describe_changes(history.plan, plan, may_grow=True)
    if changes:
        what = (
            "the kept shards of another plan are here"
            if history.finished
            else "an unfinished build of another plan is here"
        )
        msg = (
            f"{folder.path}: {what}: {'; '.join(changes)}; use the former options and inputs to continue it, "
            f"--fresh to start over, or another --work-dir"
        )
        raise PlanError(msg)
