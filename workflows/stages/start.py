"""Start a job's executor while the job is examined: what would fail is found before anything is done."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from dsindex.errors import TaskError
from dsindex.kernels.loader import count_bytes
from workflows.execution.choice import make_executor, wants_ray, wants_threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from workflows.execution.calls import Executor
    from workflows.options.config import WorkConfig


def start_and_examine(
    config: WorkConfig, examine: Callable[[], None], *, num_bytes: int, holds_gil: bool = False
) -> Executor:
    """Start the executor that the options ask for, and find out meanwhile what would fail.

    Ray takes seconds to start, and wants the main thread for that: the examination is then in another one. For a large
    input the compiled loops are loaded meanwhile.

    Raises:
        DsindexError: What the examination finds, whether or not the executor can be started; nothing is left running.
        TaskError: If Ray cannot be started or reached.
    """
    if wants_threads(config, holds_gil=holds_gil):
        count_bytes(num_bytes)
    if not wants_ray(config):
        examine()
        return make_executor(config, holds_gil=holds_gil)
    executor: Executor | None = None
    try:
        with ThreadPoolExecutor(1, thread_name_prefix="dsindex-examine") as pool:
            examination = pool.submit(examine)
            try:
                executor = make_executor(config, holds_gil=holds_gil)
            except TaskError:
                examination.result()  # a fault that it finds is the one that is told, however fast Ray fails
                raise
            examination.result()
    except BaseException:
        if executor is not None:
            executor.close()
        raise
    return executor
