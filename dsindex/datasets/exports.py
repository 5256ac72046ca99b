"""Exports of instruction data: the manifest in the folder of one."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from dsindex.errors import FormatError
from dsindex.store.storage import open_file

EXPORT_MANIFEST = "export.manifest.json"
"""Name of the manifest in the folder of an export. It is published with the folder, in one rename, so a folder with a
manifest is complete."""
EXPORT_FORMAT = "dsindex export 2"
_LARGEST_MANIFEST_BYTES = 1 << 26


class ExportedFile(msgspec.Struct, frozen=True, kw_only=True):
    """Size and digest of a file."""

    size_bytes: int
    xxh3_128: str


class ExportedSplit(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a split and what they hold."""

    rows: int
    sequences: int
    tokens: int
    trainable: int
    """Tokens that the loss mask says are trainable."""
    targets: int
    """Trainable tokens that a trainer predicts: all but those at the start of a sequence."""


class ExportContent(msgspec.Struct, frozen=True, kw_only=True):
    """The part that depends on the dataset and the kind of export alone."""

    kind: str
    sequence_length: int | None
    """Slots of a pack; None if a row is a conversation."""
    tokenizer: dict[str, Any]
    writer: str
    """The library that encoded the files; another release may write other bytes."""
    splits: dict[str, ExportedSplit]
    digests: dict[str, ExportedFile]


class ExportManifest(msgspec.Struct, frozen=True, kw_only=True):
    """A manifest."""

    format: str = EXPORT_FORMAT
    plan: dict[str, Any]
    """What the export was asked to be made of; `sources` has the digests of the datasets, by their names after P_."""
    content: ExportContent


def read_export_manifest(folder: str) -> ExportManifest | None:
    """Read the manifest in a folder; return None if there is none.

    Raises:
        FormatError: If it cannot be read, or names a file outside of the folder.
    """
    path = os.path.join(folder, EXPORT_MANIFEST)
    try:
        with open_file(path) as file:
            manifest = msgspec.json.decode(file.read(_LARGEST_MANIFEST_BYTES), type=ExportManifest)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: cannot be read as the manifest of an export ({error}); export again") from error
    if manifest.format != EXPORT_FORMAT or any(os.path.basename(name) != name for name in manifest.content.digests):
        raise FormatError(f"{path}: expected {EXPORT_FORMAT!r}, got another manifest; export again")
    return manifest


def export_folder_of(path: str) -> str | None:
    """Return the folder of the export that a path is, or a file of it; None if it is none."""
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    is_part = folder == path or path.endswith((".parquet", f"/{EXPORT_MANIFEST}"))
    return folder if is_part and os.path.isfile(os.path.join(folder, EXPORT_MANIFEST)) else None
