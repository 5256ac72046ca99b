"""The options of `dsindex merge`."""

from __future__ import annotations

from pydantic import field_validator
from pydantic_core import PydanticCustomError

from dsindex.errors import InputError
from dsindex.options.config import WorkConfig
from dsindex.options.declare import option
from dsindex.store.urls import located


class MergeConfig(WorkConfig):
    """`dsindex merge`: many datasets to one."""

    output_prefix: str = option(..., "writes P.bin and P.idx, here or in a bucket (s3://, gs://)", "P")
    input: tuple[str, ...] = option(
        ..., "the datasets, in the order of the output; here or in object stores", "PREFIX", min_length=1
    )

    @field_validator("input")
    @classmethod
    def _names_datasets(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        try:
            return tuple(located(path) for path in given)
        except (InputError, ValueError) as error:
            raise PydanticCustomError("address", "{reason}", {"reason": str(error)}) from None
