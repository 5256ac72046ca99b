"""The manifest next to every dataset (docs/formats.md): what it was made from, record counts, digests of its files.

`content` is a function of inputs, tokenizer and options. `run` describes the run: times, hosts, executor, retries. The
same models write and read it, so every field of an untrusted manifest is checked before it is used. Fields that do not
apply to a job are absent from its manifest.
"""

from __future__ import annotations

import contextlib
import os
from functools import cached_property
from typing import Annotated, Any, Literal

import msgspec
import xxhash
from msgspec import Meta, Struct

from dsindex.errors import FormatError, MissingObjectError
from dsindex.store.json_text import decode_json, encode_json
from dsindex.store.local import StoredFile, open_file
from dsindex.store.protocol import find
from dsindex.store.read import open_readable

MANIFEST_SUFFIX = "manifest.json"
MANIFEST_FORMAT = "dsindex manifest 1"
LARGEST_MANIFEST_BYTES = 1 << 30
"""Limit on a manifest's size; a manifest of a million inputs has about 230 MiB."""
LARGEST_INDENTED_BYTES = 16 << 20
"""A larger manifest is written on one line, which saves 0.7 GiB of memory for a million inputs."""

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Positive = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Share = Annotated[float, Meta(gt=0, le=1)]
Suffix = Annotated[str, Meta(pattern=r"^[a-z0-9]+(\.[a-z0-9]+)*$")]
"""The part of a file's name after the prefix and a dot; it cannot lead into another folder."""


