"""The options of `dsindex merge`."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from workflows.options.config import WorkConfig


class MergeConfig(WorkConfig):
    """`dsindex merge`: many datasets to one."""

    writes_objects: ClassVar[bool] = True
    input: tuple[str, ...] = Field(min_length=1)
