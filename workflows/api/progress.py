"""What `progress=` means: nothing, what the command line shows, or a function that is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from workflows.api.boundary import OptionsError
from workflows.progress.choice import make_reporter
from workflows.progress.displays import BAR_SECONDS
from workflows.progress.reporter import Reporter
from workflows.progress.snapshot import Snapshot

if TYPE_CHECKING:
    from typing import Any

Progress: TypeAlias = bool | Callable[[Snapshot], object]
"""False: quiet. True: a bar in a terminal, else plain lines, on standard error. A function: is given snapshots."""


class FunctionDisplay:
    """Hands snapshots to a function; an exception that it raises stops the job, which can be continued."""

    seconds = BAR_SECONDS

    def __init__(self, function: Callable[[Snapshot], object]) -> None:
        self._function = function

    def show(self, snapshot: Snapshot) -> None:
        """Hand on how a stage goes."""
        self._function(snapshot)

    def end(self, snapshot: Snapshot) -> None:
        """Hand on how a stage ended."""
        self._function(snapshot)

    def say(self, text: str) -> None:
        """Nothing: a snapshot has no place for it."""

    def close(self, error: BaseException | None) -> None:
        """Nothing: the caller gets the error itself."""


def open_reporter(progress: Progress | Any) -> Reporter:  # noqa: ANN401 - whatever was given
    """Return the reporter that `progress` asks for, to be used in a `with`.

    Raises:
        OptionsError: If it is neither a bool nor a function.
    """
    if progress is False:
        return Reporter()
    if progress is True:
        return make_reporter()
    if callable(progress):
        return Reporter(FunctionDisplay(progress))
    msg = f"progress: expected True, False or a function that takes a Snapshot, got {progress!r}"
    raise OptionsError(msg)
