"""Configurations of jobs with the options that most tests give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from tests.support.golden import OWN

if TYPE_CHECKING:
    from dsindex.options.config import Options

Config = TypeVar("Config", bound="Options")


def config_of(kind: type[Config], source: object, **options: Any) -> Config:
    """A job over one input or a tuple of them, in two threads, with the plain golden tokenizer."""
    inputs = source if isinstance(source, tuple) else (str(source),)
    own = {"input": inputs, "tokenizer_model": str(OWN.plain_tokenizer), "executor": "local", "workers": 2}
    return kind(**{**own, **options})
