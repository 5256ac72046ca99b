"""Look into a dataset: what it is, how long its documents are, and the tokens of some of them as text.

Nothing is written. Damage is a finding, and what can still be read is shown.
"""

from __future__ import annotations

import contextlib
import glob
import os
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from dsindex.amounts import align, count, show_percent
from dsindex.datasets.blended import BlendedDataset
from dsindex.datasets.exports import export_folder_of, read_export_manifest, read_facts
from dsindex.datasets.gpt import open_cached_index
from dsindex.datasets.indexed import IndexedDataset
from dsindex.datasets.instruction import packing_prefix
from dsindex.datasets.opening import MASK_SUFFIX, TEXT_SUFFIX, open_dataset
from dsindex.datasets.origins import DocumentOrigin
from dsindex.engine.ledger import Ledger
from dsindex.engine.progress import PROGRESS_SUFFIX, Snapshot, describe, read_progress
from dsindex.engine.work_folder import LOCK_FILE
from dsindex.errors import DsindexError, FormatError, InputError
from dsindex.formats.mmididx import read_header
from dsindex.index.cache import BLENDED_CLASS, descriptions_in, read_description, record_beside, source_changes
from dsindex.store.lock import owner_is_gone
from dsindex.tools.kinds import IndexedStore, PackedStore, size_of, tell_kind
from dsindex.tools.lengths import summarize_lengths
from dsindex.tools.origin import SHOWN_INPUTS, Origin, find_misfit, find_origin
from dsindex.tools.phases import count_drawn, describe_phases
from dsindex.tools.results import Excerpt, InspectResult
from dsindex.tools.token_text import pieces_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.datasets.gpt import GPTDataset
    from dsindex.datasets.raw import RawLines
    from dsindex.formats.mmididx import Tokens
    from dsindex.options.datasets import InspectConfig
    from dsindex.tools.kinds import KindName, Subject

FIRST_TOKENS = 64
"""Tokens shown of each document in an overview."""
CHOSEN_TOKENS = 2000
"""Tokens shown of a document that was asked for."""
SAMPLE_TOKENS = 1024
"""Tokens shown of a sample."""
BEFORE = 2
"""Tokens before an excerpt on which its first token's text may depend."""
SHOWN_ITEMS = 3
"""Documents or lines of an overview, spread over all of them."""
BLOCK_BYTES = 1 << 22
LINE_CHARACTERS = 400
CHOICES: dict[KindName, frozenset[str]] = {
    "MMIDIDX": frozenset({"document"}),
    "instruction data": frozenset({"document"}),
    "pbin": frozenset({"document"}),
    "raw index": frozenset({"document"}),
    "index cache": frozenset({"sample", "split", "data_path"}),
    "packs": frozenset(),
    "export": frozenset(),
    "work folder": frozenset(),
}
"""The options that choose what to show, by what a path is."""


def run_inspect(options: InspectConfig) -> InspectResult:
    """Look at what the path leads to.

    Raises:
        InputError: If there is nothing that dsindex knows, or it has no such document or sample.
        FormatError: If the file is in none of the known formats.
        TokenizerError: If the tokenizer that was given cannot be read.
    """
    subject = tell_kind(options.path)
    _refuse_foreign(subject, options)
    seen = InspectResult(path=subject.path, kind=subject.kind)
    try:
        _look(seen, subject, options)
    except IndexError as error:
        raise InputError(str(error)) from error
    except FormatError as error:
        seen.findings.append(str(error))
    if not options.is_overview:
        seen.facts.clear()
    return seen


def _look(seen: InspectResult, subject: Subject, options: InspectConfig) -> None:
    match subject.kind:
        case "MMIDIDX":
            _look_at_indexed(seen, subject.path, options)
        case "instruction data":
            masks = look_at_loss_masks(seen.facts, seen.findings, subject.path)
            _look_at_indexed(seen, f"{subject.path}{TEXT_SUFFIX}", options, masks=masks)
        case "pbin":
            _look_at_packed(seen, options)
        case "index cache":
            _look_at_cache(seen, options)
        case "raw index":
            _look_at_lines(seen, options)
        case "packs":
            seen.facts |= _look_at_packs(subject.path)
        case "export":
            _look_at_export(seen)
        case "work folder":
            seen.facts |= look_at_work_folder(subject.path)


