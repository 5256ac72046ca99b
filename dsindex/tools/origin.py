"""Where a dataset comes from, as its manifest says: inputs, tokenizer and options, and the line of each document."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dsindex.datasets.origins import PartDocument, find_parts, part_number
from dsindex.datasets.provenance import read_source
from dsindex.engine.manifest import read_manifest
from dsindex.engine.output import PROVENANCE_SUFFIX
from dsindex.errors import DsindexError, FormatError, MissingObjectError
from dsindex.store.reading import fingerprint_input, input_status, is_stored, is_there
from dsindex.text.recorded_tokenizer import find_tokenizer
from dsindex.text.tokenizer import load_tokenizer
from dsindex.tools.verify_report import name_tokenizer

if TYPE_CHECKING:
    from dsindex.engine.manifest import Content, Manifest
    from dsindex.text.tokenizer import Tokenizer
    from dsindex.tools.kinds import TokenStore


SHOWN_INPUTS = 3
GIVE_TOKENIZER = "to see text, give the tokenizer with --tokenizer-model"


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentSource:
    """The record that a document was made from."""

    input: str
    """Path of the input, as it was given."""
    line: int
    """1-based."""
    offset: int
    """Byte offset of the line in the input's text; in a table, its row group."""
    problem: str | None = None
    """What became of the input since: missing, changed, or out of reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The origin of a dataset, as far as it is known."""

    prefix: str
    manifest: Manifest | None = None
    tokenizer: Tokenizer | None = None
    has_provenance: bool = False
    has_parts: bool = False
    """Whether it was merged from datasets, which may have provenance."""
    facts: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)

    @property
    def content(self) -> Content | None:
        """The part of the manifest that depends on inputs, tokenizer and options alone."""
        return self.manifest.content if self.manifest is not None else None

    def without_provenance(self) -> Origin:
        """Return the same origin without the lines of documents."""
        return replace(self, has_provenance=False, has_parts=False)

    def part_of(self, document: int) -> PartDocument | None:
        """Return the document in the dataset that was merged into this one; None if it was not merged.

        Raises:
            FormatError: If a manifest is damaged.
        """
        if not self.has_parts or self.manifest is None:
            return None
        parts = find_parts(self.prefix, self.manifest.content.documents)
        part = parts[part_number(parts, document)]
        if part.is_whole:
            return None
        return PartDocument(prefix=part.prefix, document=document - part.first_document)

    def source_of(self, document: int) -> DocumentSource | None:
        """Return the record that a document was made from; None if it is not recorded.

        Raises:
            FormatError: If the provenance is damaged or belongs to another dataset.
        """
        part = self.part_of(document)
        if part is not None:
            return _origin_of_part(part.prefix).source_of(part.document)
        if not self.has_provenance or self.manifest is None:
            return None
        path = f"{self.prefix}.{PROVENANCE_SUFFIX}"
        try:
            source = read_source(path, document)
        except IndexError as error:
            msg = f"{path}: expected a row for document {document}, got none; it belongs to another dataset"
            raise FormatError(msg) from error
        inputs = self.manifest.content.inputs
        if not 0 <= source.input < len(inputs):
            msg = f"{path}: expected an input from 0 to {len(inputs) - 1}, got {source.input}; the file is damaged"
            raise FormatError(msg)
        return DocumentSource(
            input=inputs[source.input].path,
            line=source.line,
            offset=source.offset,
            problem=_problem_of(self.manifest, source.input),
        )


def find_origin(prefix: str, tokenizer_model: str | None) -> Origin:
    """Read a dataset's manifest, and load its tokenizer.

    Args:
        prefix: Path without suffix.
        tokenizer_model: The tokenizer to use; None for the recorded one.

    Raises:
        TokenizerError: If the tokenizer that was given cannot be read.
    """
    try:
        manifest = read_manifest(prefix)
    except FormatError as error:
        given = load_tokenizer(tokenizer_model) if tokenizer_model is not None else None
        return Origin(prefix=prefix, tokenizer=given, findings=[str(error)])
    tokenizer, notes = _choose_tokenizer(prefix, manifest, tokenizer_model)
    has_provenance = is_stored(f"{prefix}.{PROVENANCE_SUFFIX}")
    has_parts = not has_provenance and manifest is not None and _is_merged(manifest)
    if manifest is not None and not has_provenance and not has_parts:
        notes.append("no provenance: it is not recorded from which line each document comes")
    return Origin(
        prefix=prefix,
        manifest=manifest,
        tokenizer=tokenizer,
        has_provenance=has_provenance,
        has_parts=has_parts,
        facts={} if manifest is None else _facts(manifest),
        notes=notes,
    )


