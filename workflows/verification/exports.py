"""Verify the folder of an export: every file has the size and the digest that its manifest says."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dsindex.errors import FormatError
from dsindex.storage import digest_file
from workflows.state.export_manifest import read_export_manifest
from workflows.verification.report import VerifyReport

if TYPE_CHECKING:
    from workflows.progress.reporter import Reporter


def verify_export(folder: str, *, reporter: Reporter) -> VerifyReport:
    """Read every file of an export once."""
    try:
        manifest = read_export_manifest(folder)
    except FormatError as error:
        return VerifyReport(prefix=folder, findings=(str(error),), has_manifest=True)
    findings = []
    files = {} if manifest is None else manifest.content.digests
    reporter.stage("verify", total=len(files), unit="files")
    for name, file in files.items():
        path = os.path.join(folder, name)
        if not os.path.isfile(path):
            findings.append(f"{path}: is missing, but the manifest lists it; export it again")
        elif os.path.getsize(path) != file.size_bytes or digest_file(path) != file.xxh3_128:
            findings.append(f"{path}: expected the content that the manifest describes, got another; export it again")
        reporter.advance(1)
    return VerifyReport(
        prefix=folder, checks=("digest of every file of the export",), findings=tuple(findings), has_manifest=True
    )
