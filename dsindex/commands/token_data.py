"""A dataset of tokens as `inspect`, `trace` and `report` show it: its origin, its tokens as text, and its lengths."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from dsindex.datasets.decoding import load_recorded_tokenizer, load_with_options
from dsindex.datasets.detect import MASK_SUFFIX, TEXT_SUFFIX
from dsindex.datasets.documents import documents_of
from dsindex.datasets.indexed import IndexedDataset
from dsindex.datasets.lineage import find_document_origins, input_path
from dsindex.datasets.packed import PbinDocuments
from dsindex.errors import DsindexError, FormatError, InputError, MissingObjectError, TokenizerError
from dsindex.formats.manifest import read_manifest
from dsindex.store.read import fingerprint_input, input_status, is_stored
from dsindex.text.tokenizer import decode, load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from dsindex.datasets.detect import DetectedDataset
    from dsindex.datasets.documents import Documents
    from dsindex.datasets.lineage import DocumentOrigin
    from dsindex.formats.manifest import Content, Manifest
    from dsindex.options.datasets import DecodingConfig
    from dsindex.store.read import Items
    from dsindex.text.tokenizer import Tokenizer


SHOWN_INPUTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A dataset's manifest and tokenizer, with notes and findings about its origin."""

    prefix: str
    manifest: Manifest | None
    tokenizer: Tokenizer | None
    notes: dict[str, None] = field(default_factory=dict)
    """Sentences about a missing or possibly wrong tokenizer and about unknown lines and inputs, each once."""
    findings: list[str] = field(default_factory=list)
    contact: Sequence[str] = ()
    """Addresses whose buckets and servers may be contacted, in addition to the datasets' own addresses."""

    @property
    def content(self) -> Content | None:
        """The part of the manifest that depends only on inputs, tokenizer and options."""
        return self.manifest.content if self.manifest is not None else None

    def lines_of(self, documents: Sequence[int], *, num_documents: int) -> list[DocumentOrigin]:
        """Return the lines that documents were made from, and note why lines are unknown.

        Raises:
            FormatError: If the manifest or the provenance is damaged, or belongs to another dataset.
        """
        origins, notes = find_document_origins(self.prefix, num_documents, documents, contact=self.contact)
        self.notes.update(dict.fromkeys(notes))
        self.check_inputs(origins.values())
        return [origins[document] for document in documents]

    def check_inputs(self, origins: Iterable[DocumentOrigin]) -> None:
        """Note which inputs of documents are missing or have changed since the build."""
        sources = {(self.prefix if origin.part is None else origin.part.prefix, origin.source) for origin in origins}
        for prefix, number in sorted({(prefix, source.input) for prefix, source in sources if source is not None}):
            manifest = self.manifest if prefix == self.prefix else read_manifest(prefix)
            problem = None if manifest is None else input_problem(manifest, number, addresses=(prefix, *self.contact))
            if manifest is not None and problem is not None:
                path = manifest.content.inputs[number].path
                note = f"{path}: this input {problem}; lines are those that it had when the dataset was made"
                self.notes[note] = None

    def facts(self) -> dict[str, Any]:
        """Return what the manifest says, by name."""
        if self.manifest is None:
            return {}
        content, run = self.manifest.content, self.manifest.run
        facts: dict[str, Any] = {
            "made": f"{run.started or 'at an unknown time'} by dsindex {run.dsindex or 'of an unknown version'}",
            "inputs": abbreviate_names([file.path for file in content.inputs]),
        }
        if (account := content.account) is not None:
            record_counts = f"{account.kept:,} kept, {account.quarantined:,} quarantined, {account.filtered:,} filtered"
            facts["records"] = record_counts
        if content.bytes_per_token is not None:
            facts["bytes of text per token"] = f"{content.bytes_per_token:.2f}"
        if (tokenizer := content.tokenizer) is not None:
            eod = "no EOD appended" if content.eod_id is None else f"EOD {tokenizer.eod_id}"
            summary = f"{tokenizer.name}, {tokenizer.vocabulary_size:,} tokens, sha256 {tokenizer.sha256[:16]}…, {eod}"
            facts["tokenizer"] = summary
        options = msgspec.to_builtins(content.options)
        texts = [f"{name} = {value}" for name, value in options.items() if name != "instruction" and value is not False]
        return facts | ({"options": ", ".join(texts)} if texts else {})


