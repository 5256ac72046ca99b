"""`dsindex.verify` where only numpy, orjson and xxhash are installed: structure and index caches."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from dsindex.api.results import VerifyResult
from dsindex.api.subjects import list_prefixes
from dsindex.datasets.opening import PBIN_SUFFIX
from dsindex.errors import InputError, missing_package
from dsindex.store.urls import as_prefix
from dsindex.tools.verify_caches import find_caches, verify_cache
from dsindex.tools.verify_files import STRUCTURE, verify_index
from dsindex.tools.verify_report import VerifyReport, report_absence

if TYPE_CHECKING:
    from dsindex.api.subjects import Subjects

_INSTALL = "install all that dsindex needs: pip install dsindex"


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
    return VerifyResult(reports=tuple(_verify_structure(each, folder) for each in list_prefixes("prefix", prefix)))


def _verify_structure(given: str, cache: str | None) -> VerifyReport:
    """Check an MMIDIDX pair, and the index caches in a folder against it; a `.pbin` is refused."""
    if given.endswith(PBIN_SUFFIX):
        raise InputError(f"{given}: expected a dataset of .bin and .idx, since packages are missing here; {_INSTALL}")
    prefix = as_prefix(given)
    absence = report_absence(prefix, [f"{prefix}.bin", f"{prefix}.idx"])
    if absence is not None:
        return absence
    counts, findings = verify_index(prefix)
    checks = [STRUCTURE]
    if cache is not None and counts is not None:
        tasks = find_caches(cache, prefix)
        if not tasks:
            findings.append(f"{cache}: expected an index cache of {prefix}, found none; check the folder")
        findings += [finding for task in tasks for finding in verify_cache(task)]
        checks.append("index caches against the data")
    note = f"tokens, digests and provenance were not checked, since packages are missing here; {_INSTALL}"
    return VerifyReport(
        prefix=prefix,
        checks=() if findings else tuple(checks),
        failed=tuple(checks) if findings else (),
        findings=tuple(findings),
        notes=(note,),
        counts=counts,
    )
