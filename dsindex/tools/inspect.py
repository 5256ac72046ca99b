"""Look into a dataset: what it is, how long its documents are, and the tokens of some of them as text.

Nothing is written. Damage is a finding, and what can still be read is shown.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from dsindex.amounts import align, count, format_size
from dsindex.datasets.blended import BlendedDataset
from dsindex.datasets.exports import export_folder_of, read_facts
from dsindex.datasets.gpt import open_cached_index
from dsindex.datasets.indexed import IndexedDataset
from dsindex.datasets.instruction import packing_prefix
from dsindex.datasets.opening import MASK_SUFFIX, open_dataset
from dsindex.datasets.raw import RawLines
from dsindex.engine.export_folder import ExportedSplit, read_export_manifest
from dsindex.engine.ledger import Ledger
from dsindex.engine.work_folder import LOCK_FILE
from dsindex.errors import DsindexError, FormatError, InputError
from dsindex.execution.local import available_cpus
from dsindex.execution.progress.displays import describe
from dsindex.execution.progress.progress_file import LARGEST_BYTES, PROGRESS_FILE
from dsindex.execution.progress.reporter import Snapshot
from dsindex.execution.report import Report
from dsindex.formats.mmididx import read_header
from dsindex.index.cache import (
    BLENDED_CLASS,
    descriptions_in,
    read_description,
    record_beside,
    source_changes,
)
from dsindex.index.cuts import count_cuts
from dsindex.json_text import decode_json, show_name
from dsindex.options.mix_amounts import show_percent
from dsindex.store.lock import owner_is_gone
from dsindex.store.storage import read_own
from dsindex.text.conversion import read_definition
from dsindex.text.tokenizer import decode, reference_of
from dsindex.tools.kinds import BLOCK_ITEMS, IndexedStore, PackedStore, find_ids, size_of, tell_kind
from dsindex.tools.lengths import summarize_lengths
from dsindex.tools.origin import SHOWN_INPUTS, Origin, find_misfit, find_origin
from dsindex.tools.phases import read_phases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from dsindex.datasets.gpt import GPTDataset
    from dsindex.datasets.origins import PartDocument
    from dsindex.formats.mmididx import Tokens
    from dsindex.index.cuts import Cuts
    from dsindex.options.datasets import InspectConfig
    from dsindex.text.tokenizer import Tokenizer
    from dsindex.tools.kinds import Match, Subject
    from dsindex.tools.lengths import LengthSummary
    from dsindex.tools.origin import DocumentSource


# Excerpts of a dataset: the tokens of a document, sequence or match, their text, and the line they come from.

# Decode tokens one by one, so that it is visible where each begins.

LONGEST_GROUP = 8
"""Tokens that may make up one character together; a UTF-8 sequence has 4 bytes."""
_REPLACEMENT = "\ufffd"
# Besides what show_name escapes: marks without width, and characters that stand for tags.
_INVISIBLE = re.compile("[\u00ad\u061c\u180e\u200b-\u200f\u2060-\u2065\u206a-\u206f\ufeff\U000e0000-\U000e007f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The text of a token, or of several tokens that make up a character only together."""

    ids: tuple[int, ...]
    text: str | None
    """None for an id that is not in the tokenizer's vocabulary."""


def cut_pieces(tokenizer: Tokenizer, ids: Sequence[int], *, before: Sequence[int] = ()) -> list[Piece]:
    """Return the text of each token, as it is within the text of all.

    Tokens are decoded after the piece before them, since the text of many depends on whether something precedes it.

    Args:
        tokenizer: The tokenizer of the ids.
        ids: Tokens.
        before: Some tokens that precede them.
    """
    pieces: list[Piece] = []
    before = tuple(token for token in before if 0 <= token < tokenizer.vocabulary_size)
    group: tuple[int, ...] = ()
    for number, token in enumerate(ids):
        if not 0 <= token < tokenizer.vocabulary_size:
            if group:
                pieces.append(Piece(ids=group, text=_text_after(tokenizer, before, group)))
            pieces.append(Piece(ids=(token,), text=None))
            before = group = ()
            continue
        group = (*group, token)
        text = _text_after(tokenizer, before, group)
        if text.endswith(_REPLACEMENT) and len(group) < LONGEST_GROUP and number + 1 < len(ids):
            continue
        pieces.append(Piece(ids=group, text=text))
        before, group = group, ()
    if group:
        pieces.append(Piece(ids=group, text=_text_after(tokenizer, before, group)))
    return pieces