def abbreviate_names(names: list[str]) -> list[str]:
    """Return the first names, and how many more there are."""
    num_more = len(names) - SHOWN_INPUTS
    return names if num_more <= 0 else [*names[:SHOWN_INPUTS], f"and {num_more:,} more"]


def find_origin(prefix: str, options: DecodingConfig, *, documents: Documents | None = None) -> Origin:
    """Read a dataset's manifest, and load its tokenizer.

    Args:
        prefix: Path without suffix.
        options: The tokenizer to use instead of the recorded one, and addresses to contact.
        documents: The dataset's documents, whose counts must match the manifest; None to skip this check.

    Raises:
        TokenizerError: If the tokenizer that was given cannot be read.
    """
    try:
        manifest = read_manifest(prefix)
    except FormatError as error:
        named_tokenizer = None if options.tokenizer_model is None else load_tokenizer(options.tokenizer_model)
        return Origin(prefix=prefix, manifest=None, tokenizer=named_tokenizer, findings=[error.sentence])
    tokenizer, note = _choose_tokenizer(prefix, manifest, options.tokenizer_model)
    notes = {note: None} if note else {}
    origin = Origin(prefix=prefix, manifest=manifest, tokenizer=tokenizer, notes=notes, contact=options.contact)
    if manifest is None or documents is None:
        return origin
    content, size = manifest.content, (documents.num_documents, len(documents.tokens))
    if (content.documents, content.tokens) == size:
        return origin
    fact = f"its manifest says {content.documents:,} documents and {content.tokens:,} tokens"
    misfit = f"{documents.path}: it has {size[0]:,} and {size[1]:,}, and {fact}; one of them belongs to another dataset"
    return replace(origin, manifest=None, findings=[misfit])


def _choose_tokenizer(prefix: str, manifest: Manifest | None, model: str | None) -> tuple[Tokenizer | None, str | None]:
    """Return the tokenizer to decode with, and a note if it is missing or may be the wrong one."""
    record = None if manifest is None else manifest.content.tokenizer
    if model is None:
        try:
            return load_recorded_tokenizer(prefix, manifest), None
        except TokenizerError as error:
            return None, error.sentence
    tokenizer = load_with_options(record, model)
    if record is None:
        return tokenizer, "no tokenizer is recorded, so it is unknown whether this is the right one"
    if tokenizer.sha256 == record.sha256:
        return tokenizer, None
    problem = f"{model} is another tokenizer (sha256 {tokenizer.sha256[:16]}…) than the dataset was made with"
    return tokenizer, f"{problem} ({record.name}, sha256 {record.sha256[:16]}…), so the text can be wrong"


