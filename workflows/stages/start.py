"""Start a job's executor while the job is examined for problems, before any work is done."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from dsindex.errors import TaskError
from dsindex.kernels.loader import count_bytes
from workflows.execution.choice import make_executor, wants_ray, wants_threads
from workflows.execution.interrupts import raise_missed_stop

if TYPE_CHECKING:
    from collections.abc import Callable

    from workflows.execution.calls import Executor
    from workflows.options.config import WorkConfig


def start_and_examine(
    config: WorkConfig, examine: Callable[[], None], *, num_bytes: int, holds_gil: bool = False
) -> Executor:
    """Start the executor that the options ask for, and examine the job for problems meanwhile.

    Ray takes seconds to start, so the examination then runs in another thread. For a large input, the kernels are
    loaded in the background.

    Raises:
        DsindexError: A problem that the examination found, even if the executor failed too; nothing is left running.
        TaskError: If Ray cannot be started or reached.
    """
    if wants_threads(config, holds_gil=holds_gil):
        count_bytes(num_bytes)
    if not wants_ray(config):
        examine()
        return make_executor(config, holds_gil=holds_gil)
    executor: Executor | None = None
    raise_missed_stop()
    pool = ThreadPoolExecutor(1, thread_name_prefix="dsindex-examine")
    examination = pool.submit(examine)
    try:
        try:
            executor = make_executor(config, holds_gil=holds_gil)
        except TaskError:
            examination.result()  # its error takes precedence, however fast Ray fails
            raise
        examination.result()
    except BaseException as error:
        pool.shutdown(wait=isinstance(error, Exception))  # a stop does not wait for it: it only reads
        if executor is not None:
            executor.close()
        raise
    pool.shutdown()
    return executor
