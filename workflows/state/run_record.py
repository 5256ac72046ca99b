"""The manifest's `run` part, which may differ between two runs of the same plan."""

from __future__ import annotations

import os
import platform
import socket
import time
from typing import TYPE_CHECKING, Any

import dsindex
from workflows.state.manifest import RecordedEngine, Run

if TYPE_CHECKING:
    from dsindex.text.engines import Engine
    from workflows.execution.calls import Executor
    from workflows.execution.dispatch import DispatchStatistics
    from workflows.state.identity import Plan


def describe_run(
    plan: Plan,
    *,
    began: float,
    executor: Executor,
    statistics: DispatchStatistics,
    shards: int,
    engine: Engine | None = None,
    num_reference_texts: int = 0,
    tokenizer_path: str | None = None,
) -> Run:
    """Return when, where and with what a plan was carried out.

    Args:
        plan: The job's plan, which is stored to recognise another one later.
        began: Start of the run, in seconds since the Unix epoch.
        executor: The executor of its tasks.
        statistics: Its counts of retries, lost workers and stragglers.
        shards: Number of shards.
        engine: The engine, if the job encodes.
        num_reference_texts: Texts that the reference encoded although the engine is a faster one.
        tokenizer_path: Path of the tokenizer; None if it has none.
    """
    encoded: dict[str, Any] = {}
    if engine is not None:
        encoded["engine"] = _describe_engine(engine, num_reference_texts)
    if tokenizer_path is not None:
        encoded["tokenizer_path"] = os.path.abspath(tokenizer_path)
    return Run(
        plan=plan.to_json(),
        started=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)),
        seconds=round(time.time() - began, 3),
        host=socket.gethostname(),
        executor=executor.kind,
        workers=executor.slots,
        shards=shards,
        retries=statistics.retries,
        lost_workers=statistics.lost_workers,
        stragglers=statistics.stragglers,
        dsindex=dsindex.__version__,
        python=platform.python_version(),
        **encoded,
    )


def _describe_engine(engine: Engine, num_reference_texts: int) -> RecordedEngine:
    return RecordedEngine(
        name=engine.name, version=engine.version, reason=engine.reason, reference_texts=num_reference_texts
    )
