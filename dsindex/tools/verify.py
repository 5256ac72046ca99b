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

from dsindex.datasets.indexed import IndexedDataset
from dsindex.datasets.kinds import tell_kind
from dsindex.datasets.pbin import PbinDocuments
from dsindex.engine.dispatch import run_in_order
from dsindex.engine.executors import Call
from dsindex.engine.start import make_executor
from dsindex.errors import FormatError, InputError, UsageError
from dsindex.formats.manifest import manifest_path, read_manifest
from dsindex.formats.pbin import PBIN_VERSIONS
from dsindex.instruction.exports import read_export_manifest
from dsindex.store.reading import digest_blocks, input_status, is_stored
from dsindex.store.storage import DIGEST_BLOCK_BYTES, StoredFile, combine_digests
from dsindex.text.tokenizer import load_tokenizer
from dsindex.tools.documents import documents_of, open_documents
from dsindex.tools.results import SAME_AS, CheckResult, DatasetCounts, VerifyReport
from dsindex.tools.verify_caches import find_caches, verify_cache
from dsindex.tools.verify_tokens import compare_shard, find_difference, open_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from dsindex.datasets.kinds import KindName, Subject
    from dsindex.engine.executors import Executor
    from dsindex.engine.progress import Reporter
    from dsindex.formats.manifest import Manifest
    from dsindex.options.datasets import VerifyConfig
    from dsindex.tools.verify_tokens import SourceShards