def _refuse_foreign(subject: Subject, options: InspectConfig) -> None:
    """Refuse a choice that this kind does not have.

    Raises:
        InputError: If there is one.
    """
    has = CHOICES[subject.kind]
    for name in ("document", "sample", "split", "data_path"):
        if getattr(options, name) is not None and name not in has:
            able = ", ".join(f"--{each.replace('_', '-')}" for each in sorted(has)) or "none of these flags"
            flag = f"--{name.replace('_', '-')}"
            msg = f"{subject.path}: expected {able}, got {flag}, which does not apply to this kind ({subject.kind})"
            raise InputError(msg)


def _look_at_indexed(seen: InspectResult, prefix: str, options: InspectConfig, *, masks: Tokens | None = None) -> None:
    origin = find_origin(prefix, options.tokenizer_model)
    seen.facts["files"] = size_of([f"{prefix}.bin", f"{prefix}.idx"])
    is_whole = True
    try:
        store = IndexedStore(prefix)
    except FormatError as error:
        seen.findings.append(str(error))
        is_whole = False
        header = read_header(f"{prefix}.idx")
        seen.facts |= {"token type": str(header.dtype), "documents": header.num_documents}
        seen.facts |= {"sequences": header.num_sequences}
        try:
            store = IndexedStore(prefix, check=False)
        except FormatError:
            _tell_origin(seen, origin)
            return
    seen.facts |= {"token type": str(store.dataset.dtype), "documents": store.num_documents}
    seen.facts |= {"sequences": store.num_sequences, "tokens": len(store.tokens)}
    if store.dataset.sequence_modes is not None:
        seen.facts["modes"] = "each sequence has a mode"
    if masks is not None and len(masks) != len(store.tokens):
        seen.findings.append(f"{seen.path}{MASK_SUFFIX}: expected {len(store.tokens):,} masks, got {len(masks):,}")
        masks = None
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


def _tell_origin(seen: InspectResult, origin: Origin) -> None:
    seen.facts |= origin.facts
    seen.notes += origin.all_notes
    seen.findings += origin.findings


def _look_at_tokens(
    seen: InspectResult,
    store: IndexedStore | PackedStore,
    origin: Origin,
    options: InspectConfig,
    *,
    is_whole: bool,
    masks: Tokens | None = None,
) -> None:
    numbers = _spread(store.num_documents) if options.document is None else [options.document]
    spans = [store.document_span(number) for number in numbers]
    misfit = find_misfit(origin.content, store)
    lines: list[DocumentOrigin | None] = [None] * len(numbers)
    if misfit is not None:
        seen.findings.append(misfit)
    else:
        try:
            lines = list(origin.lines_of(numbers, num_documents=store.num_documents))
        except FormatError as error:
            seen.findings.append(str(error))
    _tell_origin(seen, origin)
    if is_whole and options.document is None:
        seen.lengths["documents"] = summarize_lengths(store.document_lengths())
        if isinstance(store, IndexedStore) and store.num_sequences != store.num_documents:
            seen.lengths["sequences"] = summarize_lengths(store.sequence_lengths())
    shown = (
        options.tokens if options.tokens is not None else FIRST_TOKENS if options.document is None else CHOSEN_TOKENS
    )
    for number, (begin, end), line in zip(numbers, spans, lines, strict=True):
        if not 0 <= begin <= end <= len(store.tokens):
            where = f"within {len(store.tokens):,} tokens, got {begin:,} to {end:,}"
            raise FormatError(f"{store.paths[-1]}: expected document {number:,} {where}")
        own = slice(begin, min(end, begin + shown))
        excerpt = Excerpt(
            title=f"document {number:,}",
            num_tokens=end - begin,
            pieces=tuple(pieces_of(store.tokens[own].tolist(), origin.tokenizer)),
            document=number,
            origin=line,
            mask=None if masks is None else tuple(int(value != 0) for value in masks[own].tolist()),
        )
        seen.excerpts.append(excerpt)


