"""The manifest in the folder of an export: what it was made of, its counts, and digests of its files.

It is published with the folder, in one rename. So a folder with a manifest is complete.
"""

from __future__ import annotations

import os
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dsindex.errors import FormatError
from dsindex.exports.reading import EXPORT_MANIFEST
from dsindex.json_text import decode_json, encode_json
from workflows.state.manifest import LARGEST_MANIFEST_BYTES, Count, Run

EXPORT_FORMAT = "dsindex export 1"

FileName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]*(/[a-z0-9][a-z0-9_.-]*)?$")]
"""Name of a file relative to the folder; it cannot lead out of it."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class ExportedFile(_Part):
    """Size and digest of a file."""

    size_bytes: Count
    xxh3_128: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class ExportedSplit(_Part):
    """The rows of a split and what they hold; JSON lines have only the first two counts."""

    rows: Count
    left_out: Count | None = None
    """Conversations of the split that the reader would misread."""
    sequences: Count | None = None
    tokens: Count | None = None
    trainable: Count | None = None
    """Tokens that the loss mask says are trainable."""
    targets: Count | None = None
    """Trainable tokens that a trainer predicts: all but those at the start of a sequence."""


class ExportContent(_Part):
    """The part that depends on the dataset and the kind of export alone."""

    kind: str
    sequence_length: Count | None = None
    """Places of a pack."""
    sources: dict[str, dict[str, ExportedFile]]
    """The datasets that it was made of: name after the job's prefix → suffix → file."""
    tokenizer: dict[str, Any] | None = None
    writer: str | None = None
    """The library that encoded the files; another release may write other bytes."""
    splits: dict[str, ExportedSplit]
    digests: dict[FileName, ExportedFile]


class ExportManifest(_Part):
    """A manifest."""

    content: ExportContent
    run: Run

    def encode(self) -> bytes:
        """Return the manifest as indented JSON, without the fields that were not given."""
        dumped = self.model_dump(exclude_none=True)
        return encode_json({"format": EXPORT_FORMAT, **dumped}, indent=True, newline=True)


def read_export_manifest(folder: str) -> ExportManifest | None:
    """Read the manifest in a folder; return None if there is none.

    Raises:
        FormatError: If it cannot be read.
    """
    path = os.path.join(folder, EXPORT_MANIFEST)
    try:
        with open(path, "rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes > LARGEST_MANIFEST_BYTES:
                msg = f"expected at most {LARGEST_MANIFEST_BYTES} bytes, got {size_bytes}"
                raise ValueError(msg)
            found = decode_json(file.read())
        if not isinstance(found, dict) or found.get("format") != EXPORT_FORMAT:
            msg = f"expected {EXPORT_FORMAT!r}, got another JSON file"
            raise ValueError(msg)
        return ExportManifest.model_validate(found)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValidationError as error:
        first = error.errors()[0]
        problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except (OSError, ValueError) as error:
        problem = str(error)
    msg = f"{path}: cannot be read as the manifest of an export ({problem}); move the folder away"
    raise FormatError(msg)
