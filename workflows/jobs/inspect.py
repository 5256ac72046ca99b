"""Look into a dataset: what it is, how long its documents are, and the tokens of some of them as text.

Nothing is written. Damage is a finding, and what can still be read is shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dsindex.errors import DsindexError, FormatError, InputError
from dsindex.formats.mmididx import read_header
from dsindex.inspection.finding import find_ids
from dsindex.inspection.kinds import tell_kind
from dsindex.inspection.lengths import summarize_lengths
from dsindex.inspection.stores import IndexedStore, PackedStore, size_of
from dsindex.text.references import reference_of
from workflows.execution.cpus import available_cpus
from workflows.jobs.inspect_caches import look_at_cache
from workflows.jobs.inspect_excerpts import Excerpt, Excerpts
from workflows.jobs.inspect_exports import look_at_export
from workflows.jobs.inspect_origin import Origin, find_origin
from workflows.jobs.inspect_others import look_at_lines, look_at_loss_masks, look_at_work_folder, open_loss_masks

if TYPE_CHECKING:
    from dsindex.formats.token_array import Tokens
    from dsindex.inspection.kinds import Subject
    from dsindex.inspection.lengths import LengthSummary

FIRST_DOCUMENTS = 3
CONTEXT_TOKENS = 8
"""Tokens shown on each side of a match."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectOptions:
    """What to show; without a choice, an overview."""

    document: int | None = None
    sequence: int | None = None
    sample: int | None = None
    find: str | None = None
    limit: int = 10
    """The largest number of matches."""
    max_tokens: int | None = None
    """The largest number of tokens shown of a document; None for a default."""
    tokenizer_model: str | None = None
    split: str | None = None
    data_path: tuple[str, ...] | None = None
    """Prefixes of an index cache's datasets, if they were moved."""

    @property
    def is_overview(self) -> bool:
        """Whether nothing was chosen."""
        return (self.document, self.sequence, self.sample, self.find) == (None, None, None, None)


@dataclass(slots=True, kw_only=True)
class Inspection:
    """What was seen."""

    path: str
    kind: str
    facts: dict[str, Any] = field(default_factory=dict)
    """Name -> number, text, list of texts, or sizes of files by path."""
    lengths: dict[str, LengthSummary] = field(default_factory=dict)
    """`documents` and `sequences`, in tokens."""
    excerpts: list[Excerpt] = field(default_factory=list)
    matches: int | None = None
    """Number of matches shown, if a text was looked for."""
    notes: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    """Sentences about damage."""


def run_inspect(path: str, options: InspectOptions) -> Inspection:
    """Look at what a path leads to.

    Raises:
        InputError: If there is nothing that dsindex knows, or it has no such document, sequence or sample.
        FormatError: If the file is in none of the known formats.
        TokenizerError: If the tokenizer that was given cannot be read.
    """
    subject = tell_kind(path)
    seen = Inspection(path=subject.path, kind=subject.kind)
    _refuse_foreign(subject, options)
    try:
        if subject.kind == "MMIDIDX":
            _look_at_indexed(seen, subject.path, options)
        elif subject.kind == "pbin":
            _look_at_packed(seen, options)
        elif subject.kind == "instruction data":
            masks = open_loss_masks(subject.path)
            _look_at_indexed(seen, f"{subject.path}_text_document", options, masks=masks)
            look_at_loss_masks(seen.facts, seen.findings, subject.path)
        elif subject.kind == "index cache":
            _look_at_cache(seen, options)
        elif subject.kind == "raw index":
            look_at_lines(seen.facts, seen.excerpts, subject.path, line=options.document, cut=options.max_tokens)
        elif subject.kind == "export":
            look_at_export(seen.facts, seen.findings, subject.path)
        else:
            seen.facts |= look_at_work_folder(subject.path)
    except IndexError as error:
        raise InputError(str(error)) from error
    except FormatError as error:
        seen.findings.append(str(error))
    return seen


def _refuse_foreign(subject: Subject, options: InspectOptions) -> None:
    """Refuse a choice that this kind does not have.

    Raises:
        InputError: If there is one.
    """
    has = {
        "MMIDIDX": {"document", "sequence", "find"},
        "instruction data": {"document", "sequence", "find"},
        "pbin": {"document", "find"},
        "raw index": {"document"},
        "index cache": {"sample", "split", "data_path"},
        "export": set(),
        "work folder": set(),
    }[subject.kind]
    for name in ("document", "sequence", "sample", "find", "split", "data_path"):
        if getattr(options, name) is not None and name not in has:
            able = ", ".join(f"--{each.replace('_', '-')}" for each in sorted(has)) or "none of these flags"
            flag = f"--{name.replace('_', '-')}"
            msg = f"{subject.path}: expected {able}, got {flag}, which does not apply to this kind ({subject.kind})"
            raise InputError(msg)


def _look_at_indexed(seen: Inspection, prefix: str, options: InspectOptions, *, masks: Tokens | None = None) -> None:
    seen.facts["files"] = size_of([f"{prefix}.bin", f"{prefix}.idx"])
    origin = find_origin(prefix, options.tokenizer_model)
    is_whole = True
    try:
        store = IndexedStore(prefix)
    except FormatError as error:
        seen.findings.append(str(error))
        is_whole = False
        header = read_header(f"{prefix}.idx")
        seen.facts |= {"token type": str(header.dtype), "documents": header.num_documents}
        seen.facts |= {"sequences": header.num_sequences}
        _tell_origin(seen, origin)
        try:
            store = IndexedStore(prefix, check=False)
        except FormatError:
            return
    seen.facts |= {"token type": str(store.dataset.dtype), "documents": store.num_documents}
    seen.facts |= {"sequences": store.num_sequences, "tokens": len(store.tokens)}
    if store.dataset.sequence_modes is not None:
        seen.facts["modes"] = "each sequence has a mode"
    _look_at_tokens(seen, store, origin, options, is_whole=is_whole, masks=masks)


