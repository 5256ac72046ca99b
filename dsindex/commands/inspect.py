"""`dsindex inspect`: what a path leads to, how long its documents are, and some of their tokens as text with borders.

Nothing is written. Damage is reported as a finding.
"""

from __future__ import annotations

import contextlib
import os
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from dsindex.commands.findings import Excerpt, InspectResult
from dsindex.commands.token_data import (
    abbreviate_names,
    file_sizes,
    find_origin,
    open_token_data,
    pieces_of,
    summarize_lengths,
)
from dsindex.commands.verify_caches import read_blend
from dsindex.datasets.detect import detect_dataset, pack_layouts
from dsindex.datasets.gpt import BlendedDataset
from dsindex.datasets.opening import open as open_dataset
from dsindex.datasets.packed import PbinDocuments
from dsindex.datasets.raw import RawLines
from dsindex.datasets.samples import trace_samples
from dsindex.errors import DsindexError, FormatError, InputError
from dsindex.formats.manifest import read_export_manifest
from dsindex.formats.mmididx import read_header
from dsindex.megatron.cache import BLENDED_CLASS, descriptions_in, files_of, find_cache, read_description, split_of
from dsindex.megatron.plan import parse_data_path
from dsindex.messages import count
from dsindex.runtime.progress import PROGRESS_SUFFIX, Snapshot, describe, read_progress
from dsindex.runtime.work_folder import LOCK_FILE, MARKER_FILE, Journal
from dsindex.store.lock import owner_is_gone

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dsindex.commands.token_data import TokenData
    from dsindex.datasets.documents import Documents
    from dsindex.datasets.lineage import DocumentOrigin
    from dsindex.datasets.samples import SampleDataset
    from dsindex.options.datasets import InspectConfig

FIRST_TOKENS = 64
"""Tokens shown of each document in an overview."""
CHOSEN_TOKENS = 2000
"""Tokens shown of a document that was asked for."""
SAMPLE_TOKENS = 1024
"""Tokens shown of a sample."""
CONTEXT_TOKENS = 2
"""Tokens to decode before an excerpt, since the text of its first token may depend on them."""
SHOWN_ITEMS = 3
"""Number of documents or lines in an overview, spread over all of them."""
LINE_CHARACTERS = 400
CHUNK_ITEMS = 1 << 22
_DOCUMENTS = frozenset({"MMIDIDX", "instruction data", "pbin", "raw index"})
_CHOICES = {"document": _DOCUMENTS, **dict.fromkeys(("sample", "split", "data_path"), frozenset({"index cache"}))}
"""Option that chooses what to show -> kinds of datasets that it applies to."""


def run_inspect(options: InspectConfig) -> InspectResult:
    """Inspect the dataset, index cache, export or work folder at a path.

    Raises:
        InputError: If the path has nothing that dsindex knows, or has no such document or sample.
        FormatError: If the file is in none of the known formats.
        TokenizerError: If the tokenizer that was given cannot be read.
    """
    folder = find_work_folder(options.path)
    try:
        if folder == options.path:
            raise InputError(f"{folder}: a work folder")
        detected = detect_dataset(options.path)
        result = InspectResult(path=detected.path, kind=detected.kind)
    except InputError:
        if folder is None:
            raise
        result = InspectResult(path=folder, kind="work folder")
    for name, kinds in _CHOICES.items():
        if getattr(options, name) is not None and result.kind not in kinds:
            raise InputError(f"{result.path}: --{name.replace('_', '-')} does not apply to: {result.kind}")
    try:
        _INSPECTORS[result.kind](result, options)
    except IndexError as error:
        raise InputError(str(error)) from error
    except FormatError as error:
        result.findings.append(error.sentence)
    if options.document is not None or options.sample is not None:
        result.facts.clear()
    return result