def text_of(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return the text of tokens, in which an id that is not in the tokenizer's vocabulary is shown as ⟨id⟩."""
    texts: list[str] = []
    known: list[int] = []
    for token in ids:
        if 0 <= token < tokenizer.vocabulary_size:
            known.append(token)
        else:
            texts += [_decode(tokenizer, tuple(known)) if known else "", f"⟨{token}⟩"]
            known = []
    return "".join([*texts, _decode(tokenizer, tuple(known)) if known else ""])


def show_text(text: str) -> str:
    r"""Return a text with control characters and invisible ones escaped, so that it cannot control a terminal.

    >>> print(show_text("a\x1b[2J\u200bb"))
    a\x1b[2J\u200bb
    """
    return _INVISIBLE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), show_name(text))


def _text_after(tokenizer: Tokenizer, before: tuple[int, ...], ids: tuple[int, ...]) -> str:
    if not before:
        return _decode(tokenizer, ids)
    first, both = _decode(tokenizer, before), _decode(tokenizer, (*before, *ids))
    return both[len(first) :] if both.startswith(first) else _decode(tokenizer, ids)


def _decode(tokenizer: Tokenizer, ids: tuple[int, ...]) -> str:
    if tokenizer.library == "tiktoken":  # `decode` spells the whole vocabulary at each call
        spelt = _spelling(tokenizer.model)
        return b"".join(spelt.get(number, b"") for number in ids).decode(errors="replace")
    return decode(tokenizer, ids)


@functools.lru_cache(maxsize=2)
def _spelling(model: bytes) -> dict[int, bytes]:
    encoding = read_definition(model)
    spelt = {number: token for token, number in encoding.ranks.items()}
    named = {**encoding.control_tokens, **encoding.special_tokens}
    spelt.update((number, token.encode()) for token, number in named.items())
    return spelt


Found = TypeVar("Found")

