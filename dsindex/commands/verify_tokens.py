"""Compare the tokens of a dataset with another dataset, or with its inputs, which are tokenized again."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from dsindex.datasets.decoding import load_recorded
from dsindex.datasets.detect import DetectedDataset, detect_dataset
from dsindex.datasets.documents import documents_of, open_documents
from dsindex.datasets.indexed import IndexedDataset
from dsindex.datasets.lineage import find_document_origins
from dsindex.errors import FormatError, InputError
from dsindex.formats.provenance import ROWS_PER_GROUP, count_rows, provenance_path, read_rows
from dsindex.messages import count
from dsindex.runtime.input_paths import STANDARD_INPUT, FoundPath
from dsindex.runtime.plan import cut_input, look_at_inputs, plan_shards
from dsindex.runtime.tokenize import ShardSettings, tokenize_shard
from dsindex.runtime.work_folder import write_marker
from dsindex.store.read import fingerprint_input, is_stored
from dsindex.store.urls import absolute, require_confirmed
from dsindex.text.blocks import Sample
from dsindex.text.selection import open_pattern, open_selection
from dsindex.text.streams import LARGEST_RECORD_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.datasets.documents import Documents
    from dsindex.formats.manifest import Manifest
    from dsindex.options.datasets import VerifyConfig
    from dsindex.runtime.plan import InputFile
    from dsindex.runtime.tasks import ShardTask
    from dsindex.text.selection import Selection

BLOCK_TOKENS = 1 << 21
"""Tokens that are compared at once."""
SHARD_BYTES = 32 << 20
"""Text that is tokenized by one call."""


# Another dataset: token types and formats may differ. Both are read once, up to the first difference.


def find_difference(path: str, other_path: str) -> list[str]:
    """Return a sentence about the first document in which two datasets differ; nothing if all are the same.

    Raises:
        InputError: If one is not there.
    """
    both = [detect_dataset(each) for each in (path, other_path)]
    for detected, given in zip(both, (path, other_path), strict=True):
        if detected.kind not in {"MMIDIDX", "pbin"}:
            raise InputError(f"{given}: neither .bin and .idx nor a .pbin, but {detected.kind}")
    try:
        one, other = (open_documents(detected, check=True) for detected in both)
    except FormatError as error:
        return [error.sentence]
    found = first_difference(one, other)
    if found is None:
        return []
    number, what = found
    lines = [_tell_line(detected, own, number) for detected, own in zip(both, (one, other), strict=True)]
    told = "".join(
        f"; {detected.path} has it from {line}" for detected, line in zip(both, lines, strict=True) if line is not None
    )
    return [f"document {number:,} of {path} is the first that differs in {other_path}: {what}{told}"]


def first_difference(one: Documents, other: Documents) -> tuple[int, str] | None:
    """Return the number of the first document that differs, and how; None if all are the same."""
    number, end = _first_unequal_length(one, other)
    for begin in range(0, end, BLOCK_TOKENS):
        tokens, others = (own.tokens[begin : min(begin + BLOCK_TOKENS, end)] for own in (one, other))
        unequal = np.flatnonzero(tokens != others)
        if len(unequal):
            position = begin + int(unequal[0])
            number = one.at(position)
            what = f"{tokens[unequal[0]]} and {others[unequal[0]]}"
            return number, f"its token {position - one.end(number - 1):,} is {what}"
    if number < min(one.num_documents, other.num_documents):
        sizes = [end - start for start, end in (own.span(number) for own in (one, other))]
        return number, f"it has {count(sizes[0], 'token')} and {sizes[1]:,}"
    if one.num_documents != other.num_documents:
        return number, f"one has {count(one.num_documents, 'document')}, the other {other.num_documents:,}"
    return None


def _first_unequal_length(one: Documents, other: Documents) -> tuple[int, int]:
    """Return the first document that only one dataset has, or of another length in each; and where it begins."""
    number = begin = 0
    for own, others in zip(one.lengths(), other.lengths(), strict=False):  # in blocks of the same size, but the last
        size = min(len(own), len(others))
        unequal = np.flatnonzero(own[:size] != others[:size])
        same = int(unequal[0]) if len(unequal) else size
        number, begin = number + same, begin + int(own[:same].sum())
        if len(unequal):
            break
    return number, begin


def _tell_line(detected: DetectedDataset, documents: Documents, number: int) -> str | None:
    """Return the line that a document was made from; None if it is not known."""
    if number >= documents.num_documents:
        return None
    try:
        origins, _ = find_document_origins(detected.prefix, documents.num_documents, [number])
    except FormatError:
        return None
    source = origins[number].source
    return None if source is None else f"{source.path}, line {source.line:,}"


# The source: a shard's first document is the number of rows before it in the provenance, so any can be made again.


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceShards:
    """The inputs, tokenizer and options with which a dataset was made."""

    detected: DetectedDataset
    settings: ShardSettings
    tasks: Sequence[ShardTask]

    def choose(self, num_documents: int, *, share: float) -> tuple[str, list[tuple[Any, ...]]]:
        """Choose the shards to make again, by a hash of their numbers, which is the same every time and everywhere.

        Returns:
            How many they are, and the arguments of `compare_shard` for each.

        Raises:
            FormatError: If the provenance is damaged.
        """
        firsts = [*_first_documents(provenance_path(self.detected.prefix), self.tasks), num_documents]
        order = sorted(range(len(self.tasks)), key=lambda number: xxhash.xxh3_64_intdigest(number.to_bytes(8, "big")))
        chosen = sorted(order[: max(1, -(-int(len(order) * share * 1e6) // 10**6))])
        pieces = [(self.tasks[at], firsts[at], firsts[at + 1], self.detected, self.settings) for at in chosen]
        return f"{len(chosen):,} of {len(self.tasks):,} shards", pieces


def open_source(detected: DetectedDataset, manifest: Manifest | None, config: VerifyConfig) -> SourceShards:
    """Find the source of a dataset, before any long work begins.

    Raises:
        InputError: If there is no manifest or provenance, the dataset was not made from text, or an input changed.
        TokenizerError: If the tokenizer is missing or differs from the recorded one.
    """
    from dsindex.text.engines import choose_engine

    prefix = detected.prefix
    selection = None if manifest is None else _selection_of(prefix, manifest)
    if manifest is None or selection is None:
        what = "no manifest of a build or pack names its inputs and tokenizer"
        raise InputError(f"{prefix}: {what}", hint="of a merged dataset, verify the datasets that were merged")
    if not is_stored(provenance_path(prefix)):
        hint = "build the dataset again and compare: dsindex verify A --same-as B"
        raise InputError(f"{prefix}: without provenance, the source of its documents is unknown", hint=hint)
    content, options = manifest.content, manifest.content.options
    tokenizer = load_recorded(prefix, manifest, given=config.tokenizer_model)
    set_aside = options.on_bad_record == "quarantine" and any(file.quarantined != 0 for file in content.inputs)
    # Texts on which the reference fails are no problem for gigatoken, and would be documents now.
    is_by_reference = manifest.run.engine is not None and manifest.run.engine.name == tokenizer.library
    engine = "reference" if set_aside and is_by_reference and config.engine == "auto" else config.engine
    return SourceShards(
        detected=detected,
        settings=ShardSettings(
            tokenizer=tokenizer,
            engine=choose_engine(
                tokenizer, engine, add_special_tokens=not options.tokenizer_hf_no_include_special_tokens
            ),
            keys=selection.outputs,
            selection=selection,
            dtype="<i4" if content.token_dtype == "uint32" else np.dtype(content.token_dtype).newbyteorder("<").str,
            eod_id=content.eod_id,
            layout="pbin" if detected.kind == "pbin" else options.empty_documents or "keep",
            quarantine=set_aside,
            max_record_bytes=options.max_record_size or LARGEST_RECORD_BYTES,
            provenance=False,
            work_dir="",
            samples=(Sample(low=options.leave_out or 0.0, high=options.sample or 1.0),),
        ),
        tasks=tuple(plan_shards(_find_inputs(prefix, manifest, config.contact), shard_bytes=SHARD_BYTES)),
    )


def compare_shard(
    task: ShardTask, first: int, end: int, detected: DetectedDataset, settings: ShardSettings
) -> list[str]:
    """Make a shard again and compare it with the documents [first, end) of a dataset."""
    stored = open_documents(detected)
    with tempfile.TemporaryDirectory(prefix="dsindex-verify-") as folder:
        write_marker(folder)
        made = tokenize_shard(task, replace(settings, work_dir=folder)).keys[0]
        again = IndexedDataset(os.path.join(folder, made.bin.name).removesuffix(".bin"), check=False)
        found = first_difference(stored.window(first, end - first), documents_of(again))
    if found is None:
        return []
    number, what = first + found[0], found[1]
    line = _tell_line(detected, stored, number) or task.place
    where = f"{detected.path}: document {number:,} differs from its source, {line}"
    return [f"{where}: {what} in the dataset and made again; restore the files, or build the dataset again"]


def _first_documents(provenance: str, tasks: Sequence[ShardTask]) -> list[int]:
    """Return the number of rows of the provenance before each shard."""
    begins = [(task.input, task.parts[0].begin) for task in tasks]
    counts = np.zeros(len(begins), np.int64)
    wanted = np.array([number for number, _ in begins], np.int64)
    for first in range(0, num_rows := count_rows(provenance), ROWS_PER_GROUP):
        inputs, offsets, _ = read_rows(provenance, first, min(first + ROWS_PER_GROUP, num_rows))
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
    content, options = manifest.content, manifest.content.options
    if options.instruction is not None:
        hint = "run the same command with another --output-prefix and compare the two with --same-as"
        raise InputError(f"{prefix}: instruction data cannot be compared with its source", hint=hint)
    if options.jq_pattern is not None:
        return open_pattern(options.jq_pattern)
    if content.tokenizer is None:
        return None
    keys = options.json_keys or [key for key in (options.json_key, options.token_ids) if key is not None]
    if options.json_key is not None:
        # The values of all keys decide which records are bad, sampled or held out; `compare_shard` takes the first key.
        all_keys = manifest.run.plan.settings.get("json-keys")
        if not isinstance(all_keys, list) or options.json_key not in all_keys:
            hint = "restore the manifest, or build the dataset again and compare: dsindex verify A --same-as B"
            raise InputError(f"{prefix}: the manifest does not name all --json-keys of the build", hint=hint)
        keys += [key for key in all_keys if isinstance(key, str) and key != options.json_key]
    if not keys:
        return None
    size = None if options.token_ids is None else content.tokenizer.vocabulary_size
    return open_selection(keys, where=options.where, join=options.join, vocabulary_size=size)


def _find_inputs(prefix: str, manifest: Manifest, contact: Sequence[str]) -> list[InputFile]:
    """Find the inputs by their paths as given, or else their absolute paths, and compare them with the manifest.

    Raises:
        InputError: If one is missing, changed, or was standard input; or is at an address that was not confirmed.
    """
    planned = [path for path, *_ in manifest.run.plan.inputs]
    found = []
    for number, recorded in enumerate(manifest.content.inputs):
        path = recorded.path
        require_confirmed(path, (prefix, *contact))
        if (path == STANDARD_INPUT or not is_stored(path)) and number < len(planned):
            path = planned[number]
            require_confirmed(path, (prefix, *contact))
        form: Any = recorded.format or "jsonl"
        place = FoundPath(path=path, absolute_path=absolute(path))
        [seen] = look_at_inputs([place], wanted=form)
        file = cut_input(seen, shard_size=SHARD_BYTES)
        if file.size_bytes != recorded.size_bytes or fingerprint_input(file.path) != recorded.fingerprint:
            what = f"it is not the input of {recorded.size_bytes} bytes that the dataset was made from"
            raise InputError(f"{path}: {what}", hint="restore the original")
        found.append(file)
    return found