def _inspect_tokens(result: InspectResult, options: InspectConfig) -> None:
    """Inspect a dataset of tokens; for instruction data, also the masks and the block layouts."""
    data = open_token_data(detect_dataset(options.path), options)
    dataset, masks, facts = data.dataset, data.masks, result.facts
    facts["files"] = data.sizes
    result.findings += data.findings
    if isinstance(dataset, PbinDocuments):
        version, token_bytes = dataset.header.version.name, dataset.header.token_bytes
        facts |= {"version": version, "token type": f"{token_bytes} bytes, unsigned", "documents": len(dataset)}
    elif dataset is not None:
        facts |= {"token type": str(dataset.dtype), "documents": dataset.num_documents, "sequences": len(dataset)}
        if options.document is None and len(dataset) != dataset.num_documents:
            result.lengths["sequences"] = summarize_lengths(_chunks(dataset.sequence_lengths))
    if dataset is not None:
        facts["tokens"] = dataset.num_tokens
    if result.kind == "instruction data":
        facts["block layouts"] = list(map(os.path.basename, pack_layouts(result.path)))
    if masks is not None:
        facts["trainable tokens"] = f"{sum(map(np.count_nonzero, _chunks(masks))):,} of {len(masks):,}"
    if data.documents is not None:
        _inspect_documents(result, data.documents, data, options)
    facts |= data.origin.facts()
    result.notes += data.origin.notes


def _inspect_documents(result: InspectResult, documents: Documents, data: TokenData, options: InspectConfig) -> None:
    is_chosen = options.document is not None
    numbers = _choose_items(documents.num_documents) if options.document is None else [options.document]
    spans = [documents.span(number) for number in numbers]
    lines: Sequence[DocumentOrigin | None] = [None] * len(numbers)
    if not data.origin.findings:
        try:
            lines = data.origin.lines_of(numbers, num_documents=documents.num_documents)
        except FormatError as error:
            result.findings.append(error.sentence)
    if not is_chosen:
        result.lengths = {"documents": summarize_lengths(documents.lengths()), **result.lengths}
    max_tokens = options.tokens if options.tokens is not None else CHOSEN_TOKENS if is_chosen else FIRST_TOKENS
    for number, (begin, end), line in zip(numbers, spans, lines, strict=True):
        window = slice(begin, min(end, begin + max_tokens))
        excerpt = Excerpt(
            title=f"document {number:,}",
            num_tokens=end - begin,
            pieces=tuple(pieces_of(documents.tokens[window].tolist(), data.origin.tokenizer)),
            document=number,
            origin=line,
            mask=None if data.masks is None else tuple(int(value != 0) for value in data.masks[window].tolist()),
        )
        result.excerpts.append(excerpt)


def _chunks(items: Any) -> Iterator[Any]:  # noqa: ANN401 - an array, mapped or of an object
    return (items[begin : begin + CHUNK_ITEMS] for begin in range(0, len(items), CHUNK_ITEMS))