FIRST_TOKENS = 64
"""Tokens shown of each document in an overview."""
CHOSEN_TOKENS = 2000
"""Tokens shown of a document that was asked for."""
BEFORE = 2
"""Tokens before an excerpt on which its first token's text may depend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """A run of tokens."""

    title: str
    num_tokens: int
    """Tokens of the whole document, sequence or part."""
    begin: int = 0
    pieces: tuple[Piece, ...] = ()
    """Shown tokens with their text, which is None without a tokenizer."""
    marked: tuple[int, int] | None = None
    """The tokens of a match: the first, and one past the last, counted as `begin`."""
    document: int | None = None
    source: DocumentSource | None = None
    part: PartDocument | None = None
    """The document in the dataset that was merged into this one."""
    mask: tuple[int, ...] | None = None
    """Of instruction data: 1 for each token shown that is trainable, else 0."""
    text: str | None = None
    """The line of a raw index, instead of tokens."""

    @property
    def end(self) -> int:
        """One past the last token shown."""
        return self.begin + sum(len(piece.ids) for piece in self.pieces)


class Excerpts:
    """Takes excerpts from one dataset.

    Args:
        store: Its tokens.
        origin: Its manifest, tokenizer and provenance.
        max_tokens: Tokens shown of a document; None for a default.
        masks: The loss mask of each token, for instruction data.
    """

    def __init__(
        self,
        store: IndexedStore | PackedStore,
        origin: Origin,
        max_tokens: int | None,
        *,
        masks: Tokens | None = None,
    ) -> None:
        self._store = store
        self._origin = origin
        self._max_tokens = max_tokens
        self._masks = masks
        self.findings: list[str] = []
        """Sentences about provenance that cannot be read."""

    def document(self, number: int, *, first_only: bool = False) -> Excerpt:
        """Return the beginning of a document.

        Raises:
            IndexError: If there is no such document.
            FormatError: If the index points outside the tokens.
        """
        begin, end = self._store.document_span(number)
        return self._excerpt(f"document {number:,}", number, begin, end, first_only=first_only)

    def sequence(self, number: int) -> Excerpt:
        """Return the beginning of a sequence of an MMIDIDX dataset.

        Raises:
            IndexError: If there is no such sequence.
            FormatError: If the index points outside the tokens.
        """
        store = self._store
        if not isinstance(store, IndexedStore):
            raise IndexError(f"{store.paths[0]}: a .pbin has no sequences")
        begin, end = store.sequence_span(number)
        document = store.document_of(number)
        return self._excerpt(f"sequence {number:,} of document {document:,}", document, begin, end)

    def match(self, match: Match, length: int, *, around: int) -> Excerpt:
        """Return a match with tokens before and after it from the same document."""
        first = match.token - match.position
        end = first + match.num_tokens
        shown_begin = max(first, match.token - around)
        shown_end = min(end, match.token + length + around)
        # One piece each, so that a match is never part of a group with its neighbours.
        parts = [(shown_begin, match.token), (match.token, match.token + length), (match.token + length, shown_end)]
        pieces = [piece for part in parts for piece in self._pieces(*part, first)]
        return Excerpt(
            title=f"document {match.document:,}, token {match.position:,}",
            num_tokens=end - first,
            begin=shown_begin - first,
            pieces=tuple(pieces),
            marked=(match.position, match.position + length),
            document=match.document,
            source=self._look_up(self._origin.source_of, match.document),
            part=self._look_up(self._origin.part_of, match.document),
        )

    def _excerpt(self, title: str, document: int, begin: int, end: int, *, first_only: bool = False) -> Excerpt:
        total = len(self._store.tokens)
        if not 0 <= begin <= end <= total:
            msg = f"{self._store.paths[-1]}: expected {title} within {total:,} tokens, got {begin:,} to {end:,}"
            raise FormatError(msg)
        shown = self._max_tokens if self._max_tokens is not None else FIRST_TOKENS if first_only else CHOSEN_TOKENS
        return Excerpt(
            title=title,
            num_tokens=end - begin,
            pieces=tuple(
                pieces_of(self._store.tokens[begin : min(end, begin + shown)].tolist(), self._origin.tokenizer)
            ),
            document=document,
            source=self._look_up(self._origin.source_of, document),
            part=self._look_up(self._origin.part_of, document),
            mask=self._mask(begin, min(end, begin + shown)),
        )

    def _pieces(self, begin: int, end: int, first: int) -> list[Piece]:
        """Return tokens of a document that begins at the token `first`."""
        tokens = self._store.tokens
        return pieces_of(
            tokens[begin:end].tolist(),
            self._origin.tokenizer,
            before=tokens[max(begin - BEFORE, first) : begin].tolist(),
        )

    def _mask(self, begin: int, end: int) -> tuple[int, ...] | None:
        if self._masks is None or len(self._masks) != len(self._store.tokens):
            return None
        return tuple(int(value != 0) for value in self._masks[begin:end].tolist())

    def _look_up(self, find: Callable[[int], Found | None], document: int) -> Found | None:
        try:
            return find(document)
        except FormatError as error:
            if str(error) not in self.findings:
                self.findings.append(str(error))
            return None


def pieces_of(ids: Sequence[Any], tokenizer: Tokenizer | None, *, before: Sequence[Any] = ()) -> list[Piece]:
    """Return the text of each token; without a tokenizer, or for tokens that are no integers, the bare ids."""
    if tokenizer is None or not all(isinstance(token, int) for token in ids):
        return [Piece(ids=(token,), text=None) for token in ids]
    return cut_pieces(tokenizer, ids, before=before)


# Look at index caches: their settings, whether they fit their data, and the tokens of a sample.


FIRST_OF_BLEND = 24
"""Samples whose datasets show the order of a blend."""


@dataclass(slots=True, kw_only=True)
class CacheView:
    """One index cache."""

    facts: dict[str, Any] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    dataset: GPTDataset | BlendedDataset | None = None
    """None if it could not be opened."""
    prefix: str = ""
    """Prefix of its first dataset."""

    def sample(self, number: int, *, tokenizer_model: str | None, max_tokens: int | None) -> list[Excerpt]:
        """Return the parts of a sample, each from one sequence.

        Raises:
            IndexError: If there is no such sample.
            FormatError: If the indices point outside the data.
        """
        if self.dataset is None:
            return []
        if not 0 <= number < len(self.dataset):
            raise IndexError(f"expected a sample from 0 to {len(self.dataset) - 1}, got {number}")
        datasets = {each.prefix: each for each in _datasets_of(self.dataset)}
        origins: dict[str, Origin] = {}
        excerpts = []
        left = FIRST_TOKENS * 16 if max_tokens is None else max_tokens
        for part in self.dataset.parts(number):
            data = datasets[part.prefix]
            origin = origins.setdefault(part.prefix, find_origin(part.prefix, tokenizer_model))
            document = data.document_of(part.sequence)
            shown = data.get(part.sequence, part.offset, min(part.num_tokens, left)).tolist()
            before = data.get(part.sequence, max(part.offset - BEFORE, 0), min(part.offset, BEFORE)).tolist()
            left -= len(shown)
            where = f"tokens {part.offset:,} to {part.offset + part.num_tokens - 1:,} of sequence {part.sequence:,}"
            excerpt = Excerpt(
                title=f"sample {number:,}: {where} (document {document:,}) of {part.prefix}",
                num_tokens=part.num_tokens,
                pieces=tuple(pieces_of(shown, origin.tokenizer, before=before)),
                document=document,
                source=origin.source_of(document),
                part=origin.part_of(document),
            )
            excerpts.append(excerpt)
        return excerpts


def _datasets_of(dataset: GPTDataset | BlendedDataset) -> list[Any]:
    parts = dataset.datasets if isinstance(dataset, BlendedDataset) else (dataset,)
    return [part.dataset for part in parts]


def look_at_cache(path: str, *, split: str | None, data_path: Sequence[str] | None) -> CacheView:
    """Describe the index caches in a folder, or one, and open that of a split.

    Args:
        path: The folder, or a description.
        split: Which split to open; None for the first of train, valid and test that is there.
        data_path: Prefixes of the datasets, if they were moved.

    Raises:
        InputError: If the split has no cache, or several.
        FormatError: If a description is damaged.
    """
    is_folder = os.path.isdir(path)
    descriptions = {each: read_description(each) for each in (descriptions_in(path) if is_folder else [path])}
    blends_first = sorted(descriptions.items(), key=lambda item: item[1]["class"] != BLENDED_CLASS)
    view = CacheView()
    for each, description in blends_first:
        view.facts.setdefault("caches", []).extend(_describe(each, description))
        view.findings += _changes(each, data_path)
    splits = {str(known.get("index_split", known.get("split"))) for known in descriptions.values()}
    chosen = split or next((name for name in ("train", "valid", "test") if name in splits), None)
    try:
        prefixes = None if data_path is None else list(data_path)
        opened = open_dataset(path, split=chosen if is_folder else None, prefix=prefixes)
    except (FormatError, ValueError) as error:
        view.findings.append(str(error))
        return view
    except InputError as error:
        if split is not None:
            raise
        view.findings.append(str(error))
        return view
    view.dataset = cast("GPTDataset | BlendedDataset", opened)  # as only they have descriptions
    view.prefix = _datasets_of(view.dataset)[0].prefix
    view.facts["split"] = chosen or "the only one"
    view.facts["samples"] = len(opened)
    if isinstance(view.dataset, BlendedDataset):
        blend, names = view.dataset, [os.path.basename(each.prefix) for each in _datasets_of(view.dataset)]
        phases = read_phases(blend.description_path, blend.dataset_index, len(names))
        if phases:
            view.facts["phases"] = [phase.line(names) for phase in phases]
            view.findings += [finding for phase in phases for finding in phase.findings]
    datasets = view.dataset.datasets if isinstance(view.dataset, BlendedDataset) else (view.dataset,)
    for dataset in datasets:
        label = "documents cut" + (f", {os.path.basename(dataset.dataset.prefix)}" if len(datasets) > 1 else "")
        with contextlib.suppress(IndexError):  # the sample below says what is wrong with the cache
            view.facts[label] = cuts_of(dataset).lines()
    return view


def cuts_of(dataset: GPTDataset) -> Cuts:
    """Count the documents that the borders of a dataset's samples cut."""
    lengths, samples = dataset.dataset.sequence_lengths, max(0, len(dataset.sample_index) - 1)
    return count_cuts(lengths, dataset.document_index, sequence_length=dataset.sequence_length, num_samples=samples)


