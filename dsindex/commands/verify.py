"""`dsindex verify`: functions that return findings about pieces of a dataset, mapped over an executor.

The structure is checked whichever program wrote the dataset, and token ids if a vocabulary is known. The digests in the
manifest cover everything else in the files.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from dsindex.commands.findings import CACHE, SAME_AS, CheckResult, DatasetCounts, VerifyReport
from dsindex.commands.verify_caches import is_cache_of, list_caches, verify_cache
from dsindex.datasets.decoding import load_recorded_tokenizer
from dsindex.datasets.detect import DetectedDataset, detect_dataset
from dsindex.datasets.documents import Documents, ShuffledDocuments, documents_of, open_documents, permute
from dsindex.datasets.indexed import IndexedDataset
from dsindex.datasets.lineage import find_document_origins, input_path
from dsindex.datasets.packed import PbinDocuments
from dsindex.errors import FormatError, InputError
from dsindex.formats.dtypes import starts_of
from dsindex.formats.manifest import manifest_path, read_manifest
from dsindex.formats.pbin import PBIN_VERSIONS
from dsindex.formats.provenance import PROVENANCE_SUFFIX, ROWS_PER_GROUP, count_rows, provenance_path, read_rows
from dsindex.megatron.cache import files_of
from dsindex.messages import count
from dsindex.runtime.dispatch import make_executor, run_in_order
from dsindex.runtime.executors import Call
from dsindex.runtime.input_paths import InputPath
from dsindex.runtime.plan import cut_input, examine_inputs, plan_shards
from dsindex.runtime.tokenize import ShardSettings, tokenize_shard
from dsindex.runtime.work_folder import write_marker
from dsindex.store.local import DIGEST_BLOCK_BYTES, combine_digests
from dsindex.store.read import digest_blocks, fingerprint_input, input_status, is_stored, open_items
from dsindex.store.urls import absolute
from dsindex.text.blocks import Sample
from dsindex.text.selection import open_pattern, open_selection
from dsindex.text.streams import LARGEST_RECORD_BYTES
from dsindex.text.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from dsindex.datasets.detect import DetectedDataset, KindName
    from dsindex.formats.manifest import Manifest
    from dsindex.options.datasets import VerifyConfig
    from dsindex.runtime.executors import Executor
    from dsindex.runtime.plan import InputFile
    from dsindex.runtime.progress import Reporter
    from dsindex.runtime.tasks import ShardTask
    from dsindex.store.local import StoredFile
    from dsindex.text.selection import Selection


STRUCTURE = "structure: every entry of the index against the tokens"
REMEDY = "restore it, or build the dataset again"
_SUFFIXES: dict[KindName, tuple[str, ...]] = {
    "MMIDIDX": ("bin", "idx", "provenance.parquet"),
    "packs": ("bin", "idx"),
    "pbin": ("pbin",),
}
"""The files of each kind that is verified."""
_HINTS = {
    "instruction data": "verify its _text_document and its _loss_mask",
    "index cache": "verify its dataset, with --cache",
}
PIECE_TOKENS, CHUNK_TOKENS = 1 << 26, 1 << 21
"""Tokens that one call reads, and tokens that it holds in memory at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check of a dataset."""

    name: str
    function: Callable[..., Any]
    pieces: Sequence[tuple[Any, ...]]
    """The arguments of each call; pieces are small, and may be sent to other machines."""
    judge: Callable[[Iterable[Any]], Iterable[str]] = chain.from_iterable
    """Turns the results of all pieces, in order, into findings."""
    compares_tokens: bool = False
    """Whether tokens are compared with something: a digest, the source, or another dataset."""


def verify_dataset(path: str, config: VerifyConfig, *, reporter: Reporter) -> VerifyReport:
    """Verify one dataset: always its structure, and whatever else a manifest and options allow.

    Raises:
        InputError: If the path is not a dataset to verify, or `--against-source` or `--cache` cannot be checked.
        TokenizerError: If the tokenizer for `--against-source` is not the one that the dataset was made with.
    """
    try:
        detected = detect_dataset(path)
    except (InputError, FormatError) as error:
        missing = CheckResult(name="the dataset is there", findings=(error.sentence,))
        return VerifyReport(path=path, kind=None, checks=(missing,))
    if detected.kind not in _SUFFIXES:
        problem = f"neither .bin and .idx nor a .pbin, but: {detected.kind}"
        raise InputError(f"{path}: {problem}", hint=_HINTS.get(detected.kind))
    results, notes = list[CheckResult](), list[str]()
    manifest = _read_manifest(detected, results, notes)
    source = open_source(detected, manifest, config) if config.against_source and not results else None
    counts = _read_structure(detected, manifest, results)
    if counts is not None and manifest is not None:
        results += _compare_counts(detected, counts, manifest)
    files = {} if manifest is None else manifest.content.digests
    checks = [_digest_check(f"{detected.prefix}.{suffix}", file) for suffix, file in files.items()]
    checks += [] if counts is None else _checks_of_content(detected, counts, config, is_digested=manifest is not None)
    with contextlib.closing(make_executor(config)) as executor:
        executor.on_idle = reporter.tick
        executor.require_seen([f"{detected.prefix}.{suffix}" for suffix in {*files, *_SUFFIXES[detected.kind]}])
        results += _run(checks, executor, reporter, place=detected.prefix)
        is_traced = not any(result.findings and result.name.endswith(".provenance.parquet") for result in results)
        if source is not None and counts is not None and is_traced:
            shards, pieces = source.choose(counts.documents, share=config.sample)
            name = f"against the source: {shards} tokenized again with {source.settings.engine.describe()}"
            checks.append(Check(name=name, function=compare_shard, pieces=pieces, compares_tokens=True))
            results += _run(checks[-1:], executor, reporter, place=detected.prefix)
        elif source is not None:
            notes.append("index or provenance are damaged, so the dataset was not compared with its source")
    return VerifyReport(
        path=detected.path,
        kind=detected.kind,
        counts=counts,
        checks=tuple(results),
        compared=any(check.compares_tokens for check in checks),
        notes=tuple(notes),
    )


def _read_manifest(detected: DetectedDataset, results: list[CheckResult], notes: list[str]) -> Manifest | None:
    """Read the manifest; ignore, with a note, the manifest of a dataset of another format with the same name."""
    try:
        manifest = read_manifest(detected.prefix)
    except FormatError as error:
        results.append(CheckResult(name="the manifest", findings=(error.sentence,)))
        return None
    if manifest is not None and ("pbin" in manifest.content.digests) != (detected.kind == "pbin"):
        notes.append(f"{manifest_path(detected.prefix)} belongs to a dataset of another format with the same name")
        return None
    return manifest


def _read_structure(
    detected: DetectedDataset, manifest: Manifest | None, results: list[CheckResult]
) -> DatasetCounts | None:
    """Check every entry of the index against the tokens; return None if the index is damaged."""
    counts, findings = None, list[str]()
    try:
        dataset: IndexedDataset | PbinDocuments
        if detected.kind == "pbin":
            era = None if manifest is None else manifest.content.options.pbin_era
            dataset = PbinDocuments(detected.path, version=None if era is None else PBIN_VERSIONS[era])
            token_type, version = dataset.header.dtype.newbyteorder("=").name, dataset.header.version.name
        else:
            _require_idx(detected.path)
            dataset = IndexedDataset(detected.path)
            token_type, version = str(dataset.dtype), ""
        documents = documents_of(dataset)
        counts = DatasetCounts(
            documents=documents.num_documents,
            empty_documents=sum(int(np.count_nonzero(lengths == 0)) for lengths in documents.lengths()),
            sequences=len(dataset),
            tokens=len(documents.tokens),
            token_type=token_type,
            version=version or None,
        )
    except (FormatError, InputError) as error:
        findings.append(f"{error.sentence}; {REMEDY}")
    results.append(CheckResult(name=STRUCTURE, findings=tuple(findings)))
    return counts


def _compare_counts(detected: DetectedDataset, counts: DatasetCounts, manifest: Manifest) -> Iterator[CheckResult]:
    """Compare the counts of the index with the manifest and with the rows of the provenance."""
    content, path = manifest.content, manifest_path(detected.prefix)
    pairs = {
        "documents": (content.documents, counts.documents),
        "sequences": (content.sequences, counts.sequences),
        "tokens": (content.tokens, counts.tokens),
        "token type": (np.dtype(content.token_dtype).name, counts.token_type),
    }
    findings = [
        f"{path}: {name}: {recorded} recorded, {actual} in the dataset"
        for name, (recorded, actual) in pairs.items()
        if recorded != actual
    ]
    yield CheckResult(name="counts of the manifest", findings=tuple(findings))
    if PROVENANCE_SUFFIX in content.digests and is_stored(provenance := provenance_path(detected.prefix)):
        try:
            num_rows = count_rows(provenance)
            finding = f"{provenance}: it has {num_rows:,} rows for {counts.documents:,} documents; {REMEDY}"
            findings = [finding] if num_rows != counts.documents else []
        except FormatError as error:
            findings = [error.sentence]
        yield CheckResult(name="a row of provenance for every document", findings=tuple(findings))


def _require_idx(prefix: str) -> None:
    is_there = is_stored(f"{prefix}.idx") or os.path.lexists(f"{prefix}.idx")
    if not is_there and is_stored(f"{prefix}.bin"):
        cause = "preprocess_data.py of Megatron-LM left this of all --json-keys but the last until May 2026"
        raise FormatError(f"{prefix}.idx: is missing next to its .bin: a writer was stopped before its end, or {cause}")


def _run(checks: Sequence[Check], executor: Executor, reporter: Reporter, *, place: str) -> Iterator[CheckResult]:
    """Run checks, with all pieces in parallel."""
    if total := sum(len(check.pieces) for check in checks):
        reporter.stage("verify", total=total, unit="blocks")

    calls = (
        Call(name=f"{check.function.__name__}[{number}]", place=place, function=check.function, arguments=piece)
        for check in checks
        for number, piece in enumerate(check.pieces)
    )
    results = run_in_order(executor, calls)

    def next_result() -> Any:  # noqa: ANN401 - a result of the check's function
        reporter.advance(1)
        return next(results)

    for check in checks:
        check_results = (next_result() for _ in check.pieces)
        yield CheckResult(name=check.name, findings=tuple(check.judge(check_results)))


# The checks.


def _checks_of_content(
    detected: DetectedDataset, counts: DatasetCounts, config: VerifyConfig, *, is_digested: bool
) -> Iterator[Check]:
    """Yield the checks that the options ask for; ids are only checked if no digest covers them."""
    if config.tokenizer_model is not None and not is_digested and np.dtype(counts.token_type).kind in "iu":
        size, begins = load_tokenizer(config.tokenizer_model).vocabulary_size, range(0, counts.tokens, PIECE_TOKENS)
        pieces = [(detected, begin, min(begin + PIECE_TOKENS, counts.tokens), size) for begin in begins]
        name = f"token ids below the {size:,} of the vocabulary"
        yield Check(name=name, function=find_foreign_id, pieces=pieces)
    if config.cache is not None:
        descriptions = [cache for cache in list_caches(config.cache) if is_cache_of(cache, detected.path)]
        if not descriptions:
            name = os.path.basename(detected.path)
            raise InputError(f"{config.cache}: no index cache of {name} is here", hint="build one: dsindex index")
        for path in descriptions:
            name = os.path.basename(files_of(path).stem)
            yield Check(name=f"{CACHE} {name}", function=verify_cache, pieces=[(path, detected.path)])
    if config.same_as is not None:
        name, pairs = f"{SAME_AS} {config.same_as}", [(detected.path, config.same_as)]
        yield Check(name=name, function=find_difference, pieces=pairs, compares_tokens=True)


def find_foreign_id(detected: DetectedDataset, begin: int, end: int, vocabulary_size: int) -> list[str]:
    """Find the first of the tokens [begin, end) whose id is outside a vocabulary of this size."""
    documents = open_documents(detected)
    for first in range(begin, end, CHUNK_TOKENS):
        tokens = np.asarray(documents.tokens[first : min(first + CHUNK_TOKENS, end)])
        if tokens.min() < 0 or tokens.max() >= vocabulary_size:
            at = int(np.flatnonzero((tokens < 0) | (tokens >= vocabulary_size))[0])
            reason = f"id {tokens[at]} in document {documents.document_at(first + at):,} is not below {vocabulary_size}"
            return [f"{documents.path}: {reason}; give the dataset's tokenizer, or build it again"]
    return []


def _digest_check(path: str, file: StoredFile) -> Check:
    """Return the check of a file against its size and digest in the manifest; a piece is one block of the file."""
    size_bytes = input_status(path).size_bytes if is_stored(path) else None
    begins = range(0, file.size_bytes, DIGEST_BLOCK_BYTES) if size_bytes == file.size_bytes else ()
    return Check(
        name=f"digest of the .{file.name}",
        function=digest_piece,
        pieces=[(path, begin, min(begin + DIGEST_BLOCK_BYTES, file.size_bytes)) for begin in begins],
        judge=partial(judge_digest, path, file, size_bytes),
        compares_tokens=file.name in {"bin", "pbin"},
    )


def digest_piece(path: str, begin: int, end: int) -> list[bytes]:
    """Digest the blocks in bytes [begin, end) of a file."""
    return digest_blocks(path, begin=begin, end=end)


def judge_digest(path: str, file: StoredFile, size_bytes: int | None, pieces: Iterable[list[bytes]]) -> Iterator[str]:
    """Yield findings about a file, given its size (None if it is missing) and the digests of its blocks."""
    digest = combine_digests(chain.from_iterable(pieces))
    if size_bytes != file.size_bytes:
        problem = "there is no regular file" if size_bytes is None else f"it has {size_bytes} bytes"
        yield f"{path}: {problem}, and {file.size_bytes} bytes are recorded; {REMEDY}"
    elif digest != file.digest:
        yield f"{path}: its content changed: the digest is {digest}, and {file.digest} is recorded; {REMEDY}"


SHARD_BYTES = 32 << 20
"""Text that is tokenized by one call."""


# Comparison with another dataset; token types and formats may differ. Both are read once, up to the first difference.


def find_difference(path: str, other_path: str) -> list[str]:
    """Return a sentence about the first document in which two datasets differ; nothing if they are equal.

    Raises:
        InputError: If a path is not a .bin and .idx or a .pbin.
    """
    pair = [detect_dataset(dataset_path) for dataset_path in (path, other_path)]
    for detected, named_path in zip(pair, (path, other_path), strict=True):
        if detected.kind not in {"MMIDIDX", "pbin"}:
            raise InputError(f"{named_path}: neither .bin and .idx nor a .pbin, but: {detected.kind}")
    try:
        left, right = (open_documents(detected, check=True) for detected in pair)
    except FormatError as error:
        return [error.sentence]
    difference = first_difference(left, right)
    if difference is None:
        return []
    number, problem = difference
    lines = [_find_line(detected, documents, number) for detected, documents in zip(pair, (left, right), strict=True)]
    origin = "".join(
        f"; {detected.path} has it from {line}" for detected, line in zip(pair, lines, strict=True) if line is not None
    )
    return [f"document {number:,} of {path} is the first that differs in {other_path}: {problem}{origin}"]


def first_difference(left: Documents, right: Documents) -> tuple[int, str] | None:
    """Return the number of the first document that differs, and how; None if all are the same."""
    number, end = _first_unequal_length(left, right)
    for begin in range(0, end, CHUNK_TOKENS):
        left_tokens, right_tokens = (side.tokens[begin : min(begin + CHUNK_TOKENS, end)] for side in (left, right))
        unequal = np.flatnonzero(left_tokens != right_tokens)
        if len(unequal):
            position = begin + int(unequal[0])
            number = left.document_at(position)
            ids = f"{left_tokens[unequal[0]]} and {right_tokens[unequal[0]]}"
            return number, f"its token {position - left.end(number - 1):,} is {ids}"
    if number < min(left.num_documents, right.num_documents):
        sizes = [end - start for start, end in (side.span(number) for side in (left, right))]
        return number, f"it has {count(sizes[0], 'token')} and {sizes[1]:,}"
    if left.num_documents != right.num_documents:
        return number, f"one has {count(left.num_documents, 'document')}, the other {right.num_documents:,}"
    return None


def _first_unequal_length(left: Documents, right: Documents) -> tuple[int, int]:
    """Return the first document that differs in length, or that only one dataset has, and where it begins."""
    number = begin = 0
    # All blocks but the last have the same size.
    for left_lengths, right_lengths in zip(left.lengths(), right.lengths(), strict=False):
        size = min(len(left_lengths), len(right_lengths))
        unequal = np.flatnonzero(left_lengths[:size] != right_lengths[:size])
        num_equal = int(unequal[0]) if len(unequal) else size
        number, begin = number + num_equal, begin + int(left_lengths[:num_equal].sum())
        if len(unequal):
            break
    return number, begin


def _find_line(detected: DetectedDataset, documents: Documents, number: int) -> str | None:
    """Return the line that a document was made from; None if it is not known."""
    if number >= documents.num_documents:
        return None
    try:
        origins, _ = find_document_origins(detected.prefix, documents.num_documents, [number])
    except FormatError:
        return None
    source = origins[number].source
    return None if source is None else f"{source.path}, line {source.line:,}"


# Comparison with the source. The number of a shard's first document is the number of provenance rows before the shard,
# so any shard can be made again without those before it.


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceShards:
    """The inputs, tokenizer and options with which a dataset was made."""

    detected: DetectedDataset
    settings: ShardSettings
    tasks: Sequence[ShardTask]
    seed: int | None
    """Seed of the random order of the documents; None if they are in the order of the inputs."""

    def choose(self, num_documents: int, *, share: float) -> tuple[str, list[tuple[Any, ...]]]:
        """Choose the shards to make again by a hash of their numbers, so that every run chooses the same ones.

        Returns:
            How many shards were chosen, in words, and the arguments of `compare_shard` for each.

        Raises:
            FormatError: If the provenance is damaged.
        """
        firsts = [*_first_documents(provenance_path(self.detected.prefix), self.tasks), num_documents]
        order = sorted(range(len(self.tasks)), key=lambda number: xxhash.xxh3_64_intdigest(number.to_bytes(8, "big")))
        chosen_numbers = sorted(order[: max(1, -(-int(len(order) * share * 1e6) // 10**6))])
        arguments = (self.detected, self.settings, self.seed)
        pieces = [(self.tasks[number], firsts[number], firsts[number + 1], *arguments) for number in chosen_numbers]
        return f"{len(chosen_numbers):,} of {len(self.tasks):,} shards", pieces


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
        problem = "no manifest of a build or pack names its inputs and tokenizer"
        raise InputError(f"{prefix}: {problem}", hint="of a merged dataset, verify the datasets that were merged")
    if not is_stored(provenance_path(prefix)):
        hint = "build the dataset again and compare: dsindex verify A --same-as B"
        raise InputError(f"{prefix}: without provenance, the source of its documents is unknown", hint=hint)
    content, options = manifest.content, manifest.content.options
    tokenizer = load_recorded_tokenizer(prefix, manifest, path=config.tokenizer_model)
    has_quarantined = options.on_bad_record == "quarantine" and any(file.quarantined != 0 for file in content.inputs)
    # gigatoken would make documents of texts that were quarantined because the reference failed on them.
    is_by_reference = manifest.run.engine is not None and manifest.run.engine.name == tokenizer.library
    engine = "reference" if has_quarantined and is_by_reference and config.engine == "auto" else config.engine
    adds_special_tokens = not options.tokenizer_hf_no_include_special_tokens
    return SourceShards(
        detected=detected,
        settings=ShardSettings(
            tokenizer=tokenizer,
            engine=choose_engine(tokenizer, engine, add_special_tokens=adds_special_tokens),
            keys=selection.outputs,
            selection=selection,
            dtype="<i4" if content.token_dtype == "uint32" else np.dtype(content.token_dtype).newbyteorder("<").str,
            eod_id=content.eod_id,
            layout="pbin" if detected.kind == "pbin" else options.empty_documents or "keep",
            quarantine=has_quarantined,
            max_record_bytes=options.max_record_size or LARGEST_RECORD_BYTES,
            provenance=False,
            work_dir="",
            samples=(Sample(low=options.leave_out or 0.0, high=options.sample or 1.0),),
        ),
        tasks=tuple(plan_shards(_find_inputs(prefix, manifest, config.contact), shard_bytes=SHARD_BYTES)),
        seed=options.shuffle_documents,
    )


def compare_shard(
    task: ShardTask, first: int, end: int, detected: DetectedDataset, settings: ShardSettings, seed: int | None
) -> list[str]:
    """Make a shard again and compare it with its documents in a dataset: [first, end) in the order of the inputs."""
    dataset = open_documents(detected)
    with tempfile.TemporaryDirectory(prefix="dsindex-verify-") as folder:
        write_marker(folder)
        segment = tokenize_shard(task, replace(settings, work_dir=folder)).keys[0]
        new_dataset = IndexedDataset(os.path.join(folder, segment.bin.name).removesuffix(".bin"), check=False)
        documents = dataset.window(first, end - first) if seed is None else _restore(dataset, first, end, seed, folder)
        difference = first_difference(documents, documents_of(new_dataset))
    if difference is None:
        return []
    number, problem = first + difference[0], difference[1]
    if seed is not None and number < dataset.num_documents:
        number = int(permute(np.array(number), dataset.num_documents, seed, inverse=True))
    line = _find_line(detected, dataset, number) or task.place
    where = f"{detected.path}: document {number:,} differs from its source, {line}"
    return [f"{where}: {problem} in the dataset and made again; restore the files, or build the dataset again"]


def _restore(documents: Documents, first: int, end: int, seed: int, folder: str) -> Documents:
    """Copy documents of a shuffled dataset into a folder: [first, end) in the order of the inputs."""
    unshuffled = ShuffledDocuments([documents], seed, inverse=True)
    path, dtype = os.path.join(folder, "restored"), documents.tokens.dtype.newbyteorder("=")
    with open(path, "wb") as file:
        file.writelines(piece.astype(dtype, copy=False).data for piece in unshuffled.tokens(first, end))
    return Documents.of_bounds(path, open_items(path, dtype), starts_of(unshuffled.lengths(first, end)))


def _first_documents(provenance: str, tasks: Sequence[ShardTask]) -> list[int]:
    """Return the number of documents before each shard, in the order of the inputs."""
    begins = [(task.input, task.parts[0].begin) for task in tasks]
    counts = np.zeros(len(begins), np.int64)
    task_inputs = np.array([number for number, _ in begins], np.int64)
    for first in range(0, num_rows := count_rows(provenance), ROWS_PER_GROUP):
        inputs, offsets, _ = read_rows(provenance, first, min(first + ROWS_PER_GROUP, num_rows))
        order = np.lexsort((offsets, inputs))  # the documents may be in a random order
        inputs, offsets = inputs[order], offsets[order]
        low, high = np.searchsorted(inputs, task_inputs, "left"), np.searchsorted(inputs, task_inputs, "right")
        counts += low
        for shard in np.flatnonzero(high > low).tolist():
            counts[shard] += np.searchsorted(offsets[low[shard] : high[shard]], begins[shard][1])
    return [int(number) for number in counts]


def _selection_of(prefix: str, manifest: Manifest) -> Selection | None:
    """Return the selection that produced the dataset, as its first output; None if it was not made from records.

    Raises:
        InputError: If the dataset was made from conversations, or a jq program in the manifest does not compile.
    """
    content, options = manifest.content, manifest.content.options
    if options.instruction is not None:
        hint = "build it again under another name and compare: dsindex verify A --same-as B"
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
    """Find the inputs at their paths as given or at their absolute paths, and compare them with the manifest.

    Raises:
        InputError: If an input is missing, changed, was standard input, or is at an address that was not confirmed.
    """
    files = []
    for number, record in enumerate(manifest.content.inputs):
        path = input_path(manifest, number, user_addresses=(prefix, *contact))
        form: Any = record.format or "jsonl"
        [whole_file] = examine_inputs([InputPath(path=path, absolute_path=absolute(path))], input_format=form)
        file = cut_input(whole_file, shard_size=SHARD_BYTES)
        if file.size_bytes != record.size_bytes or fingerprint_input(file.path) != record.fingerprint:
            problem = f"it is not the input of {record.size_bytes} bytes that the dataset was made from"
            raise InputError(f"{path}: {problem}", hint="restore the original")
        files.append(file)
    return files
