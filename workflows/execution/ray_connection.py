"""Connect this process to a Ray cluster, or start a private one."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from typing import Any

import ray

import dsindex
import workflows
from dsindex.errors import TaskError
from workflows.execution.cpus import available_cpus
from workflows.execution.interrupts import TerminatedError, interrupts_held_back
from workflows.execution.ray_token import check_token, hide_token

SINGLE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
"""Environment of all workers: one thread per task. Variables per task would make Ray start new workers."""

JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""The variable that Ray's job server sets for the drivers that it starts."""


def connect(address: str | None, workers: int | None, *, ship_code: bool) -> None:
    """Connect this process to a cluster.

    Args:
        address: The cluster to join; None starts a private one.
        workers: Number of CPUs of a private one; None: all that this process may use.
        ship_code: Whether to send this process's code to the nodes of a named cluster, unless Ray's job server started
            this process and has sent the code already.

    Raises:
        TaskError: If the cluster cannot be started or reached.
        TokenError: If its token cannot be sent.
    """
    check_token()
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    options: dict[str, Any] = {
        "log_to_driver": False,
        "logging_level": logging.ERROR,
    }
    if address is None:
        # Inherited by workers; a runtime_env would waste those that Ray starts in advance (1.5 s).
        os.environ.update(SINGLE_THREAD)
        # The address is needed: a plain init() joins any cluster that still runs on this machine.
        options |= {
            "address": "local",
            "num_cpus": workers or available_cpus(),
            "include_dashboard": False,
        }
    else:
        runtime_env: dict[str, Any] = {"env_vars": SINGLE_THREAD}
        if ship_code and JOB_VARIABLE not in os.environ:
            packages = (dsindex, workflows)
            runtime_env["py_modules"] = [os.path.dirname(package.__file__ or "") for package in packages]
            runtime_env["excludes"] = ["__pycache__"]
        options |= {"address": address, "runtime_env": runtime_env}
    try:
        with interrupts_held_back() if address is None else contextlib.nullcontext():
            ray.init(**options)
    except KeyboardInterrupt:
        ray.shutdown()
        raise
    except SystemExit as stop:
        if stop.code == signal.SIGTERM:  # raised by Ray's handler
            raise TerminatedError from stop
        raise
    except UnicodeEncodeError as error:
        msg = (
            "expected a command line and a working folder in UTF-8, which Ray requires, got another name; write "
            "such names in a --config file, as \\udcXX within double quotes, or use --executor local"
        )
        raise TaskError(msg) from error
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        place = "a local Ray instance" if address is None else f"the Ray cluster at {address}"
        reason = hide_token(str(error))
        msg = f"{place}: cannot be started or reached ({reason}); check --address, or use --executor local"
        raise TaskError(msg) from error