def _describe(path: str, description: dict[str, Any]) -> list[str]:
    if description["class"] == BLENDED_CLASS:
        return _describe_blend(path, description)
    shown = ("sequence_length", "num_samples", "random_seed", "split")
    settings = ", ".join(f"{name} = {description[name]}" for name in shown if description.get(name) is not None)
    return [f"{description['index_split']}: {description['dataset_path']}", f"  {settings}"]


def _describe_blend(path: str, description: dict[str, Any]) -> list[str]:
    parts = [str(part.get("dataset_path")) for part in description["datasets"]]
    weights = [f"weight {weight}" for weight in description.get("weights") or [None] * len(parts)]
    try:
        numbers = open_cached_index(path, "dataset_index")
    except FormatError:  # opening the cache says what is wrong with it
        return [f"{description['split']}: a blend of {len(parts)}", *(f"  {part}" for part in parts)]
    blocks = (numbers[begin : begin + BLOCK_ITEMS] for begin in range(0, len(numbers), BLOCK_ITEMS))
    drawn = sum((np.bincount(block, minlength=len(parts)) for block in blocks), np.zeros(len(parts), np.int64))
    begin = " ".join(map(str, numbers[:FIRST_OF_BLEND].tolist()))
    rows = [
        (str(number), weight, count(samples, "sample"), show_percent(samples / max(1, len(numbers))), part)
        for number, (weight, samples, part) in enumerate(zip(weights, drawn.tolist(), parts, strict=False))
    ]
    return [
        f"{description['split']}: a blend of {len(parts)}, {count(len(numbers), 'sample')}",
        *(f"  {row}" for row in align(rows, texts=(0, 1, 4))),
        f"  in this order: {begin}{' …' if len(numbers) > FIRST_OF_BLEND else ''}",
    ]