STRUCTURE = "structure: every entry of the index against the tokens"
REMEDY = "restore it, or build the dataset again"
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
        InputError: If `--against-source` or `--cache` asks for a check that is impossible.
        TokenizerError: If the tokenizer for `--against-source` is not the one that the dataset was made with.
    """
    try:
        subject = tell_kind(path)
    except (InputError, FormatError) as error:
        check = CheckResult.of("the dataset is there", [str(error)])
        return VerifyReport(path=path, kind=None, checks=(check,))
    _refuse_foreign(path, subject, config)
    results, notes = list[CheckResult](), list[str]()
    manifest, files = _read_manifest(subject, results, notes)
    source = open_source(subject, manifest, config) if config.against_source else None
    counts, version = _read_structure(subject, manifest, results)
    checks = [_check_digest(path, file) for path, file in files.items()]
    checks += [] if counts is None else _checks_of_content(subject, counts, config, is_digested=manifest is not None)
    compared = any(check.compares_tokens for check in checks)
    with contextlib.closing(make_executor(config)) as executor:
        executor.require_seen([*files, *(f"{subject.prefix}.{suffix}" for suffix in _SUFFIXES[subject.kind])])
        results += _run(checks, executor, reporter, place=subject.prefix)
        if source is not None and counts is not None and not any(map(_is_of_provenance, results)):
            results += _run([_check_source(source, counts, config)], executor, reporter, place=subject.prefix)
            compared = True
        elif source is not None:
            notes.append("index or provenance are damaged, so the dataset was not compared with its source")
    return VerifyReport(
        path=subject.path,
        kind=subject.kind,
        version=version,
        counts=counts,
        checks=tuple(results),
        compared=compared,
        notes=tuple(notes),
    )


_SUFFIXES: dict[KindName, tuple[str, ...]] = {
    "MMIDIDX": ("bin", "idx", "provenance.parquet"),
    "packs": ("bin", "idx"),
    "pbin": ("pbin",),
    "export": (),
}
"""The files of each kind that is verified."""


def _refuse_foreign(path: str, subject: Subject, config: VerifyConfig) -> None:
    if subject.kind == "export" and (config.cache is not None or config.against_source or config.same_as is not None):
        raise UsageError(f"--cache, --against-source and --same-as are for datasets, not for the export {path}")
    if subject.kind not in _SUFFIXES:
        hints = {
            "instruction data": f"; verify {subject.path}_text_document and {subject.path}_loss_mask",
            "index cache": "; verify its dataset, with --cache",
        }
        expected = "expected a dataset of .bin and .idx, a .pbin or an export"
        raise InputError(f"{path}: {expected}, got {subject.kind}{hints.get(subject.kind, '')}")


def _read_manifest(
    subject: Subject, results: list[CheckResult], notes: list[str]
) -> tuple[Manifest | None, dict[str, StoredFile]]:
    """Read the manifest and its files, and recognise one of another dataset under the same name."""
    prefix = subject.prefix
    try:
        if subject.kind == "export":
            exported = read_export_manifest(prefix)
            digests = {} if exported is None else exported.digests
            return None, {os.path.join(prefix, name): file for name, file in digests.items()}
        manifest = read_manifest(prefix)
    except FormatError as error:
        results.append(CheckResult.of("the manifest", [str(error)]))
        return None, {}
    if manifest is not None and ("pbin" in manifest.content.digests) != (subject.kind == "pbin"):
        notes.append(f"{manifest_path(prefix)} belongs to a dataset of another format with the same name")
        manifest = None
    files = {} if manifest is None else manifest.content.digests
    return manifest, {f"{prefix}.{suffix}": file for suffix, file in files.items()}


def _read_structure(
    subject: Subject, manifest: Manifest | None, results: list[CheckResult]
) -> tuple[DatasetCounts | None, str | None]:
    """Check every entry of the index against the tokens; return no counts of a damaged one or an export."""
    counts = version = None
    findings = []
    try:
        if subject.kind == "pbin":
            era = None if manifest is None else manifest.content.options.pbin_era
            packed = PbinDocuments(subject.path, version=None if era is None else PBIN_VERSIONS[era])
            version = packed.header.version.name
            counts = _count(packed, len(packed), packed.header.dtype.newbyteorder("=").name)
        elif subject.kind != "export":
            _require_idx(subject.path)
            dataset = IndexedDataset(subject.path)
            counts = _count(dataset, len(dataset), str(dataset.dtype))
    except (FormatError, InputError) as error:
        findings.append(f"{error}; {REMEDY}")
    if subject.kind != "export":
        results.append(CheckResult.of(STRUCTURE, findings))
    return counts, version


def _checks_of_content(
    subject: Subject, counts: DatasetCounts, config: VerifyConfig, *, is_digested: bool
) -> Iterator[Check]:
    """Yield the checks that options ask for; ids are those of the build where the tokens have their digest."""
    if config.tokenizer_model is not None and not is_digested and np.dtype(counts.token_type).kind in "iu":
        size = load_tokenizer(config.tokenizer_model).vocabulary_size
        step = max(1, counts.tokens) if subject.kind == "pbin" else PIECE_TOKENS
        pieces = [(subject, begin, min(begin + step, counts.tokens), size) for begin in range(0, counts.tokens, step)]
        name = f"token ids below the {size:,} of the vocabulary"
        yield Check(name=name, function=find_foreign_id, pieces=pieces)
    if config.cache is not None:
        yield _check_caches(config.cache, subject.path)
    if config.same_as is not None:
        name, own = f"{SAME_AS} {config.same_as}", [(subject.path, config.same_as)]
        yield Check(name=name, function=find_difference, pieces=own, compares_tokens=True)


def _is_of_provenance(result: CheckResult) -> bool:
    return bool(result.findings) and result.name.endswith(".provenance.parquet")


def _check_source(source: SourceShards, counts: DatasetCounts, config: VerifyConfig) -> Check:
    shards, pieces = source.choose(counts.documents, share=config.sample)
    name = f"against the source: {shards} tokenized again with {source.settings.engine.describe()}"
    return Check(name=name, function=compare_shard, pieces=pieces, compares_tokens=True)


def _run(checks: Sequence[Check], executor: Executor, reporter: Reporter, *, place: str) -> Iterator[CheckResult]:
    """Run checks, the pieces of each side by side."""
    reporter.stage("verify", total=sum(len(check.pieces) for check in checks), unit="pieces")

    def results_of(check: Check) -> Iterator[Any]:
        name = check.function.__name__
        calls = (
            Call(name=f"{name}[{number}]", place=place, function=check.function, arguments=own)
            for number, own in enumerate(check.pieces)
        )
        for result in run_in_order(executor, calls, on_idle=reporter.tick):
            reporter.advance(1)
            yield result

    for check in checks:
        yield CheckResult.of(check.name, check.judge(results_of(check)))


def _require_idx(prefix: str) -> None:
    is_there = is_stored(f"{prefix}.idx") or os.path.lexists(f"{prefix}.idx")
    if not is_there and is_stored(f"{prefix}.bin"):
        why = "preprocess_data.py of Megatron-LM left this of all --json-keys but the last until May 2026"
        raise FormatError(f"{prefix}.idx: is missing beside its .bin: a writer was stopped before its end, or {why}")


def _count(dataset: IndexedDataset | PbinDocuments, num_sequences: int, token_type: str) -> DatasetCounts:
    documents = documents_of(dataset)
    return DatasetCounts(
        documents=documents.num_documents,
        empty_documents=sum(int(np.count_nonzero(lengths == 0)) for lengths in documents.lengths()),
        sequences=num_sequences,
        tokens=len(documents.tokens),
        token_type=token_type,
    )


def find_foreign_id(subject: Subject, begin: int, end: int, vocabulary_size: int) -> list[str]:
    """Find the first of the tokens [begin, end) that is in no vocabulary of this size."""
    documents = open_documents(subject)
    for first in range(begin, end, CHUNK_TOKENS):
        tokens = np.asarray(documents.tokens[first : min(first + CHUNK_TOKENS, end)])
        if tokens.min() < 0 or tokens.max() >= vocabulary_size:
            at = int(np.flatnonzero((tokens < 0) | (tokens >= vocabulary_size))[0])
            where = f"expected ids from 0 to {vocabulary_size - 1} in document {documents.at(first + at):,}"
            return [f"{documents.path}: {where}, got {tokens[at]}; give its tokenizer, or build the dataset again"]
    return []


def _check_digest(path: str, file: StoredFile) -> Check:
    """Compare a file with its size and digest in a manifest."""
    is_read = is_stored(path) and input_status(path).size_bytes == file.size_bytes
    begins = range(0, file.size_bytes, DIGEST_BLOCK_BYTES) if is_read else ()
    is_dataset = path.endswith(f".{file.name}")
    return Check(
        name=f"digest of the .{file.name}" if is_dataset else f"digest of {file.name}",
        function=digest_piece,
        pieces=[(path, begin, min(begin + DIGEST_BLOCK_BYTES, file.size_bytes)) for begin in begins],
        judge=partial(judge_digest, path, file),
        compares_tokens=not is_dataset or file.name in {"bin", "pbin"},
    )


def digest_piece(path: str, begin: int, end: int) -> list[bytes] | str:
    """Digest the blocks in bytes [begin, end) of a file; a sentence if they cannot be read."""
    try:
        return digest_blocks(path, begin=begin, end=end)
    except InputError as error:
        return f"{error}; {REMEDY}"


def judge_digest(path: str, file: StoredFile, pieces: Iterable[list[bytes] | str]) -> Iterator[str]:
    """Yield what is wrong with a file by the digests of its pieces."""
    if not is_stored(path):
        is_other = os.path.lexists(path)
        what = "expected a regular file, got another" if is_other else "is missing, but the manifest lists it"
        yield f"{path}: {what}; {REMEDY}"
    elif (size_bytes := input_status(path).size_bytes) != file.size_bytes:
        yield f"{path}: expected {file.size_bytes} bytes as in the manifest, got {size_bytes}; {REMEDY}"
    else:
        read = list(pieces)
        unread = [each for each in read if isinstance(each, str)]
        digest = combine_digests(block for each in read if not isinstance(each, str) for block in each)
        if unread or digest != file.digest:
            what = f"{path}: expected the digest {file.digest}, got {digest}; its content changed, {REMEDY}"
            yield unread[0] if unread else what


def _check_caches(folder: str, prefix: str) -> Check:
    found = find_caches(folder, prefix)
    if not found:
        name = os.path.basename(prefix)
        raise InputError(f"{folder}: expected an index cache of {name}, found none; build one: dsindex index")
    blends = sum("-BlendedDataset-" in each for each in found)
    told = [f"{len(found) - blends} of a dataset", *([f"{blends} of a blend"] if blends else [])]
    pieces = [(each, prefix) for each in found]
    return Check(name=f"index caches against the data: {' and '.join(told)}", function=verify_cache, pieces=pieces)
