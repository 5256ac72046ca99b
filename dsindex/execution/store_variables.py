"""Where the stores of a command are, if its flags say so: for this process, those that it starts, and Ray's workers.

The flags set variables of the environment, which this machine's processes inherit. Ray's workers have the environment
of their node, so each call brings along the variables that were given. None of them is a secret.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

STORE_VARIABLES = {"endpoint_url": ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"), "region": ("AWS_REGION",)}
"""Option → the variables that it sets."""

_given: dict[str, str] = {}


def give_store_variables(option: str, value: str) -> None:
    """Set the variables of an option in this process, and for the calls that it will make."""
    variables = dict.fromkeys(STORE_VARIABLES[option], value)
    os.environ.update(variables)
    _given.update(variables)


def given_store_variables() -> dict[str, str]:
    """Return the variables that options have set, and that still have their values."""
    return {name: value for name, value in _given.items() if os.environ.get(name) == value}


def run_where_stores_are(
    variables: Mapping[str, str],
    function: Callable[..., Any],
    *arguments: Any,  # noqa: ANN401 - of any function
) -> Any:  # noqa: ANN401 - of any function
    """Run a function with these variables, in a process that makes one call at a time."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        return function(*arguments)
    finally:
        restore_environment(before)


def restore_environment(before: Mapping[str, str | None]) -> None:
    """Set variables back to what they were; None for those that were not set."""
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