def _changes(path: str, data_path: Sequence[str] | None) -> list[str]:
    """Return how the data differ from what dsindex recorded beside a cache; nothing for another program's cache."""
    record = record_beside(path)
    source = record.get("source") if isinstance(record, dict) else None
    if not isinstance(source, dict):
        return []
    prefix = data_path[0] if data_path is not None and len(data_path) == 1 else source.get("prefix")
    try:
        return source_changes(str(prefix), source)
    except (KeyError, TypeError, ValueError, OSError):
        return [f"{path}: expected a record of the data beside it, got a damaged one; build the cache again"]


# Look at an export of instruction data: what it is for, what is in it, and what it was made of.

READERS = {
    "parquet": "rows with labels: TRL, transformers, axolotl",
    "bridge": "packed sequences: Megatron-Bridge, NeMo",
}


def look_at_export(facts: dict[str, Any], findings: list[str], path: str) -> None:
    """Describe the folder of an export, or one file of it.

    Raises:
        FormatError: If its manifest, or the Parquet file, cannot be read.
    """
    if os.path.isfile(path) and path.endswith(".parquet"):
        own = read_facts(path)
        facts["export"] = describe_kind(own.get("export", ""))
        facts["files"] = size_of([path])
        facts |= {name: int(value) for name, value in own.items() if name != "export" and value.isdecimal()}
        return
    folder = export_folder_of(path) or path
    manifest = read_export_manifest(folder)
    if manifest is None:
        return
    content = manifest.content
    facts["export"] = describe_kind(content.kind)
    names = [os.path.join(folder, name) for name in content.digests]
    facts["files"] = size_of([name for name in names if os.path.isfile(name)])
    for name, split in content.splits.items():
        facts[name] = describe_split(split)
    facts["made of"] = list(content.sources)
    if content.tokenizer is not None:
        facts["tokenizer"] = str(content.tokenizer.get("name"))
    for name, file in content.digests.items():
        full = os.path.join(folder, name)
        found = os.path.getsize(full) if os.path.isfile(full) else None
        if found != file.size_bytes:
            got = "no such file" if found is None else f"{found} bytes"
            findings.append(f"{full}: expected {file.size_bytes} bytes as in the manifest, got {got}; export it again")


def describe_kind(kind: str) -> str:
    """Return a kind of export with its readers."""
    return f"{kind}, {READERS[kind]}" if kind in READERS else kind


def describe_split(split: ExportedSplit) -> str:
    """Return the rows of a split and what is learnt of them."""
    return (
        f"{count(split.rows, 'row')}, {count(split.tokens, 'token')}, {split.trainable:,} trainable, "
        f"{count(split.targets, 'target')}"
    )


# Look at what has no tokens of its own: raw indices, loss masks and work folders.

BLOCK_BYTES = 1 << 22
LINE_CHARACTERS = 400


def look_at_lines(
    facts: dict[str, Any], excerpts: list[Excerpt], index_path: str, *, line: int | None, cut: int | None
) -> None:
    """Describe a raw index and show lines of its file.

    Raises:
        InputError: If the file is missing.
        FormatError: If the index is damaged or belongs to another file.
        IndexError: If there is no such line.
    """
    lines = open_dataset(index_path)
    if not isinstance(lines, RawLines):
        raise FormatError(f"{index_path}: expected a raw index, got another kind of dataset")
    facts["files"] = size_of([lines.path, index_path])
    facts["lines"] = len(lines)
    for number in _spread(len(lines)) if line is None else [line]:
        if not 0 <= number < len(lines):
            raise IndexError(f"{index_path}: expected a line from 0 to {len(lines) - 1}, got {number}")
        text = lines[number].decode(errors="replace")
        shown = len(text) if line is not None and cut is None else min(len(text), cut or LINE_CHARACTERS)
        more = f" … {len(text) - shown:,} more characters" if shown < len(text) else ""
        excerpts.append(Excerpt(title=f"line {number:,} of the index", num_tokens=0, text=f"{text[:shown]}{more}"))


