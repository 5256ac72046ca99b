"""The options of `dsindex merge`."""

from __future__ import annotations

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from dsindex.errors import InputError
from dsindex.objects.urls import is_url, parse_url
from workflows.options.config import WorkConfig, access_of


class MergeConfig(WorkConfig):
    """`dsindex merge`: many datasets to one."""

    input: tuple[str, ...] = Field(min_length=1)

    @field_validator("input")
    @classmethod
    def _names_datasets(cls, given: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        try:
            return tuple(parse_url(path, access_of(info)) if is_url(path) else path for path in given)
        except InputError as error:
            raise PydanticCustomError("address", "{reason}", {"reason": str(error)}) from None
