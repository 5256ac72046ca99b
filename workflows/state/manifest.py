"""The manifest beside every dataset: what it was made of, an account of every line, and digests that prove the files.

`content` is a function of inputs, tokenizer and options. `run` is what happened: times, hosts, executor, retries. A
manifest that is read is a file from outside: every field is checked for its type before anything uses it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dsindex.errors import FormatError
from dsindex.json_text import decode_json, encode_json
from workflows.state.identity import EMPTY_PLAN, is_plan

MANIFEST_SUFFIX = "manifest.json"
MANIFEST_FORMAT = "dsindex manifest 1"
LARGEST_MANIFEST_BYTES = 256 << 20
"""A manifest of 100,000 inputs has some 30 MiB."""

Count = Annotated[int, Field(ge=0, lt=2**63)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Suffix = Annotated[str, Field(pattern=r"^[a-z0-9]+(\.[a-z0-9]+)*$")]
"""What follows the prefix in a file's name: it must not lead into another folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDigest:
    """What the manifest says of a published file."""

    size_bytes: int
    digest: str


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class RecordedFile(_Part):
    """A published file."""

    size_bytes: Count
    xxh3_128: Digest


class RecordedInput(_Part):
    """An input; a merge records other things of its inputs than a build."""

    path: str
    size_bytes: Count | None = None
    fingerprint: str | None = None
    lines: Count | None = None
    kept: Count | None = None


class Account(_Part):
    """Where every line of the inputs went."""

    lines: Count
    blank: Count
    records: Count
    kept: Count
    quarantined: Count
    elsewhere: Count = 0
    """Records that another split has."""
    documents_with_tokens: Count
    empty_documents: Count


class RecordedTokenizer(_Part):
    """The tokenizer of a build."""

    name: str
    sha256: str
    vocabulary_size: Annotated[int, Field(ge=1, lt=2**63)]
    eod_id: Count | None = None


class RecordedOptions(_Part):
    """The options of a build that the dataset depends on; a merge has none."""

    json_key: str | None = None
    append_eod: bool = False
    tokenizer_hf_no_include_special_tokens: bool = False
    on_bad_record: Literal["fail", "quarantine"] = "fail"
    max_record_size: Annotated[int, Field(ge=1, lt=2**63)] | None = None


class Content(_Part):
    """What a manifest says of a dataset, typed."""

    inputs: list[RecordedInput]
    account: Account | None = None
    documents: Count
    sequences: Count
    tokens: Count
    eod_in_text: Count | None = None
    token_dtype: Literal["uint8", "int8", "int16", "int32", "int64", "float64", "float32", "uint16", "uint32"]
    tokenizer: RecordedTokenizer | None = None
    options: RecordedOptions = RecordedOptions()
    digests: dict[Suffix, RecordedFile]

    @property
    def eod_id(self) -> int | None:
        """The id that ends every document with tokens; None where none was appended, or it is not known."""
        return self.tokenizer.eod_id if self.tokenizer is not None and self.options.append_eod else None


def manifest_path(prefix: str) -> str:
    """Return the manifest's name for a dataset's path without suffix."""
    return f"{prefix}.{MANIFEST_SUFFIX}"


def describe_files(files: dict[str, FileDigest]) -> dict[str, Any]:
    """Return the manifest's `digests`, by suffix, in a fixed order."""
    return {
        suffix: {"size_bytes": files[suffix].size_bytes, "xxh3_128": files[suffix].digest} for suffix in sorted(files)
    }


def encode_manifest(content: dict[str, Any], run: dict[str, Any]) -> bytes:
    """Return the manifest's bytes: JSON that people can read."""
    manifest = {"format": MANIFEST_FORMAT, "content": content, "run": run}
    return encode_json(manifest, indent=True, newline=True)


def read_manifest(prefix: str) -> dict[str, Any] | None:
    """Read a dataset's manifest; None where there is none.

    Returns:
        The manifest as it stands in the file: `content` has the form of `Content`, `run["plan"]`, if there is one, that
        of a plan.

    Raises:
        FormatError: If there is one that cannot be read.
    """
    path = manifest_path(prefix)
    remedy = "restore the file, or rebuild with --fresh"
    try:
        with open(path, "rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes > LARGEST_MANIFEST_BYTES:
                msg = f"{path}: expected a manifest, got a file of {size_bytes} bytes; {remedy}"
                raise FormatError(msg)
            manifest = decode_json(file.read())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        msg = f"{path}: cannot be read as a manifest ({error}); {remedy}"
        raise FormatError(msg) from error
    if not isinstance(manifest, dict) or manifest.get("format") != MANIFEST_FORMAT:
        msg = f"{path}: expected {MANIFEST_FORMAT!r}, got another JSON file; {remedy}"
        raise FormatError(msg)
    if not isinstance(manifest.get("run"), dict) or not is_plan(manifest["run"].get("plan", EMPTY_PLAN)):
        msg = f"{path}: expected a part 'run' with the plan; the manifest is damaged, {remedy}"
        raise FormatError(msg)
    read_content(prefix, manifest)
    return manifest


def read_content(prefix: str, manifest: dict[str, Any]) -> Content:
    """Return a manifest's content typed.

    Raises:
        FormatError: At the first field that is missing or not of its type.
    """
    try:
        return Content.model_validate(manifest.get("content"))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in ("content", *first["loc"]))
        msg = (
            f"{manifest_path(prefix)}: expected another {place}: {first['msg']}; the manifest is damaged, restore it, "
            f"or rebuild with --fresh"
        )
        raise FormatError(msg) from error


def files_have_recorded_sizes(prefix: str, manifest: dict[str, Any]) -> bool:
    """Tell quickly whether the published files are still there in full; `dsindex verify` looks inside."""
    recorded = manifest["content"]["digests"]
    try:
        return all(os.path.getsize(f"{prefix}.{suffix}") == entry["size_bytes"] for suffix, entry in recorded.items())
    except OSError:
        return False