def open_loss_masks(prefix: str) -> Tokens | None:
    """Return the loss mask of each token of instruction data; None if they cannot be read."""
    try:
        return IndexedDataset(f"{prefix}{MASK_SUFFIX}").token_columns()[0]
    except FormatError:
        return None


def look_at_loss_masks(facts: dict[str, Any], findings: list[str], prefix: str) -> Tokens | None:
    """Count the trainable tokens of instruction data, and name its block layouts; return its masks."""
    try:
        masks = IndexedDataset(f"{prefix}{MASK_SUFFIX}")
    except FormatError as error:
        findings.append(str(error))
        return None
    values = masks.token_columns()[0]
    trainable = sum(
        int(np.count_nonzero(values[begin : begin + BLOCK_BYTES])) for begin in range(0, len(values), BLOCK_BYTES)
    )
    facts["trainable tokens"] = f"{trainable:,} of {len(values):,}"
    if "tokens" in facts and facts["tokens"] != len(values):
        findings.append(f"{prefix}{MASK_SUFFIX}: expected {facts['tokens']:,} masks, got {len(values):,}")
    layouts = sorted(glob.glob(f"{packing_prefix(glob.escape(prefix), 0)[:-1]}*.idx"))
    if layouts:
        facts["block layouts"] = [os.path.basename(layout).removesuffix(".idx") for layout in layouts]
    return values


def look_at_work_folder(path: str) -> dict[str, Any]:
    """Describe a work folder: its job, and how far it is.

    Raises:
        FormatError: If its ledger cannot be read.
    """
    ledger = Ledger(path)
    progress = _read_progress(os.path.join(path, PROGRESS_FILE))
    facts: dict[str, Any] = {"finished": "yes" if ledger.is_finished else "no: run the same command again to continue"}
    stage = progress.get("stage")
    if isinstance(stage, dict):
        with contextlib.suppress(KeyError, TypeError, ValueError):  # it is another version's
            snapshot = Snapshot(**{name: value for name, value in stage.items() if name != "series"})
            done = f"{snapshot.tasks_done:,} of {count(snapshot.tasks_total, snapshot.tasks.removesuffix('s'))}, "
            facts["stage"] = f"{snapshot.stage}: {done if snapshot.tasks_total else ''}{snapshot.share:.0%}"
            if progress.get("state") == "running":
                facts["pace"] = describe(snapshot)
    if ledger.plan is not None:
        inputs = [str(entry[0]) for entry in ledger.plan["inputs"]]
        more = len(inputs) - SHOWN_INPUTS
        facts["inputs"] = inputs[:SHOWN_INPUTS] + [f"and {more:,} more"] * (more > 0)
        settings: Mapping[str, Any] = ledger.plan["settings"]
        facts["settings"] = [f"{name} = {value}" for name, value in settings.items() if value not in (None, False, "")]
    for name in ("output", "state", "started", "updated", "host", "error", "message"):
        if isinstance(progress.get(name), str):
            facts[name] = progress[name]
    if facts.get("state") == "running" and owner_is_gone(os.path.join(path, LOCK_FILE)):
        facts["state"] = "running when it ended: its driver is gone"
    return facts


def _read_progress(path: str) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        progress = decode_json(read_own(path, most_bytes=LARGEST_BYTES))
        if isinstance(progress, dict):
            return progress
    return {}


SHOWN_ITEMS = 3
"""Documents or lines of an overview, spread over all of them."""
CONTEXT_TOKENS = 8
"""Tokens shown on each side of a match."""