def input_problem(manifest: Manifest, number: int, *, addresses: Iterable[str]) -> str | None:
    """Return how an input changed since the build; None if it did not. Only `addresses` are contacted."""
    record = manifest.content.inputs[number]
    try:
        path = input_path(manifest, number, user_addresses=addresses)
    except InputError as error:
        return f"was {error.sentence.removeprefix(f'{record.path}: ')}"
    try:
        status = input_status(path)
        if record.size_bytes not in {None, status.size_bytes}:
            return f"has changed: it had {record.size_bytes:,} bytes and has {status.size_bytes:,}"
        if record.fingerprint not in {None, fingerprint_input(status.path)}:
            return "has changed: it has the same size and other content"
    except (FileNotFoundError, NotADirectoryError, MissingObjectError):
        return "no longer exists"
    except (OSError, DsindexError):
        return "cannot be read"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenData:
    """A dataset of tokens, with its origin; damage is a finding."""

    path: str
    files: tuple[str, ...]
    dataset: IndexedDataset | PbinDocuments | None
    """None if it is damaged."""
    documents: Documents | None
    masks: Items | None
    """1 for each token that is trained on, otherwise 0; None unless the dataset is instruction data."""
    origin: Origin
    findings: tuple[str, ...]

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each file that is there."""
        return file_sizes(self.files)


def open_token_data(detected: DetectedDataset, options: DecodingConfig) -> TokenData:
    """Open a dataset of tokens.

    Raises:
        InputError: If it is not a dataset of tokens.
        TokenizerError: If the tokenizer that was given cannot be read.
    """
    path = f"{detected.path}{TEXT_SUFFIX}" if detected.kind == "instruction data" else detected.path
    if detected.kind not in {"MMIDIDX", "instruction data", "pbin"}:
        raise InputError(f"{path}: neither .bin and .idx nor a .pbin, but: {detected.kind}")
    dataset, documents, masks, findings = None, None, None, list[str]()
    try:
        dataset = PbinDocuments(path) if detected.kind == "pbin" else IndexedDataset(path)
        documents, stem = documents_of(dataset), path.removesuffix(TEXT_SUFFIX)
        if stem != path and is_stored(f"{stem}{MASK_SUFFIX}.idx"):
            from dsindex.datasets.instruction import open_masked  # imports modules that texts do not need

            masks = open_masked(stem)[1].token_columns()[0]
    except FormatError as error:
        findings.append(error.sentence)
    origin = find_origin(detected.prefix if detected.kind == "pbin" else path, options, documents=documents)
    return TokenData(
        path=path,
        files=(path,) if detected.kind == "pbin" else (f"{path}.bin", f"{path}.idx"),
        dataset=dataset,
        documents=documents,
        masks=masks,
        origin=origin,
        findings=(*findings, *origin.findings),
    )


def file_sizes(paths: Iterable[str]) -> dict[str, int]:
    """Return the size of each file that is there."""
    return {path: input_status(path).size_bytes for path in paths if is_stored(path)}


# Tokens are decoded one by one, to show where each begins.

LONGEST_GROUP = 8
"""Tokens that may make up one character together; a UTF-8 sequence has 4 bytes."""
_REPLACEMENT = "\ufffd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The text of a token, or of several tokens that only together make up a character."""

    ids: tuple[int, ...]
    text: str | None
    """None for an id that is not in the tokenizer's vocabulary."""


def cut_pieces(tokenizer: Tokenizer, ids: Sequence[int], *, before: Sequence[int] = ()) -> list[Piece]:
    """Return the text of each token as it appears in the text of all tokens.

    Each token is decoded together with the piece before it, since the text of many tokens depends on what precedes.

    Args:
        tokenizer: The tokenizer of the ids.
        ids: Tokens.
        before: Some tokens that precede `ids`.
    """
    pieces: list[Piece] = []
    before = tuple(token for token in before if 0 <= token < tokenizer.vocabulary_size)
    group: tuple[int, ...] = ()
    for number, token in enumerate(ids):
        is_known = 0 <= token < tokenizer.vocabulary_size
        group = (*group, token) if is_known else group
        text = _text_after(tokenizer, before, group) if group else ""
        if is_known and text.endswith(_REPLACEMENT) and len(group) < LONGEST_GROUP and number + 1 < len(ids):
            continue
        if group:
            pieces.append(Piece(ids=group, text=text))
        before, group = group, ()
        if not is_known:
            pieces.append(Piece(ids=(token,), text=None))
            before = ()
    return pieces


