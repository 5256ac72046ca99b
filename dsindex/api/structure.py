"""`dsindex.verify` where only numpy, orjson and xxhash are installed: structure and index caches."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from dsindex.api.results import VerifyResult
from dsindex.api.subjects import list_prefixes
from dsindex.errors import missing_package
from dsindex.tools.verify_structure import verify_structure

if TYPE_CHECKING:
    from dsindex.api.subjects import Subjects


def verify(prefix: Subjects, *, cache: str | os.PathLike[str] | None = None, **others: object) -> VerifyResult:
    """Check the structure of datasets, and index caches against it.

    Raises:
        MissingPackageError: If another option of the whole function is given.
    """
    if others:
        try:
            importlib.import_module("dsindex.api.verify")
        except ModuleNotFoundError as error:
            raise (missing_package(error) or error) from error
    folder = None if cache is None else os.fspath(cache)
    return VerifyResult(reports=tuple(verify_structure(each, folder) for each in list_prefixes("prefix", prefix)))
