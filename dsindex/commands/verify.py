"""`dsindex verify`: functions over pieces of a dataset that return findings, mapped over an executor.

The structure of a dataset is checked whatever wrote it, and its ids if a vocabulary is known. The digests in its
manifest cover all else that its files hold.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.commands.findings import CACHE, SAME_AS, CheckResult, DatasetCounts, VerifyReport
from dsindex.commands.verify_caches import is_cache_of, list_caches, verify_cache
from dsindex.commands.verify_tokens import compare_shard, find_difference, open_source
from dsindex.datasets.detect import detect_dataset
from dsindex.datasets.documents import documents_of, open_documents
from dsindex.datasets.indexed import IndexedDataset
from dsindex.datasets.packed import PbinDocuments
from dsindex.errors import FormatError, InputError
from dsindex.formats.manifest import manifest_path, read_manifest
from dsindex.formats.pbin import PBIN_VERSIONS
from dsindex.formats.provenance import PROVENANCE_SUFFIX, count_rows, provenance_path
from dsindex.megatron.cache import files_of
from dsindex.runtime.dispatch import make_executor, run_in_order
from dsindex.runtime.executors import Call
from dsindex.store.local import DIGEST_BLOCK_BYTES, combine_digests
from dsindex.store.read import digest_blocks, input_status, is_stored
from dsindex.text.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from dsindex.commands.verify_tokens import SourceShards
    from dsindex.datasets.detect import DetectedDataset, KindName
    from dsindex.formats.manifest import Manifest
    from dsindex.options.datasets import VerifyConfig
    from dsindex.runtime.executors import Executor
    from dsindex.runtime.progress import Reporter
    from dsindex.store.local import StoredFile

STRUCTURE = "structure: every entry of the index against the tokens"
REMEDY = "restore it, or build the dataset again"
_SUFFIXES: dict[KindName, tuple[str, ...]] = {
    "MMIDIDX": ("bin", "idx", "provenance.parquet"),
    "packs": ("bin", "idx"),
    "pbin": ("pbin",),
}
"""The files of each kind that is verified."""
_HINTS = {
    "instruction data": "; verify its _text_document and its _loss_mask",
    "index cache": "; verify its dataset, with --cache",
}
PIECE_TOKENS, CHUNK_TOKENS = 1 << 26, 1 << 21
"""Tokens that one call reads, and that are held in memory at once."""


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
    """Verify one dataset: always its structure; the rest as a manifest and options allow.

    Raises:
        InputError: If it is no such dataset, or `--against-source` or `--cache` asks for a check that is impossible.
        TokenizerError: If the tokenizer for `--against-source` is not the one that the dataset was made with.
    """
    try:
        detected = detect_dataset(path)
    except (InputError, FormatError) as error:
        missing = CheckResult(name="the dataset is there", findings=(error.sentence,))
        return VerifyReport(path=path, kind=None, checks=(missing,))
    if detected.kind not in _SUFFIXES:
        got = f"{detected.kind}{_HINTS.get(detected.kind, '')}"
        raise InputError(f"{path}: neither .bin and .idx nor a .pbin, but {got}")
    results, notes = list[CheckResult](), list[str]()
    manifest = _read_manifest(detected, results, notes)
    source = open_source(detected, manifest, config) if config.against_source else None
    counts = _read_structure(detected, manifest, results)
    if counts is not None and manifest is not None:
        results += _compare_counts(detected, counts, manifest)
    files = {} if manifest is None else manifest.content.digests
    checks = [_check_digest(f"{detected.prefix}.{suffix}", file) for suffix, file in files.items()]
    checks += [] if counts is None else _checks_of_content(detected, counts, config, is_digested=manifest is not None)
    with contextlib.closing(make_executor(config)) as executor:
        executor.require_seen([f"{detected.prefix}.{suffix}" for suffix in {*files, *_SUFFIXES[detected.kind]}])
        results += _run(checks, executor, reporter, place=detected.prefix)
        is_traced = not any(each.findings and each.name.endswith(".provenance.parquet") for each in results)
        if source is not None and counts is not None and is_traced:
            checks.append(_check_source(source, counts, config))
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
    """Read the manifest; recognise one of another dataset under the same name."""
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
    """Check every entry of the index against the tokens; return no counts of a damaged one."""
    counts, findings = None, list[str]()
    try:
        if detected.kind == "pbin":
            era = None if manifest is None else manifest.content.options.pbin_era
            packed = PbinDocuments(detected.path, version=None if era is None else PBIN_VERSIONS[era])
            token_type, version = packed.header.dtype.newbyteorder("=").name, packed.header.version.name
            counts = _count(packed, token_type=token_type, version=version)
        else:
            _require_idx(detected.path)
            dataset = IndexedDataset(detected.path)
            counts = _count(dataset, token_type=str(dataset.dtype), version=None)
    except (FormatError, InputError) as error:
        findings.append(f"{error.sentence}; {REMEDY}")
    results.append(CheckResult(name=STRUCTURE, findings=tuple(findings)))
    return counts


def _compare_counts(detected: DetectedDataset, counts: DatasetCounts, manifest: Manifest) -> Iterator[CheckResult]:
    """Compare the counts of the index with the manifest and with the rows of the provenance."""
    content, path = manifest.content, manifest_path(detected.prefix)
    recorded = {
        "documents": (content.documents, counts.documents),
        "sequences": (content.sequences, counts.sequences),
        "tokens": (content.tokens, counts.tokens),
        "token type": (np.dtype(content.token_dtype).name, counts.token_type),
    }
    wrong = [
        f"{path}: {name}: {said} recorded, {got} in the dataset"
        for name, (said, got) in recorded.items()
        if said != got
    ]
    yield CheckResult(name="counts of the manifest", findings=tuple(wrong))
    if PROVENANCE_SUFFIX in content.digests and is_stored(provenance := provenance_path(detected.prefix)):
        try:
            num_rows = count_rows(provenance)
            told = f"{provenance}: it has {num_rows:,} rows for {counts.documents:,} documents; {REMEDY}"
            wrong = [told] if num_rows != counts.documents else []
        except FormatError as error:
            wrong = [error.sentence]
        yield CheckResult(name="a row of provenance for every document", findings=tuple(wrong))


def _require_idx(prefix: str) -> None:
    is_there = is_stored(f"{prefix}.idx") or os.path.lexists(f"{prefix}.idx")
    if not is_there and is_stored(f"{prefix}.bin"):
        why = "preprocess_data.py of Megatron-LM left this of all --json-keys but the last until May 2026"
        raise FormatError(f"{prefix}.idx: is missing next to its .bin: a writer was stopped before its end, or {why}")


def _count(dataset: IndexedDataset | PbinDocuments, *, token_type: str, version: str | None) -> DatasetCounts:
    documents = documents_of(dataset)
    return DatasetCounts(
        documents=documents.num_documents,
        empty_documents=sum(int(np.count_nonzero(lengths == 0)) for lengths in documents.lengths()),
        sequences=len(dataset),
        tokens=len(documents.tokens),
        token_type=token_type,
        version=version,
    )


def _run(checks: Sequence[Check], executor: Executor, reporter: Reporter, *, place: str) -> Iterator[CheckResult]:
    """Run checks, all pieces side by side."""
    if total := sum(len(check.pieces) for check in checks):
        reporter.stage("verify", total=total, unit="blocks")

    calls = (
        Call(name=f"{check.function.__name__}[{number}]", place=place, function=check.function, arguments=piece)
        for check in checks
        for number, piece in enumerate(check.pieces)
    )
    results = run_in_order(executor, calls, on_idle=reporter.tick)

    def next_result() -> Any:  # noqa: ANN401 - of the check's function
        reporter.advance(1)
        return next(results)

    for check in checks:
        own_results = (next_result() for _ in check.pieces)
        yield CheckResult(name=check.name, findings=tuple(check.judge(own_results)))


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
        descriptions = [each for each in list_caches(config.cache) if is_cache_of(each, detected.path)]
        if not descriptions:
            name = os.path.basename(detected.path)
            raise InputError(f"{config.cache}: no index cache of {name} is here", hint="build one: dsindex index")
        for path in descriptions:
            name = os.path.basename(files_of(path).stem)
            yield Check(name=f"{CACHE} {name}", function=verify_cache, pieces=[(path, detected.path)])
    if config.same_as is not None:
        name, own = f"{SAME_AS} {config.same_as}", [(detected.path, config.same_as)]
        yield Check(name=name, function=find_difference, pieces=own, compares_tokens=True)


def _check_source(source: SourceShards, counts: DatasetCounts, config: VerifyConfig) -> Check:
    shards, pieces = source.choose(counts.documents, share=config.sample)
    name = f"against the source: {shards} tokenized again with {source.settings.engine.describe()}"
    return Check(name=name, function=compare_shard, pieces=pieces, compares_tokens=True)


def find_foreign_id(detected: DetectedDataset, begin: int, end: int, vocabulary_size: int) -> list[str]:
    """Find the first of the tokens [begin, end) that is in no vocabulary of this size."""
    documents = open_documents(detected)
    for first in range(begin, end, CHUNK_TOKENS):
        tokens = np.asarray(documents.tokens[first : min(first + CHUNK_TOKENS, end)])
        if tokens.min() < 0 or tokens.max() >= vocabulary_size:
            at = int(np.flatnonzero((tokens < 0) | (tokens >= vocabulary_size))[0])
            what = f"id {tokens[at]} in document {documents.at(first + at):,} is not below {vocabulary_size}"
            return [f"{documents.path}: {what}; give the dataset's tokenizer, or build it again"]
    return []


def _check_digest(path: str, file: StoredFile) -> Check:
    """Compare a file with its size and digest in the manifest, the blocks side by side."""
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
    """Yield what is wrong with a file by its size, None if it is missing, and the digests of its blocks."""
    digest = combine_digests(chain.from_iterable(pieces))
    if size_bytes != file.size_bytes:
        found = "there is no regular file" if size_bytes is None else f"it has {size_bytes} bytes"
        yield f"{path}: {found}, and {file.size_bytes} bytes are recorded; {REMEDY}"
    elif digest != file.digest:
        yield f"{path}: its content changed: the digest is {digest}, and {file.digest} is recorded; {REMEDY}"
