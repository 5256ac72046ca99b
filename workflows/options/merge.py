"""The options of `dsindex merge`."""

from __future__ import annotations

from pydantic import Field

from workflows.options.config import WorkConfig


class MergeConfig(WorkConfig):
    """`dsindex merge`: many datasets to one."""

    input: tuple[str, ...] = Field(min_length=1)