@dataclass(slots=True, kw_only=True, repr=False)
class InspectResult(Report):
    """What was seen."""

    path: str
    kind: str
    is_overview: bool
    """Whether nothing was chosen; only then the facts are shown."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Name -> number, text, list of texts, or sizes of files by path."""
    lengths: dict[str, LengthSummary] = field(default_factory=dict)
    """`documents` and `sequences`, in tokens."""
    excerpts: list[Excerpt] = field(default_factory=list)
    matches: int | None = None
    """Number of matches shown, if a text was looked for."""
    notes: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged."""
        return not self.findings

    def lines(self, *, ids: bool = False, colored: bool = False) -> list[str]:
        """Return what was seen as text, in which nothing from the files can control a terminal.

        Args:
            ids: Show the id before the text of each token.
            colored: Use the colours of a terminal.
        """
        return list(_Page(ids=ids, colored=colored).lines(self))


def run_inspect(options: InspectConfig) -> InspectResult:
    """Look at what the path leads to.

    Raises:
        InputError: If there is nothing that dsindex knows, or it has no such document, sequence or sample.
        FormatError: If the file is in none of the known formats.
        TokenizerError: If the tokenizer that was given cannot be read.
    """
    subject = tell_kind(options.path)
    seen = InspectResult(path=subject.path, kind=subject.kind, is_overview=options.is_overview)
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
            look_at_lines(seen.facts, seen.excerpts, subject.path, line=options.document, cut=options.tokens)
        elif subject.kind == "export":
            look_at_export(seen.facts, seen.findings, subject.path)
        else:
            seen.facts |= look_at_work_folder(subject.path)
    except IndexError as error:
        raise InputError(str(error)) from error
    except FormatError as error:
        seen.findings.append(str(error))
    return seen


def _refuse_foreign(subject: Subject, options: InspectConfig) -> None:
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


def _look_at_indexed(seen: InspectResult, prefix: str, options: InspectConfig, *, masks: Tokens | None = None) -> None:
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


def _look_at_packed(seen: InspectResult, options: InspectConfig) -> None:
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
    seen: InspectResult,
    store: IndexedStore | PackedStore,
    origin: Origin,
    options: InspectConfig,
    *,
    is_whole: bool,
    masks: Tokens | None = None,
) -> None:
    _tell_origin(seen, origin)
    misfit = find_misfit(origin.content, store)
    if misfit is not None:
        seen.findings.append(misfit)
        origin = origin.without_provenance()
    excerpts = Excerpts(store, origin, options.tokens, masks=masks)
    if options.document is not None:
        seen.excerpts.append(excerpts.document(options.document))
    elif options.sequence is not None and isinstance(store, IndexedStore):
        seen.excerpts.append(excerpts.sequence(options.sequence))
    elif options.find is not None:
        _find(seen, store, origin, excerpts, options.find, limit=options.limit or 10)
    else:
        if is_whole:
            seen.lengths["documents"] = summarize_lengths(store.document_lengths())
            if isinstance(store, IndexedStore) and store.num_sequences != store.num_documents:
                seen.lengths["sequences"] = summarize_lengths(store.sequence_lengths())
        seen.excerpts += [excerpts.document(number, first_only=True) for number in _spread(store.num_documents)]
    seen.findings += excerpts.findings


def _spread(number: int) -> list[int]:
    """Return the numbers of a few of so many items, spread over all of them.

    >>> _spread(2), _spread(6000)
    ([0, 1], [1000, 3000, 5000])
    """
    return list(range(number)) if number <= SHOWN_ITEMS else [number // 6, number // 2, 5 * number // 6]


def _tell_origin(seen: InspectResult, origin: Origin) -> None:
    if seen.facts.get("origin") is None:
        seen.facts |= origin.facts
        seen.notes += origin.notes
        seen.findings += origin.findings


def _find(
    seen: InspectResult,
    store: IndexedStore | PackedStore,
    origin: Origin,
    excerpts: Excerpts,
    text: str,
    *,
    limit: int,
) -> None:
    if store.tokens.dtype.kind not in "iu":
        raise InputError(f"{seen.path}: expected integer tokens to find a text in, got {store.tokens.dtype}")
    tokenizer = origin.tokenizer
    if tokenizer is None:
        msg = f"{seen.path}: --find needs the dataset's tokenizer; give it with --tokenizer-model"
        raise InputError("; ".join([msg, *origin.notes[:1]]))
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"--find: expected a text in UTF-8, got {text!r}") from error
    bare = text.removeprefix(" ")
    forms = [bare, f" {bare}"]
    tokens, counts = reference_of(tokenizer).encode(forms, add_special_tokens=False)
    first, second = tuple(tokens[: counts[0]].tolist()), tuple(tokens[counts[0] :].tolist())
    patterns = [ids for ids in dict.fromkeys((first, second)) if ids]
    if first and second[-len(first) :] == first:  # whatever has the second form has the first one
        patterns = [first]
    if not bare or not patterns:
        raise InputError(f"--find: expected a text that has tokens, got {text!r}")
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


def _look_at_cache(seen: InspectResult, options: InspectConfig) -> None:
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
        seen.excerpts += cache.sample(number, tokenizer_model=options.tokenizer_model, max_tokens=options.tokens)
    except DsindexError as error:
        seen.findings.append(str(error))


# Lay out what was seen as text.

WIDTH = 100
BORDER = "│"
STYLES = {"border": "2", "name": "1", "escape": "33", "found": "7", "learnt": "32", "damage": "31"}


class _Page:
    """Lays out an inspection; every text goes through `_text`, which escapes it."""

    def __init__(self, *, ids: bool, colored: bool) -> None:
        self._ids = ids
        self._colored = colored

    def lines(self, seen: InspectResult) -> Iterator[str]:
        yield self._text(f"{seen.path}: {seen.kind}", "name")
        for name, value in seen.facts.items() if seen.is_overview else ():
            yield from self._fact(name, value)
        for what, summary in seen.lengths.items():
            yield from self._lengths(what, summary)
        if seen.matches is not None:
            yield f"  {count(seen.matches, 'occurrence') if seen.matches else 'no occurrence'}"
        for excerpt in seen.excerpts:
            yield from self._excerpt(excerpt)
        yield from (f"  note: {self._text(note)}" for note in seen.notes)
        yield from (f"  {self._text('FOUND:', 'damage')} {self._text(finding)}" for finding in seen.findings)

    def _fact(self, name: str, value: Any) -> Iterator[str]:  # noqa: ANN401 - values of JSON
        if isinstance(value, dict):
            value = [f"{path} {format_size(size)}" for path, size in value.items()]
        values = value if isinstance(value, list) else [f"{value:,}" if isinstance(value, int) else str(value)]
        title = f"  {self._text(name, 'name')}: "
        for number, each in enumerate(values):
            yield f"{title if number == 0 else ' ' * (len(name) + 4)}{self._text(str(each))}"

    def _lengths(self, what: str, summary: LengthSummary) -> Iterator[str]:
        mean = f", {summary.total / summary.count:,.1f} on average" if summary.count else ""
        yield f"  {self._text('tokens of ' + what, 'name')}: {summary.total:,}{mean}, {summary.empty:,} empty"
        if summary.quantiles:
            yield "    " + "  ".join(f"{share}%: {value:,}" for share, value in summary.quantiles.items())

    def _excerpt(self, excerpt: Excerpt) -> Iterator[str]:
        head = f"  {self._text(excerpt.title, 'name')}"
        if excerpt.text is not None:
            yield head
            yield f"    {self._text(excerpt.text)}"
            return
        head += f": {count(excerpt.num_tokens, 'token')}"
        if excerpt.part is not None:
            head += f", document {excerpt.part.document:,} of {self._text(excerpt.part.prefix)}"
        if excerpt.source is not None:
            source = excerpt.source
            head += f", {self._text(source.input)}, line {source.line:,}"
            head += f" ({self._text('the input is ' + source.problem, 'damage')})" if source.problem else ""
        yield head
        yield from (f"    {line}" for line in self._tokens(excerpt))

    def _tokens(self, excerpt: Excerpt) -> Iterator[str]:
        line, width, place = "…" if excerpt.begin else "", 0, excerpt.begin
        for piece in excerpt.pieces:
            marked = excerpt.marked is not None and excerpt.marked[0] <= place < excerpt.marked[1]
            learnt = excerpt.mask is not None and any(excerpt.mask[place : place + len(piece.ids)])
            place += len(piece.ids)
            ids = "+".join(map(str, piece.ids))
            text = ids if piece.text is None else f"{ids}:{piece.text}" if self._ids else piece.text
            shown = show_text(text)
            if (marked or learnt) and not self._colored:
                shown = f"[{shown}]"
            if line and width + len(shown) + 1 > WIDTH:
                yield line
                line, width = "", 0
            style = "found" if marked else "learnt" if learnt else "escape" if shown != text else None
            line += self._styled(shown, style) + self._styled(BORDER, "border")
            width += len(shown) + 1
            if piece.text is not None and "\n" in piece.text:
                yield line
                line, width = "", 0
        rest = excerpt.num_tokens - excerpt.end
        if rest > 0 and excerpt.marked is None:
            line += f" … {count(rest, 'more token')}"
        elif rest > 0:
            line += "…"
        if line:
            yield line

    def _text(self, text: str, style: str | None = None) -> str:
        return self._styled(show_text(text), style)

    def _styled(self, text: str, style: str | None) -> str:
        return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if self._colored and style is not None else text
