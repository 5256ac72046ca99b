"""The `progress` parameter: quiet, the command line's display, or a callback."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from dsindex.api.boundary import OptionsError
from dsindex.engine.progress import BAR_SECONDS, Display, Reporter, Snapshot, make_reporter

if TYPE_CHECKING:
    from typing import Any

Progress: TypeAlias = bool | Callable[[Snapshot], object]
"""False: quiet. True: a bar in a terminal, else plain lines, on standard error. A function: called with snapshots."""


class FunctionDisplay(Display):
    """Calls a function with snapshots; an exception from it stops the job, which can be continued."""

    seconds = BAR_SECONDS

    def __init__(self, function: Callable[[Snapshot], object]) -> None:
        self._function = function

    def show(self, snapshot: Snapshot) -> None:
        """Pass on the progress of a stage."""
        self._function(snapshot)

    def end(self, snapshot: Snapshot) -> None:
        """Pass on the final snapshot of a stage."""
        self._function(snapshot)


def open_reporter(progress: Progress | Any) -> Reporter:  # noqa: ANN401 - anything the caller passed
    """Return the reporter for a value of `progress`, to be used in a `with`.

    Raises:
        OptionsError: If the value is neither a bool nor a function.
    """
    if progress is False:
        return Reporter()
    if progress is True:
        return make_reporter()
    if callable(progress):
        return Reporter(FunctionDisplay(progress))
    raise OptionsError(f"progress: expected True, False or a function that takes a Snapshot, got {progress!r}")
