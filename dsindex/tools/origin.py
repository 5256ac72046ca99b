"""Where a dataset comes from, as its manifest says: inputs, tokenizer and options, and the lines of its documents."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dsindex.datasets.decoding import read_named_tokenizer
from dsindex.datasets.origins import DocumentOrigin, find_document_origins
from dsindex.engine.manifest import read_manifest
from dsindex.errors import DsindexError, FormatError, MissingObjectError, TokenizerError
from dsindex.store.reading import fingerprint_input, input_status, is_there
from dsindex.text.recorded_tokenizer import find_tokenizer
from dsindex.text.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.engine.manifest import Content, Manifest
    from dsindex.text.recorded_tokenizer import NamedTokenizer
    from dsindex.text.tokenizer import Tokenizer
    from dsindex.tools.kinds import TokenStore

SHOWN_INPUTS = 3
GIVE_TOKENIZER = "give the tokenizer with --tokenizer-model to see text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What is known of a dataset's origin."""

    prefix: str
    manifest: Manifest | None = None
    tokenizer: Tokenizer | None = None
    text_note: str | None = None
    """A sentence about a tokenizer that is missing, or may be another than the dataset's."""
    facts: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """Sentences about lines that are not known, and inputs that moved or changed; they come with the lines."""
    findings: list[str] = field(default_factory=list)

    @property
    def content(self) -> Content | None:
        """The part of the manifest that depends on inputs, tokenizer and options alone."""
        return self.manifest.content if self.manifest is not None else None

    @property
    def all_notes(self) -> list[str]:
        """The notes about lines and text."""
        return self.notes if self.text_note is None else [*self.notes, self.text_note]

    def lines_of(self, documents: Sequence[int], *, num_documents: int) -> list[DocumentOrigin]:
        """Return the lines that documents were made from; where they are not known, a note says why.

        Raises:
            FormatError: If the manifest or the provenance is damaged, or belongs to another dataset.
        """
        found, notes = find_document_origins(self.prefix, num_documents, documents)
        self.notes.extend(note for note in notes if note not in self.notes)
        for origin in found:
            self.check_input(origin)
        return found

    def check_input(self, origin: DocumentOrigin) -> None:
        """Note what became of the input of a document since the dataset was made from it."""
        made = self.manifest if origin.part is None else read_manifest(origin.part.prefix)
        if origin.source is None or made is None:
            return
        problem = input_problem(made, origin.source.input)
        note = f"{origin.source.path}: this input {problem}; lines are those that it had when the dataset was made"
        if problem is not None and note not in self.notes:
            self.notes.append(note)


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
    tokenizer, note = _choose_tokenizer(prefix, tokenizer_model)
    facts = {} if manifest is None else _facts(manifest)
    return Origin(prefix=prefix, manifest=manifest, tokenizer=tokenizer, text_note=note, facts=facts)


def find_misfit(content: Content | None, store: TokenStore) -> str | None:
    """Return a sentence if a manifest has other counts than the dataset beside it; None if they agree."""
    if content is None or (content.documents, content.tokens) == (store.num_documents, len(store.tokens)):
        return None
    return (
        f"{store.paths[0]}: expected {content.documents:,} documents and {content.tokens:,} tokens as in its manifest, "
        f"got {store.num_documents:,} and {len(store.tokens):,}; one of them belongs to another dataset"
    )


def load_recorded(prefix: str, named: NamedTokenizer, *, given: str | None) -> Tokenizer:
    """Load the tokenizer that a dataset was made with.

    Args:
        prefix: The dataset's path without suffix.
        named: The tokenizer in its manifest.
        given: The path to load it from; None to look for it.

    Raises:
        TokenizerError: If it is missing or differs from the recorded one.
    """
    if given is not None:
        tokenizer = named.load(given, is_given=True)
        if tokenizer.sha256 != named.sha256:
            raise _another(named, given, tokenizer.sha256)
        return tokenizer
    found, others = find_tokenizer(named, prefix)
    if found is not None:
        return found
    if not others:
        raise TokenizerError(
            f"expected the tokenizer {named.name!r} (sha256 {named.sha256[:16]}…) that the dataset was made with, "
            f"found none by that name; give its path with --tokenizer-model"
        )
    other = next((each for each in others if each.sha256 is not None), others[0])
    raise TokenizerError(other.error) if other.sha256 is None else _another(named, other.place, other.sha256)


def input_problem(manifest: Manifest, number: int) -> str | None:
    """Return what became of an input since the build; None if it is as it was."""
    recorded, absolute = manifest.content.inputs[number], manifest.run.plan["inputs"]
    path = recorded.path
    if not is_there(path) and number < len(absolute):
        path = str(absolute[number][0])
    try:
        status = input_status(path)
        if recorded.size_bytes is not None and status.size_bytes != recorded.size_bytes:
            return f"has changed: it had {recorded.size_bytes:,} bytes and has {status.size_bytes:,}"
        if recorded.fingerprint is not None and fingerprint_input(status.path) != recorded.fingerprint:
            return "has changed: it has the same size and other content"
    except (FileNotFoundError, NotADirectoryError, MissingObjectError):
        return "is not there any more"
    except (OSError, DsindexError):
        return "is out of reach now"
    return None


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


def _choose_tokenizer(prefix: str, given: str | None) -> tuple[Tokenizer | None, str | None]:
    """Return the tokenizer to decode with, and a sentence if there is none or it may be another one."""
    named = read_named_tokenizer(prefix)
    if named is None and given is not None:
        return load_tokenizer(given), "no tokenizer is recorded, so it is unknown whether this is the right one"
    if named is None:
        return None, f"no manifest names the tokenizer; {GIVE_TOKENIZER}"
    if given is not None:
        tokenizer = named.load(given, is_given=True)
        if tokenizer.sha256 == named.sha256:
            return tokenizer, None
        other = f"{given} is another tokenizer (sha256 {tokenizer.sha256[:16]}…) than the dataset was made with"
        return tokenizer, f"{other} ({named.name}, sha256 {named.sha256[:16]}…), so the text can be wrong"
    try:
        return load_recorded(prefix, named, given=None), None
    except TokenizerError as error:
        return None, str(error)


def _another(named: NamedTokenizer, path: str, sha256: str) -> TokenizerError:
    return TokenizerError(
        f"{path}: expected the tokenizer with sha256 {named.sha256} that the dataset was made with, got {sha256}; give "
        f"that one with --tokenizer-model"
    )