def _spread(number: int) -> list[int]:
    """Return the numbers of a few of so many items, spread over all of them.

    >>> _spread(2), _spread(6000)
    ([0, 1], [1000, 3000, 5000])
    """
    return list(range(number)) if number <= SHOWN_ITEMS else [number // 6, number // 2, 5 * number // 6]


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
    layouts = sorted(glob.glob(f"{packing_prefix(glob.escape(prefix), 0)[:-1]}*.idx"))
    if layouts:
        facts["block layouts"] = [os.path.basename(layout).removesuffix(".idx") for layout in layouts]
    return values


def _look_at_packs(prefix: str) -> dict[str, Any]:
    header = read_header(f"{prefix}.idx")
    return {"files": size_of([f"{prefix}.bin", f"{prefix}.idx"]), "packs": header.num_sequences}


def _look_at_export(seen: InspectResult) -> None:
    """Describe the folder of an export, or one Parquet file of it."""
    path = seen.path
    if os.path.isfile(path) and path.endswith(".parquet"):
        own = read_facts(path)
        seen.facts |= {"export": own.get("export", ""), "files": size_of([path])}
        seen.facts |= {name: int(value) for name, value in own.items() if name != "export" and value.isdecimal()}
        return
    folder = export_folder_of(path) or path
    manifest = read_export_manifest(folder)
    if manifest is None:
        return
    content = manifest.content
    files = {os.path.join(folder, name): file.size_bytes for name, file in content.digests.items()}
    seen.facts |= {"export": content.kind, "files": size_of(list(files))}
    for name, split in content.splits.items():
        amounts = f"{count(split.tokens, 'token')}, {split.trainable:,} trainable, {count(split.targets, 'target')}"
        seen.facts[name] = f"{count(split.rows, 'row')}, {amounts}"
    seen.facts["made of"] = list(manifest.plan["sources"])
    for file, expected in files.items():
        found = seen.facts["files"].get(file)
        if found != expected:
            got = "no such file" if found is None else f"{found} bytes"
            seen.findings.append(f"{file}: expected {expected} bytes as in the manifest, got {got}; export it again")


def _look_at_lines(seen: InspectResult, options: InspectConfig) -> None:
    """Describe a raw index and show lines of its file."""
    lines = cast("RawLines", open_dataset(seen.path))
    seen.facts |= {"files": size_of([lines.path, seen.path]), "lines": len(lines)}
    for number in _spread(len(lines)) if options.document is None else [options.document]:
        if not 0 <= number < len(lines):
            raise IndexError(f"{seen.path}: expected a line from 0 to {len(lines) - 1}, got {number}")
        text = lines[number].decode(errors="replace")
        is_cut = options.document is None or options.tokens is not None
        shown = min(len(text), options.tokens or LINE_CHARACTERS) if is_cut else len(text)
        more = f" … {len(text) - shown:,} more characters" if shown < len(text) else ""
        title = f"line {number:,} of the index"
        seen.excerpts.append(Excerpt(title=title, num_tokens=0, text=f"{text[:shown]}{more}"))


# Index caches: their settings, whether they fit their data, and the tokens of a sample.


def _look_at_cache(seen: InspectResult, options: InspectConfig) -> None:
    is_folder = os.path.isdir(seen.path)
    descriptions = {each: read_description(each) for each in (descriptions_in(seen.path) if is_folder else [seen.path])}
    for each, description in sorted(descriptions.items(), key=lambda item: item[1]["class"] != BLENDED_CLASS):
        seen.facts.setdefault("caches", []).extend(_describe(each, description))
        seen.findings += _changes(each, options.data_path)
    splits = {str(known.get("index_split", known.get("split"))) for known in descriptions.values()}
    split = options.split or next((name for name in ("train", "valid", "test") if name in splits), None)
    try:
        opened = open_dataset(seen.path, split=split if is_folder else None, prefix=options.data_path)
    except (FormatError, InputError, ValueError) as error:
        if isinstance(error, InputError) and options.split is not None:
            raise
        seen.findings.append(str(error))
        return
    dataset = cast("GPTDataset | BlendedDataset", opened)  # as only they have descriptions
    seen.facts |= {"split": split or "the only one", "samples": len(dataset)}
    parts = dataset.datasets if isinstance(dataset, BlendedDataset) else (dataset,)
    data = {each.dataset.prefix: each.dataset for each in parts}
    if isinstance(dataset, BlendedDataset):
        names = [os.path.basename(each.dataset.prefix) for each in parts]
        phases = describe_phases(dataset.description_path, dataset.dataset_index, names)
        seen.facts |= {"phases": phases} if phases else {}
    if options.sample is None and not len(dataset):
        return
    try:
        _look_at_sample(seen, dataset, data, options)
    except DsindexError as error:
        seen.findings.append(str(error))


def _look_at_sample(
    seen: InspectResult,
    dataset: GPTDataset | BlendedDataset,
    data: dict[str, IndexedDataset],
    options: InspectConfig,
) -> None:
    """Show the parts of a sample, each from one sequence."""
    number = options.sample or 0
    if not 0 <= number < len(dataset):
        raise IndexError(f"expected a sample from 0 to {len(dataset) - 1}, got {number}")
    trace = dataset.trace(number)
    origins = {prefix: find_origin(prefix, options.tokenizer_model) for prefix in {part.prefix for part in trace.parts}}
    left = SAMPLE_TOKENS if options.tokens is None else options.tokens
    for part in trace.parts:
        own, origin, offset = data[part.prefix], origins[part.prefix], part.sequence_offset
        shown = own.get(part.sequence, offset, min(part.num_tokens, left)).tolist()
        before = own.get(part.sequence, max(offset - BEFORE, 0), min(offset, BEFORE)).tolist()
        left -= len(shown)
        where = f"tokens {part.offset:,} to {part.offset + part.num_tokens - 1:,} of document {part.document:,}"
        line = DocumentOrigin(source=part.source, part=part.part)
        origin.check_input(line)
        excerpt = Excerpt(
            title=f"sample {number:,}: {where} of {part.prefix}",
            num_tokens=part.num_tokens,
            pieces=tuple(pieces_of(shown, origin.tokenizer, before=before)),
            document=part.document,
            origin=line,
        )
        seen.excerpts.append(excerpt)
    seen.notes += dict.fromkeys([*trace.notes, *(note for origin in origins.values() for note in origin.all_notes)])


def _describe(path: str, description: dict[str, Any]) -> list[str]:
    if description["class"] != BLENDED_CLASS:
        shown = ("sequence_length", "num_samples", "random_seed", "split")
        settings = ", ".join(f"{name} = {description[name]}" for name in shown if description.get(name) is not None)
        return [f"{description['index_split']}: {description['dataset_path']}", f"  {settings}"]
    parts = [str(part.get("dataset_path")) for part in description["datasets"]]
    weights = [f"weight {weight}" for weight in description.get("weights") or [None] * len(parts)]
    try:
        numbers = open_cached_index(path, "dataset_index")
        drawn = count_drawn(path, numbers, len(parts))
    except FormatError:  # opening the cache says what is wrong with it
        return [f"{description['split']}: a blend of {len(parts)}", *(f"  {part}" for part in parts)]
    rows = [
        (str(number), weight, count(samples, "sample"), show_percent(samples / max(1, len(numbers))), part)
        for number, (weight, samples, part) in enumerate(zip(weights, drawn.tolist(), parts, strict=False))
    ]
    title = f"{description['split']}: a blend of {len(parts)}, {count(len(numbers), 'sample')}"
    return [title, *(f"  {row}" for row in align(rows, texts=(0, 1, 4)))]


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


# Work folders: the job, and how far it is.


def look_at_work_folder(path: str) -> dict[str, Any]:
    """Describe a work folder.

    Raises:
        FormatError: If its ledger cannot be read.
    """
    ledger = Ledger(path)
    progress = read_progress(f"{path.rstrip('/').removesuffix('.build')}.{PROGRESS_SUFFIX}") or {}
    facts: dict[str, Any] = {"finished": "yes" if ledger.is_finished else "no: run the same command again to continue"}
    stage = progress.get("stage")
    if isinstance(stage, dict):
        with contextlib.suppress(KeyError, TypeError, ValueError):  # it is another version's
            snapshot = Snapshot(**stage)
            done = f"{snapshot.tasks_done:,} of {count(snapshot.tasks_total, snapshot.tasks.removesuffix('s'))}, "
            facts["stage"] = f"{snapshot.stage}: {done if snapshot.tasks_total else ''}{snapshot.share:.0%}"
            if progress.get("state") == "running":
                facts["pace"] = describe(snapshot)
    if ledger.plan is not None:
        inputs = [str(entry[0]) for entry in ledger.plan["inputs"]]
        more = len(inputs) - SHOWN_INPUTS
        facts["inputs"] = inputs[:SHOWN_INPUTS] + [f"and {more:,} more"] * (more > 0)
        settings = ledger.plan["settings"]
        facts["settings"] = [f"{name} = {value}" for name, value in settings.items() if value not in (None, False, "")]
    for name in ("output", "state", "started", "updated", "host", "error", "message"):
        if isinstance(progress.get(name), str):
            facts[name] = progress[name]
    if facts.get("state") == "running" and owner_is_gone(os.path.join(path, LOCK_FILE)):
        facts["state"] = "running when it ended: its driver is gone"
    return facts
