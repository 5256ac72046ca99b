"""`dsindex verify --against-source`: run the worker again on the inputs, and compare what it makes with the dataset.

A shard's first document is the number of rows before it in the provenance, so any shards can be made again.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from dsindex.datasets.decoding import read_named_tokenizer
from dsindex.datasets.opening import PBIN_SUFFIX
from dsindex.datasets.provenance import count_rows, read_rows
from dsindex.engine.input_paths import STANDARD_INPUT, FoundPath
from dsindex.engine.inputs import look_at_inputs, plan_shards
from dsindex.engine.output import PROVENANCE_SUFFIX
from dsindex.engine.work_folder import write_marker
from dsindex.engine.worker import ShardSettings, tokenize_shard
from dsindex.errors import InputError
from dsindex.store.reading import fingerprint_input, is_stored, is_there
from dsindex.text.sampling import Sample
from dsindex.text.selection import open_pattern, open_selection
from dsindex.tools.kinds import IndexedStore, Window, open_store
from dsindex.tools.origin import load_recorded
from dsindex.tools.verify_same import first_difference, tell_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.engine.inputs import InputFile
    from dsindex.engine.manifest import Manifest
    from dsindex.engine.tasks import ShardTask
    from dsindex.options.datasets import VerifyConfig
    from dsindex.text.selection import Selection
    from dsindex.tools.kinds import Subject

SHARD_BYTES = 32 << 20
"""Text that is tokenized by one call."""
ROWS = 1 << 20
"""Rows of the provenance that are read at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The inputs, tokenizer and options with which a dataset was made."""

    subject: Subject
    settings: ShardSettings
    tasks: Sequence[ShardTask]
    provenance: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCheck:
    """The shards to make again."""

    name: str
    function: Any
    pieces: list[tuple[Any, ...]]


def open_source(subject: Subject, manifest: Manifest | None, config: VerifyConfig) -> Source:
    """Find the source of a dataset, before any long work begins.

    Raises:
        InputError: If there is no manifest or provenance, the dataset was not made from text, or an input changed.
        TokenizerError: If the tokenizer is missing or differs from the recorded one.
    """
    from dsindex.text.engines import choose_engine

    prefix = subject.path.removesuffix(PBIN_SUFFIX)
    provenance, named = f"{prefix}.{PROVENANCE_SUFFIX}", read_named_tokenizer(prefix)
    selection = None if manifest is None else _selection_of(prefix, manifest)
    if manifest is None or named is None or selection is None:
        what = "expected the manifest of a build or pack, which names inputs and tokenizer, got none"
        raise InputError(f"{prefix}: {what}; of a merged dataset, verify those that it was made of")
    if not is_stored(provenance):
        what = "expected the provenance, by which documents are found, got none"
        raise InputError(f"{provenance}: {what}; build the dataset again and compare: dsindex verify A --same-as B")
    content, options = manifest.content, manifest.content.options
    tokenizer = load_recorded(prefix, named, given=config.tokenizer_model)
    set_aside = options.on_bad_record == "quarantine" and any(file.quarantined != 0 for file in content.inputs)
    # Texts on which the reference fails are no problem for gigatoken, and would be documents now.
    is_by_reference = manifest.run.engine is not None and manifest.run.engine.name == tokenizer.library
    engine = "reference" if set_aside and is_by_reference and config.engine == "auto" else config.engine
    return Source(
        subject=subject,
        settings=ShardSettings(
            tokenizer=tokenizer,
            engine=choose_engine(
                tokenizer, engine, add_special_tokens=not options.tokenizer_hf_no_include_special_tokens
            ),
            keys=selection.outputs,
            selection=selection,
            dtype="<i4" if content.token_dtype == "uint32" else np.dtype(content.token_dtype).newbyteorder("<").str,
            eod_id=content.eod_id,
            empty_documents=options.empty_documents or "keep",
            layout="pbin" if subject.kind == "pbin" else "megatron",
            quarantine=set_aside,
            max_record_bytes=options.max_record_size,
            provenance=False,
            work_dir="",
            samples=(Sample(low=options.leave_out or 0.0, high=options.sample or 1.0),),
        ),
        tasks=tuple(plan_shards(_find_inputs(manifest))),
        provenance=provenance,
    )


def check_source(source: Source, num_documents: int, *, share: float) -> SourceCheck:
    """Choose the shards to make again, by a hash of what they read, which is the same every time and everywhere.

    Raises:
        FormatError: If the provenance is damaged.
    """
    firsts = [*_first_documents(source), num_documents]
    chosen = list(range(len(source.tasks)))
    if share < 1:
        order = sorted(chosen, key=lambda number: xxhash.xxh3_64_intdigest(number.to_bytes(8, "big")))
        chosen = sorted(order[: max(1, -(-int(len(order) * share * 1e6) // 10**6))])
    shards = f"{len(chosen):,} of {len(source.tasks):,} shards"
    return SourceCheck(
        name=f"against the source: {shards} tokenized again with {source.settings.engine.describe()}",
        function=compare_shard,
        pieces=[
            (source.tasks[number], firsts[number], firsts[number + 1], source.subject, source.settings)
            for number in chosen
        ],
    )


def compare_shard(task: ShardTask, first: int, end: int, subject: Subject, settings: ShardSettings) -> list[str]:
    """Make a shard again and compare it with the documents [first, end) of a dataset."""
    stored = open_store(subject, check=False)
    with tempfile.TemporaryDirectory(prefix="dsindex-verify-") as folder:
        write_marker(folder)
        made = tokenize_shard(task, replace(settings, work_dir=folder)).keys[0]
        again = IndexedStore(os.path.join(folder, made.bin.name).removesuffix(".bin"), check=False)
        found = first_difference(Window(stored, first, end - first), again)
        if found is None and isinstance(stored, IndexedStore):
            found = _first_unequal_sequence(stored, again, first, end)
    if found is None:
        return []
    number, what = first + found[0], found[1]
    line = tell_line(subject.path, stored, number) or task.place
    where = f"{subject.path}: document {number:,} differs from its source, {line}"
    return [f"{where}: {what} in the dataset and made again; restore the files, or build the dataset again"]


def _first_unequal_sequence(stored: IndexedStore, again: IndexedStore, first: int, end: int) -> tuple[int, str] | None:
    """Return the first document whose sequences differ; all have the same tokens."""
    own = stored.dataset.document_indices[first : end + 1]
    others = again.dataset.document_indices
    begin = int(own[0]) if len(own) else 0
    lengths = stored.dataset.sequence_lengths[begin : int(own[-1]) if len(own) else 0]
    if np.array_equal(own - begin, others) and np.array_equal(lengths, again.dataset.sequence_lengths):
        return None
    for number in range(end - first):
        one = stored.dataset.sequence_lengths[own[number] : own[number + 1]].tolist()
        other = again.dataset.sequence_lengths[others[number] : others[number + 1]].tolist()
        if one != other:
            return number, f"its sequences have {one[:8]} and {other[:8]} tokens"
    return None


def _first_documents(source: Source) -> list[int]:
    """Return the number of rows of the provenance before each shard."""
    begins = [(task.input, task.begin) for task in source.tasks]
    counts = np.zeros(len(begins), np.int64)
    wanted = np.array([number for number, _ in begins], np.int64)
    for first in range(0, num_rows := count_rows(source.provenance), ROWS):
        inputs, offsets, _ = read_rows(source.provenance, first, min(first + ROWS, num_rows))
        low, high = np.searchsorted(inputs, wanted, "left"), np.searchsorted(inputs, wanted, "right")
        counts += low
        for place in np.flatnonzero(high > low).tolist():
            counts[place] += np.searchsorted(offsets[low[place] : high[place]], begins[place][1])
    return [int(number) for number in counts]


def _selection_of(prefix: str, manifest: Manifest) -> Selection | None:
    """Return what a dataset was made from, as its first output; None if it was not made from records.

    Raises:
        InputError: If the dataset was made from conversations, or a jq program in the manifest does not compile.
    """
    content = manifest.content
    options = content.options
    if options.instruction is not None:
        what = "expected a dataset of texts, got one of `dsindex instruct`"
        raise InputError(f"{prefix}: {what}; run the same command with another --output-prefix and compare: --same-as")
    if options.jq_pattern is not None:
        return open_pattern(options.jq_pattern)
    key = options.json_key if options.token_ids is None else options.token_ids
    keys = options.json_keys or ([] if key is None else [key])
    if not keys or content.tokenizer is None:
        return None
    has_bad = content.account is not None and content.account.quarantined > 0
    if (options.sample is not None or has_bad) and options.json_key is not None:
        # A record that is bad for another key was quarantined for all, and a sample depends on the texts of all keys.
        others = manifest.run.plan["settings"].get("json-keys")
        if isinstance(others, list) and options.json_key in others:
            keys = [*keys, *(other for other in others if isinstance(other, str) and other != options.json_key)]
    size = None if options.token_ids is None else content.tokenizer.vocabulary_size
    return open_selection(keys, where=options.where, join=options.join, vocabulary_size=size)


def _find_inputs(manifest: Manifest) -> list[InputFile]:
    """Find the inputs by their paths as given, or else their absolute paths, and compare them with the manifest.

    Raises:
        InputError: If one is missing, changed, or was standard input.
    """
    absolute = [str(entry[0]) for entry in manifest.run.plan["inputs"]]
    found = []
    for number, recorded in enumerate(manifest.content.inputs):
        path = recorded.path
        if (path == STANDARD_INPUT or not is_there(path)) and number < len(absolute):
            path = absolute[number]
        place = FoundPath(path=path, absolute_path=path)
        [file] = look_at_inputs([place], wanted=_format_of(recorded), shard_size=SHARD_BYTES)
        if file.size_bytes != recorded.size_bytes or fingerprint_input(file.path) != recorded.fingerprint:
            what = f"expected the input of {recorded.size_bytes} bytes with which the dataset was made, got another"
            raise InputError(f"{path}: {what}; it changed, restore the original")
        found.append(file)
    return found


def _format_of(recorded: Any) -> Any:  # noqa: ANN401 - a RecordedInput
    return recorded.format or "jsonl"