def _look_at_packed(seen: Inspection, options: InspectOptions) -> None:
    seen.facts["files"] = size_of([seen.path])
    origin = find_origin(seen.path.removesuffix(".pbin"), options.tokenizer_model)
    try:
        store = PackedStore(seen.path)
    except FormatError:
        _tell_origin(seen, origin)
        raise
    header = store.header
    seen.facts |= {"version": header.version.name, "token type": f"{header.token_bytes} bytes, unsigned"}
    seen.facts |= {"documents": store.num_documents, "tokens": header.num_tokens}
    _look_at_tokens(seen, store, origin, options, is_whole=True)


def _look_at_tokens(
    seen: Inspection,
    store: IndexedStore | PackedStore,
    origin: Origin,
    options: InspectOptions,
    *,
    is_whole: bool,
    masks: Tokens | None = None,
) -> None:
    _tell_origin(seen, origin)
    if not _agrees(seen, store, origin):
        origin = origin.without_provenance()
    excerpts = Excerpts(store, origin, options.max_tokens, masks=masks)
    if options.document is not None:
        seen.excerpts.append(excerpts.document(options.document))
    elif options.sequence is not None and isinstance(store, IndexedStore):
        seen.excerpts.append(excerpts.sequence(options.sequence))
    elif options.find is not None:
        _find(seen, store, origin, excerpts, options.find, limit=options.limit)
    else:
        if is_whole:
            seen.lengths["documents"] = summarize_lengths(store.document_lengths)
            if isinstance(store, IndexedStore) and store.num_sequences != store.num_documents:
                seen.lengths["sequences"] = summarize_lengths(store.sequence_lengths)
        seen.excerpts += [
            excerpts.document(number, first_only=True) for number in range(min(FIRST_DOCUMENTS, store.num_documents))
        ]
    seen.findings += excerpts.findings


def _agrees(seen: Inspection, store: IndexedStore | PackedStore, origin: Origin) -> bool:
    """Compare a dataset with the counts in its manifest, which may be that of another dataset."""
    content = origin.content
    if content is None or (content.documents, content.tokens) == (store.num_documents, len(store.tokens)):
        return True
    seen.findings.append(
        f"{store.paths[0]}: expected {content.documents:,} documents and {content.tokens:,} tokens as in its manifest, "
        f"got {store.num_documents:,} and {len(store.tokens):,}; one of them belongs to another dataset"
    )
    return False


def _tell_origin(seen: Inspection, origin: Origin) -> None:
    if seen.facts.get("origin") is None:
        seen.facts |= origin.facts
        seen.notes += origin.notes
        seen.findings += origin.findings


def _find(
    seen: Inspection,
    store: IndexedStore | PackedStore,
    origin: Origin,
    excerpts: Excerpts,
    text: str,
    *,
    limit: int,
) -> None:
    if store.tokens.dtype.kind not in "iu":
        msg = f"{seen.path}: expected integer tokens to find a text in, got {store.tokens.dtype}"
        raise InputError(msg)
    tokenizer = origin.tokenizer
    if tokenizer is None:
        msg = f"{seen.path}: --find needs the dataset's tokenizer; give it with --tokenizer-model"
        raise InputError("; ".join([msg, *origin.notes[:1]]))
    try:
        text.encode()
    except UnicodeEncodeError as error:
        msg = f"--find: expected a text in UTF-8, got {text!r}"
        raise InputError(msg) from error
    bare = text.removeprefix(" ")
    forms = [bare, f" {bare}"]
    tokens, counts = reference_of(tokenizer).encode(forms, add_special_tokens=False)
    first, second = tuple(tokens[: counts[0]].tolist()), tuple(tokens[counts[0] :].tolist())
    patterns = [ids for ids in dict.fromkeys((first, second)) if ids]
    if first and second[-len(first) :] == first:  # whatever has the second form has the first one
        patterns = [first]
    if not bare or not patterns:
        msg = f"--find: expected a text that has tokens, got {text!r}"
        raise InputError(msg)
    matches = find_ids(store, patterns, limit=limit, threads=available_cpus())
    for match in matches:
        ids = patterns[match.pattern]
        seen.excerpts.append(excerpts.match(match, len(ids), around=CONTEXT_TOKENS))
    seen.matches = len(matches)
    for form, ids in zip(forms, (first, second), strict=True):
        seen.notes.append(f"looked for {form!r} as the ids {' '.join(map(str, ids))}")
    if len(matches) == limit:
        seen.notes.append(f"stopped after {limit:,}; there may be more, which --limit shows")
    seen.notes.append(
        "a text can be tokenized differently within other text, so some occurrences may not be found this way"
    )


def _look_at_cache(seen: Inspection, options: InspectOptions) -> None:
    cache = look_at_cache(seen.path, split=options.split, data_path=options.data_path)
    seen.facts |= cache.facts
    seen.findings += cache.findings
    if cache.dataset is None:
        return
    origin = find_origin(cache.prefix, options.tokenizer_model)
    seen.notes += [note for note in origin.notes if not note.startswith("no manifest")] if options.is_overview else []
    if not options.is_overview:
        seen.notes += origin.notes
    number = options.sample if options.sample is not None else 0
    if options.sample is None and not len(cache.dataset):
        return
    try:
        seen.excerpts += cache.sample(number, tokenizer_model=options.tokenizer_model, max_tokens=options.max_tokens)
    except DsindexError as error:
        seen.findings.append(str(error))