class _Part(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A section of a manifest; fields with their default value are not written."""


class RecordedInput(_Part, frozen=True, kw_only=True, gc=False):
    """An input: of a build with size, fingerprint and record counts, of a merge with documents and sequences."""

    path: str
    documents: Count | None = None
    sequences: Count | None = None
    size_bytes: Count | None = None
    fingerprint: str | None = None
    compression: str | None = None
    format: str | None = None
    """The input's format; absent for JSON lines."""
    text_bytes: Count | None = None
    """Decompressed size of a compressed input."""
    lines: Count | None = None
    blank: Count | None = None
    records: Count | None = None
    kept: Count | None = None
    quarantined: Count | None = None
    filtered: Count | None = None
    tokenized_bytes: Count | None = None
    """Size of the kept texts, in UTF-8."""


class RecordCounts(_Part, frozen=True, kw_only=True):
    """Record counts: lines = records + blank, records = kept + filtered + quarantined."""

    lines: Count
    blank: Count
    records: Count
    kept: Count
    quarantined: Count
    filtered: Count = 0
    """Records that `--where`, a sample or a split removed."""
    documents_with_tokens: Count
    empty_documents: Count
    """Documents whose text has no tokens; with the option `empty_documents` "eod", they hold EOD."""


class RecordedTokenizer(_Part, frozen=True, kw_only=True):
    """The tokenizer of a build."""

    name: str
    sha256: str
    vocabulary_size: Positive
    eod_id: Count | None = None
    revision: Annotated[str, Meta(pattern=r"^[0-9a-f]{40}$")] | None = None
    """The commit of a tokenizer that was named on the Hugging Face Hub."""
    options: dict[str, str | int | list[str]] | None = None
    """Tokenizer options that are not in its file: name → value."""


class RecordedOptions(_Part, frozen=True, kw_only=True):
    """The options that the dataset depends on; a merge has none."""

    json_key: str | None = None
    """The key of the dataset's texts, as written in `--json-keys`."""
    json_keys: list[str] | None = None
    """The keys whose texts were joined."""
    join: str | None = None
    where: str | None = None
    token_ids: str | None = None
    jq_pattern: str | None = None
    pbin_era: Literal["spec", "2024-01-30", "2024-04", "current"] | None = None
    shuffle_documents: Count | None = None
    """Seed of the random order of the documents; absent if they are in the order of the inputs."""
    append_eod: bool = False
    empty_documents: Literal["eod"] | None = None
    """Is "eod" if a document without tokens holds EOD alone; absent if such a document stays empty."""
    tokenizer_hf_no_include_special_tokens: bool = False
    on_bad_record: Literal["fail", "quarantine"] = "fail"
    max_record_size: Positive | None = None
    seq_length: Positive | None = None
    split: list[float] | None = None
    split_seed: int | None = None
    split_name: str | None = None
    sample: Share | None = None
    leave_out: Share | None = None
    """Share of the records that --hold-out kept out of the dataset."""
    instruction: dict[str, Any] | None = None
    """The configuration of instruction data, in plain JSON types."""


class RecordedPacking(_Part, frozen=True, kw_only=True):
    """Statistics of packed instruction data: blocks and their fill."""

    sequence_length: Count
    blocks: Count
    padding: Count
    fill: float
    """Share of the positions that hold tokens, to six digits."""
    pad_to_multiple: Count | None = None
    """Each sequence is padded to a multiple of this number of positions; absent if sequences are not padded."""
    between: Count | None = None
    """Positions that pad sequences to the multiple; the rest of `padding` is at the ends of blocks."""
    dropped: Count | None = None
    """Sequences that were dropped since they are longer than a block; absent if they are refused or truncated."""
    dropped_tokens: Count | None = None


class Content(_Part, frozen=True, kw_only=True):
    """The section of a manifest that depends only on inputs, tokenizer and options."""

    inputs: list[RecordedInput]
    account: RecordCounts | None = None
    documents: Count
    sequences: Count
    tokens: Count
    eod_in_text: Count | None = None
    token_dtype: Annotated[str, Meta(pattern=r"^(uint(8|16|32)|int(8|16|32|64)|float(32|64))$")]
    tokenizer: RecordedTokenizer | None = None
    options: RecordedOptions = RecordedOptions()
    statistics: dict[str, Count] | None = None
    """For instruction data: messages and tokens by role."""
    bad_records: dict[str, Count] | None = None
    """For instruction data: number of quarantined records by kind of problem."""
    packing: RecordedPacking | None = None
    digests: dict[Suffix, StoredFile]
    """Suffix → file of the dataset, whose `name` is the suffix."""

    def __post_init__(self) -> None:
        """Refuse a manifest without the digests of all files."""
        if not ({"bin", "idx"} <= self.digests.keys() or "pbin" in self.digests):
            raise ValueError("it lacks the digests of .bin and .idx, or of a .pbin")

    @property
    def record_counts(self) -> RecordCounts:
        """The dataset's record counts.

        Raises:
            ValueError: If the dataset was not made from records.
        """
        if self.account is None:
            raise ValueError("the dataset was not made from records")
        return self.account

    @property
    def bytes_per_token(self) -> float | None:
        """The bytes of UTF-8 text per token, counting EOD as a token; None if an input's bytes were not counted."""
        sizes = [file.tokenized_bytes for file in self.inputs if file.tokenized_bytes is not None]
        return sum(sizes) / self.tokens if self.tokens and len(sizes) == len(self.inputs) else None

    @property
    def eod_id(self) -> int | None:
        """The EOD id that ends every document with tokens; None if no EOD was appended or its id is unknown."""
        return self.tokenizer.eod_id if self.tokenizer is not None and self.options.append_eod else None


class Plan(Struct, frozen=True, dict=True):
    """Everything that determines a job's output and shards, in its stored form."""

    settings: dict[str, Any] = {}
    """Name → value, in plain JSON types: options, and facts such as the tokenizer's hash."""
    inputs: list[tuple[str, int, str]] = []
    """Absolute path, size and version of each input, in the order of the output; an input may occur more than once."""

    @cached_property
    def plan_id(self) -> str:
        """A hash of the whole plan."""
        return xxhash.xxh3_64_hexdigest(encode_json(msgspec.to_builtins(self, enc_hook=str), sort_keys=True))


class RecordedEngine(_Part, frozen=True, kw_only=True):
    """The engine that encoded the texts."""

    name: str
    version: str
    reason: str


class Run(_Part, frozen=True, kw_only=True):
    """The section of a manifest that may differ between two runs of the same plan."""

    plan: Plan = Plan()
    started: str = ""
    """Time in UTC."""
    seconds: float = 0.0
    host: str = ""
    executor: str = ""
    workers: Count = 0
    shards: Count = 0
    retries: Count = 0
    lost_workers: Count = 0
    dsindex: str = ""
    """Version of dsindex."""
    engine: RecordedEngine | None = None
    tokenizer_path: str | None = None
    """Absolute path at which the tokenizer can be found; `content` has its hash."""


class Manifest(_Part, frozen=True, kw_only=True):
    """The manifest of a dataset."""

    content: Content
    run: Run

    def encode(self) -> bytes:
        """Return the manifest as JSON, with one item per line if it is small and all names are UTF-8."""
        digests = {
            suffix: {"size_bytes": file.size_bytes, "xxh3_128": file.digest}
            for suffix, file in self.content.digests.items()
        }
        content = msgspec.structs.replace(self.content, digests=digests)
        sections = {"format": MANIFEST_FORMAT, "content": content, "run": self.run}
        try:
            encoded = msgspec.json.encode(sections, enc_hook=str)  # msgspec does not know that Locations are strings
        except UnicodeEncodeError:
            return encode_json(msgspec.to_builtins(sections, enc_hook=str), newline=True)
        return encoded if len(encoded) > LARGEST_INDENTED_BYTES else msgspec.json.format(encoded, indent=2) + b"\n"


msgspec.json.Decoder(Manifest)  # prepares the type: threads that first decode one at the same time can crash


def manifest_path(prefix: str) -> str:
    """Return the path of a dataset's manifest."""
    return f"{prefix}.{MANIFEST_SUFFIX}"


def read_manifest(prefix: str) -> Manifest | None:
    """Read a dataset's manifest; return None if it is missing.

    Raises:
        FormatError: If it cannot be read, naming the first field that is missing or has a wrong type.
    """
    path = manifest_path(prefix)
    try:
        with open_readable(path) as file:
            if file.size_bytes > LARGEST_MANIFEST_BYTES:
                raise ValueError(f"it has {file.size_bytes:,} bytes, more than {LARGEST_MANIFEST_BYTES:,}")
            manifest = decode_json(file.read_at(file.size_bytes, 0))
        if not isinstance(manifest, dict) or manifest.get("format") != MANIFEST_FORMAT:
            raise ValueError(f"it does not say {MANIFEST_FORMAT!r}")
        with contextlib.suppress(KeyError, TypeError, AttributeError):  # `convert` reports what is missing
            for suffix, entry in manifest["content"]["digests"].items():
                entry |= {"name": suffix, "digest": entry["xxh3_128"]}
        return msgspec.convert(manifest, Manifest)
    except (FileNotFoundError, NotADirectoryError, MissingObjectError):
        return None
    except OSError as error:
        raise FormatError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        hint = "restore the file, or build the dataset again with --replace"
        raise FormatError(f"{path}: not a manifest: {error}", hint=hint) from error


def files_have_recorded_sizes(prefix: str, manifest: Manifest) -> bool:
    """Whether the published files exist with their recorded sizes; only `dsindex verify` checks their content."""
    statuses_and_files = ((find(f"{prefix}.{suffix}"), file) for suffix, file in manifest.content.digests.items())
    return all(status is not None and status.size_bytes == file.size_bytes for status, file in statuses_and_files)


EXPORT_MANIFEST = "export.manifest.json"
"""Name of the manifest in the folder of an export for other trainers."""
_LARGEST_EXPORT_MANIFEST_BYTES = 1 << 26


class ExportManifest(Struct, frozen=True, kw_only=True):
    """The manifest of an export. It depends only on the datasets, the options and the versions of the writers."""

    format: Literal["dsindex export 3"] = "dsindex export 3"
    kind: str
    plan: dict[str, Any]
    """Datasets and options; `sources` maps the name of each dataset, without its prefix, to its digests."""
    tokenizer: dict[str, Any]
    writer: str
    """Library and version that wrote the Parquet files; another version may write different bytes."""
    splits: dict[str, dict[str, int]]
    """Split → its numbers of rows, sequences, tokens, trainable tokens, and targets. Targets are the trainable tokens
    that a trainer predicts: all except the first token of a sequence."""
    digests: dict[str, StoredFile]


def read_export_manifest(folder: str) -> ExportManifest | None:
    """Read the manifest of an export's folder; return None if the folder has no manifest.

    Raises:
        FormatError: If the manifest cannot be read, or names a file outside the folder.
    """
    path = os.path.join(folder, EXPORT_MANIFEST)
    try:
        with open_file(path) as file:
            manifest = msgspec.json.decode(file.read(_LARGEST_EXPORT_MANIFEST_BYTES), type=ExportManifest)
        if any(os.path.basename(name) != name for name in manifest.digests):
            raise ValueError("it names files outside of its folder")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise FormatError(f"{path}: not a valid manifest of an export ({error})", hint="export again") from error
    return manifest