def text_of(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return the text of tokens, in which an id that is not in the tokenizer's vocabulary is shown as ⟨id⟩."""
    pieces = cut_pieces(tokenizer, ids)
    return "".join(f"⟨{piece.ids[0]}⟩" if piece.text is None else piece.text for piece in pieces)


def _text_after(tokenizer: Tokenizer, before: tuple[int, ...], ids: tuple[int, ...]) -> str:
    if not before:
        return decode(tokenizer, ids)
    text_before, whole_text = decode(tokenizer, before), decode(tokenizer, (*before, *ids))
    return whole_text[len(text_before) :] if whole_text.startswith(text_before) else decode(tokenizer, ids)


def pieces_of(ids: Sequence[Any], tokenizer: Tokenizer | None, *, before: Sequence[Any] = ()) -> list[Piece]:
    """Return the text of each token; without a tokenizer, or for tokens that are no integers, the bare ids."""
    if tokenizer is None or not all(isinstance(token, int) for token in ids):
        return [Piece(ids=(token,), text=None) for token in ids]
    return cut_pieces(tokenizer, ids, before=before)


# How long documents are: exact quantiles, and counts on a logarithmic scale.

SHARES = (0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
_LARGE = 1 << 16
"""Lengths from here on are kept one by one instead of counted, since such long documents are few."""
EDGES: NDArray[np.int64] = np.unique(np.rint(2.0 ** (np.arange(0, 2 * 63) / 2)).astype(np.int64))
"""Where bins begin: 1, 2, 3, 4, 6, 8, 11, 16, …, two for each doubling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthBin:
    """The documents whose number of tokens is in [begin, end)."""

    begin: int
    end: int
    documents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthSummary:
    """The distribution of lengths."""

    count: int
    total: int
    empty: int
    quantiles: dict[str, int]
    """Share as a percentage -> the length that at least this share does not exceed; empty without lengths."""
    bins: tuple[LengthBin, ...] = ()
    """From the first to the last bin that has documents; empty documents are in no bin."""


def summarize_lengths(blocks: Iterable[NDArray[Any]]) -> LengthSummary:
    """Count lengths, none negative, and find their quantiles.

    >>> summarize_lengths([np.array([3, 0]), np.array([70_000])]).quantiles["50"]
    3
    """
    counter = LengthCounter()
    for block in blocks:
        counter.add(block)
    return counter.summary()


class LengthCounter:
    """Counts the lengths of documents, block by block."""

    def __init__(self) -> None:
        self._small = np.zeros(_LARGE, np.int64)
        self._large = [np.empty(0, np.int64)]

    def add(self, block: NDArray[Any]) -> None:
        """Count the lengths of a block, none negative."""
        if len(block) and block.max() >= _LARGE:
            self._large.append(block[block >= _LARGE].astype(np.int64))
            block = block[block < _LARGE]
        counts = np.bincount(block)
        self._small[: len(counts)] += counts

    def summary(self) -> LengthSummary:
        """Return the distribution of all lengths counted so far."""
        lengths = np.concatenate([np.arange(_LARGE), np.sort(np.concatenate(self._large))])
        counts = np.concatenate([self._small, np.ones(len(lengths) - _LARGE, np.int64)])
        sums = np.cumsum(counts)
        count = int(sums[-1])
        ranks = {f"{share * 100:g}": max(-(-round(share * 10_000) * count // 10_000) - 1, 0) for share in SHARES}
        by_bin = np.bincount(np.searchsorted(EDGES, lengths[1:], side="right") - 1, weights=counts[1:])
        used_bins = np.flatnonzero(by_bin)
        return LengthSummary(
            count=count,
            total=int((lengths * counts).sum()),
            empty=int(counts[0]),
            quantiles={
                name: int(lengths[np.searchsorted(sums, rank, side="right")]) for name, rank in ranks.items() if count
            },
            bins=tuple(
                LengthBin(begin=int(EDGES[at]), end=int(EDGES[at + 1]), documents=int(by_bin[at]))
                for at in (range(int(used_bins[0]), int(used_bins[-1]) + 1) if len(used_bins) else ())
            ),
        )