def find_misfit(content: Content | None, store: TokenStore) -> str | None:
    """Return a sentence if a manifest has other counts than the dataset beside it; None if they agree."""
    if content is None or (content.documents, content.tokens) == (store.num_documents, len(store.tokens)):
        return None
    return (
        f"{store.paths[0]}: expected {content.documents:,} documents and {content.tokens:,} tokens as in its manifest, "
        f"got {store.num_documents:,} and {len(store.tokens):,}; one of them belongs to another dataset"
    )


def _is_merged(manifest: Manifest) -> bool:
    """Tell whether a dataset was merged from others, as `find_parts` does."""
    inputs = manifest.content.inputs
    return manifest.content.account is None and bool(inputs) and all(entry.documents is not None for entry in inputs)


def _origin_of_part(prefix: str) -> Origin:
    """Return the origin of a dataset that was merged, for the lines of its documents."""
    return Origin(
        prefix=prefix, manifest=read_manifest(prefix), has_provenance=is_stored(f"{prefix}.{PROVENANCE_SUFFIX}")
    )


def _facts(manifest: Manifest) -> dict[str, Any]:
    content, run = manifest.content, manifest.run
    names = [file.path for file in content.inputs]
    more = len(names) - SHOWN_INPUTS
    facts: dict[str, Any] = {
        "made": f"{run.started or 'at an unknown time'} by dsindex {run.dsindex or 'of an unknown version'}",
        "inputs": names if more <= 0 else [*names[:SHOWN_INPUTS], f"and {more:,} more"],
    }
    if content.account is not None:
        account = content.account
        facts["records"] = f"{account.kept:,} kept, {account.quarantined:,} quarantined, {account.filtered:,} filtered"
    if content.bytes_per_token is not None:
        facts["bytes of text per token"] = f"{content.bytes_per_token:.2f}"
    if content.tokenizer is not None:
        tokenizer = content.tokenizer
        facts["tokenizer"] = (
            f"{tokenizer.name}, {tokenizer.vocabulary_size:,} tokens, sha256 {tokenizer.sha256[:16]}…"
            + (f", EOD {tokenizer.eod_id}" if content.eod_id is not None else ", no EOD appended")
        )
    options = content.options.model_dump(exclude_unset=True, exclude_none=True)
    shown = {name: value for name, value in options.items() if name != "instruction" and value is not False}
    if shown:
        facts["options"] = ", ".join(f"{name} = {value}" for name, value in shown.items())
    return facts


def _choose_tokenizer(prefix: str, manifest: Manifest | None, given: str | None) -> tuple[Tokenizer | None, list[str]]:
    """Return the tokenizer to decode with, and sentences about it."""
    recorded = manifest.content.tokenizer if manifest is not None else None
    if manifest is None or recorded is None:
        if given is not None:
            return load_tokenizer(given), ["no tokenizer is recorded, so it is unknown whether this is the right one"]
        lacks = (
            "the manifest names no tokenizer"
            if manifest is not None
            else "no manifest: origin and tokenizer are unknown"
        )
        return None, [f"{lacks}; {GIVE_TOKENIZER}"]
    named = name_tokenizer(recorded, manifest)
    if given is not None:
        tokenizer = named.load(given, is_given=True)
        is_same = tokenizer.sha256 == named.sha256
        return tokenizer, [] if is_same else [
            (
                f"{given} is another tokenizer (sha256 {tokenizer.sha256[:16]}…) than the dataset was made with "
                f"({named.name}, sha256 {named.sha256[:16]}…), so the text can be wrong"
            )
        ]
    found, others = find_tokenizer(named, prefix)
    if found is not None:
        return found, []
    problem = f"the tokenizer {named.name} is neither where it was, nor here, nor above the dataset or its inputs"
    for other in others[-1:]:
        problem = (
            f"the tokenizer cannot be read ({other.error})"
            if other.sha256 is None
            else f"{other.place} is not the tokenizer of the dataset: expected sha256 {named.sha256[:16]}…, got "
            f"{other.sha256[:16]}…"
        )
    return None, [f"{problem}; {GIVE_TOKENIZER}"]


def _problem_of(manifest: Manifest, number: int) -> str | None:
    """Return what became of an input since the build; None if it is as it was."""
    recorded = manifest.content.inputs[number]
    path = recorded.path
    absolute = manifest.run.plan["inputs"]
    if not is_there(path) and number < len(absolute):
        path = absolute[number][0]
    try:
        status = input_status(path)
        path = status.path
        if recorded.size_bytes is not None and status.size_bytes != recorded.size_bytes:
            return f"changed: it had {recorded.size_bytes:,} bytes and has {status.size_bytes:,}"
        if recorded.fingerprint is not None and fingerprint_input(path) != recorded.fingerprint:
            return "changed: it has the same size and other content"
    except (FileNotFoundError, NotADirectoryError, MissingObjectError):
        return "not there any more"
    except (OSError, DsindexError):
        return "out of reach now"
    return None
