"""Check the structure of a dataset with numpy, orjson and xxhash alone, as a machine that trains has them."""

from __future__ import annotations

from dsindex.datasets.opening import PBIN_SUFFIX
from dsindex.errors import InputError
from dsindex.store.urls import as_prefix
from dsindex.tools.verify_caches import find_caches, verify_cache
from dsindex.tools.verify_files import verify_index
from dsindex.tools.verify_report import VerifyReport, report_absence

STRUCTURE = "structure of the .idx, and every entry against the .bin"
_INSTALL = "install all that dsindex needs: pip install dsindex"


def verify_structure(given: str, cache: str | None = None) -> VerifyReport:
    """Check an MMIDIDX pair, and the index caches in a folder against it.

    Args:
        given: The prefix, or the path of the `.bin` or `.idx`.
        cache: The folder; None for none.

    Raises:
        InputError: If the dataset is a `.pbin`, or there is no such folder.
    """
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
