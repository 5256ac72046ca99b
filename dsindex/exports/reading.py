"""Tell whether a path belongs to an export, and what the footer of one of its Parquet files says."""

from __future__ import annotations

import os

from dsindex.errors import FormatError
from dsindex.exports.source import FACTS_PREFIX
from dsindex.regular_files import open_file

EXPORT_MANIFEST = "export.manifest.json"
"""Name of the manifest in the folder of an export."""
_DATA_SUFFIXES = (".parquet", ".arrow", ".jsonl", f"/{EXPORT_MANIFEST}")


def export_folder_of(path: str) -> str | None:
    """Return the folder of the export that a path is, or a file of it; None if it is none."""
    if os.path.isdir(path):
        folders = [path]
    elif path.endswith(_DATA_SUFFIXES):
        folders = [os.path.dirname(path), os.path.dirname(os.path.dirname(path))]  # splits have folders in one kind
    else:
        folders = []
    return next((each for each in folders if os.path.isfile(os.path.join(each, EXPORT_MANIFEST))), None)


def read_facts(path: str) -> dict[str, str]:
    """Return what dsindex wrote into the footer of a Parquet file, without the beginning of the names.

    Returns:
        `export`, the kind, and counts as text; empty for a file of another program.

    Raises:
        FormatError: If it is no Parquet file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_file(path) as file, pq.ParquetFile(file) as parquet:
            stored = parquet.metadata.metadata or {}
    except (OSError, pa.ArrowException, ValueError) as error:
        msg = f"{path}: cannot be read as a Parquet file ({error})"
        raise FormatError(msg) from error
    named = {name.decode(errors="replace"): value.decode(errors="replace") for name, value in stored.items()}
    return {name.removeprefix(FACTS_PREFIX): value for name, value in named.items() if name.startswith(FACTS_PREFIX)}
