"""Signals while compiled code runs: they come out as what they are."""

from __future__ import annotations

import pytest

from workflows.execution.interrupts import TerminatedError, stops_unwrapped


def wait_for_ray(stop: BaseException, *, is_cause: bool) -> None:
    """End as Ray's compiled code does when a signal arrives in it."""
    try:
        raise stop
    except BaseException as error:
        wrapped = SystemError("CoreWorker.wait returned a result with an exception set")
        if is_cause:
            raise wrapped from error
        raise wrapped  # noqa: B904 - it may leave the context alone


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), TerminatedError()], ids=["Ctrl-C", "SIGTERM"])
@pytest.mark.parametrize("is_cause", [True, False], ids=["cause", "context"])
def test_signal_that_compiled_code_wrapped_is_raised_itself(stop: BaseException, is_cause: bool) -> None:
    with pytest.raises(type(stop)) as raised, stops_unwrapped():
        wait_for_ray(stop, is_cause=is_cause)
    assert raised.value is stop


def test_other_errors_of_compiled_code_stay() -> None:
    with pytest.raises(SystemError, match="broken"), stops_unwrapped():
        raise SystemError("broken") from ValueError("something else")