def _choose_items(num_items: int) -> list[int]:
    """Return the numbers of a few items, spread over all of them.

    >>> _choose_items(2), _choose_items(6000)
    ([0, 1], [1000, 3000, 5000])
    """
    return list(range(num_items)) if num_items <= SHOWN_ITEMS else [num_items // 6, num_items // 2, 5 * num_items // 6]


def _inspect_packs(result: InspectResult, _: InspectConfig) -> None:
    result.facts["files"] = file_sizes([f"{result.path}.bin", f"{result.path}.idx"])
    result.facts["packs"] = read_header(f"{result.path}.idx").num_sequences


def _inspect_list(result: InspectResult, _: InspectConfig) -> None:
    blend, total = parse_data_path([result.path]), 0
    rows = result.facts["datasets"] = list[str]()
    shares = zip_longest(blend.prefixes, blend.shares(result.path) if blend.weights is not None else ())
    for prefix, share in shares:
        try:
            num_documents = read_header(f"{prefix}.idx").num_documents
        except FormatError as error:
            result.findings.append(error.sentence)
            continue
        total += num_documents
        weight = "" if share is None else f", {float(share):.1%} of the weights"
        rows.append(f"{prefix}: {count(num_documents, 'document')}{weight}")
    result.facts["documents"] = total


def _inspect_export(result: InspectResult, _: InspectConfig) -> None:
    manifest = read_export_manifest(result.path)
    if manifest is None:
        raise FormatError(f"{result.path}: the manifest of the export is gone", hint="export it again")
    files = {os.path.join(result.path, name): file.size_bytes for name, file in manifest.digests.items()}
    result.facts |= {"export": manifest.kind, "files": (sizes := file_sizes(files))}
    for name, sums in manifest.splits.items():
        text = f"{count(sums['tokens'], 'token')}, {sums['trainable']:,} trainable, {count(sums['targets'], 'target')}"
        result.facts[name] = f"{count(sums['rows'], 'row')}, {text}"
    result.facts["made of"] = list(manifest.plan["sources"])
    for file, size_bytes in files.items():
        if sizes.get(file) != size_bytes:
            problem = f"{sizes[file]} bytes" if file in sizes else "no such file"
            result.findings.append(f"{file}: {problem}, and {size_bytes} bytes are recorded; export it again")


def _inspect_lines(result: InspectResult, options: InspectConfig) -> None:
    lines = RawLines(result.path)
    result.facts |= {"files": file_sizes([lines.path, lines.index_path]), "lines": len(lines)}
    limit = options.tokens or (LINE_CHARACTERS if options.document is None else None)
    for number in _choose_items(len(lines)) if options.document is None else [options.document]:
        text = lines.decode(number)
        suffix = "" if limit is None or len(text) <= limit else f" … {len(text) - limit:,} more characters"
        text = f"{text[:limit]}{suffix}"
        result.excerpts.append(Excerpt(title=f"line {number:,} of the index", num_tokens=0, text=text))


# Index caches: their settings, and the tokens of a sample.


def _inspect_cache(result: InspectResult, options: InspectConfig) -> None:
    descriptions = {file: read_description(file) for file in descriptions_in(result.path) or [result.path]}
    for file, description in sorted(descriptions.items(), key=lambda item: item[1]["class"] != BLENDED_CLASS):
        result.facts.setdefault("caches", []).extend(_describe(file, description))
    try:
        path = find_cache(descriptions, options.split, place=result.path)
        dataset = cast("SampleDataset[Any]", open_dataset(path, prefix=options.data_path))
        result.facts |= {"split": split_of(descriptions[path]), "samples": len(dataset)}
        if isinstance(dataset, BlendedDataset):
            phases = _describe_phases(dataset)
            result.facts |= {"phases": phases} if phases else {}
        if options.sample is not None or len(dataset):
            _inspect_sample(result, dataset, options)
    except DsindexError as error:
        if options.split is not None and isinstance(error, InputError):
            raise
        result.findings.append(error.sentence)


def _inspect_sample(result: InspectResult, dataset: SampleDataset[Any], options: InspectConfig) -> None:
    """Show the parts of a sample, each from one sequence."""
    sample = dataset.locate(options.sample or 0)
    [trace], data = trace_samples([sample], contact=options.contact), sample.data
    origin = find_origin(data.prefix, options)
    origin.check_inputs([part.origin for part in trace.parts])
    remaining_tokens = SAMPLE_TOKENS if options.tokens is None else options.tokens
    for part in trace.parts:
        offset = part.sequence_offset
        tokens = data.get(part.sequence, offset, min(part.num_tokens, remaining_tokens)).tolist()
        tokens_before = data.get(part.sequence, max(offset - CONTEXT_TOKENS, 0), min(offset, CONTEXT_TOKENS)).tolist()
        remaining_tokens -= len(tokens)
        where = f"tokens {part.offset}:{part.offset + part.num_tokens} of document {part.document:,}"
        excerpt = Excerpt(
            title=f"sample {trace.sample:,}: {where} of {part.prefix}",
            num_tokens=part.num_tokens,
            pieces=tuple(pieces_of(tokens, origin.tokenizer, before=tokens_before)),
            document=part.document,
            origin=part.origin,
        )
        result.excerpts.append(excerpt)
    result.notes += dict.fromkeys([*trace.notes, *origin.notes])


def _describe(path: str, description: dict[str, Any]) -> list[str]:
    if description["class"] != BLENDED_CLASS:
        names = ("sequence_length", "num_samples", "random_seed", "split")
        settings = ", ".join(f"{name} = {description[name]}" for name in names if description.get(name) is not None)
        return [f"{description['index_split']}: {description['dataset_path']}", f"  {settings}"]
    num_drawn, weights = read_blend(path, description)
    rows, total = zip(description["datasets"], weights, num_drawn, strict=True), sum(num_drawn)
    lines = [f"  {part.get('dataset_path')}: weight {weight}, {_share(num, total)}" for part, weight, num in rows]
    return [f"{description['split']}: a blend of {len(num_drawn)}, {count(total, 'sample')}", *lines]


def _share(samples: int, total: int) -> str:
    return f"{count(samples, 'sample')} ({samples / max(1, total):.1%})"


def _describe_phases(blend: BlendedDataset) -> list[str]:
    """Return what each phase of a continued or scheduled blend draws; nothing for any other blend."""
    record, index = files_of(blend.place).read_record(), blend.dataset_index
    phases = () if record is None else record.settings.phases
    names = [os.path.basename(dataset.dataset.prefix) for dataset in blend.datasets]
    lines = []
    for phase, end in zip(phases, [*(next_phase.begin for next_phase in phases[1:]), len(index)], strict=False):
        num_drawn = np.bincount(index[phase.begin : end], minlength=len(names)).tolist()
        parts = [f"{name} {_share(num, end - phase.begin)}" for name, num in zip(names, num_drawn, strict=True) if num]
        lines.append(f"{phase.begin:,} to {end:,}, {phase.kind}: {', '.join(parts)}")
    return lines


# Work folders: the job and its progress.


def find_work_folder(path: str) -> str | None:
    """Return the path if it is a work folder, or the folder `<output-prefix>.build` of an unfinished dataset."""
    folder, name = os.path.split(path.rstrip("/"))
    stems = [name] + [name[:at] for at in range(len(name) - 1, 0, -1) if name[at] == "_"]
    candidates = [path, *(os.path.join(folder, f"{stem}.build") for stem in stems)]
    return next((candidate for candidate in candidates if os.path.isfile(os.path.join(candidate, MARKER_FILE))), None)


def _inspect_work_folder(result: InspectResult, _: InspectConfig) -> None:
    path, facts = result.path, result.facts
    journal = Journal(path)
    progress = read_progress(f"{path.rstrip('/').removesuffix('.build')}.{PROGRESS_SUFFIX}") or {}
    facts["finished"] = "yes" if journal.is_finished else "no: run the same command again to continue"
    with contextlib.suppress(KeyError, TypeError, ValueError):  # another version wrote it
        snapshot = Snapshot(**progress["stage"])
        facts["stage"] = f"{snapshot.stage}: {describe(snapshot)}"
    if journal.began is not None:
        facts["inputs"] = abbreviate_names([path for path, *_ in journal.began.plan.inputs])
        settings = journal.began.plan.settings
        facts["settings"] = [f"{name} = {value}" for name, value in settings.items() if value not in (None, False, "")]
    names = ("output", "state", "started", "updated", "host", "error", "message")
    facts |= {name: progress[name] for name in names if isinstance(progress.get(name), str)}
    if facts.get("state") == "running" and owner_is_gone(os.path.join(path, LOCK_FILE)):
        facts["state"] = "running when it ended: its driver is gone"


_INSPECTORS = {
    "MMIDIDX": _inspect_tokens,
    "instruction data": _inspect_tokens,
    "pbin": _inspect_tokens,
    "index cache": _inspect_cache,
    "raw index": _inspect_lines,
    "packs": _inspect_packs,
    "export": _inspect_export,
    "list": _inspect_list,
    "work folder": _inspect_work_folder,
}
