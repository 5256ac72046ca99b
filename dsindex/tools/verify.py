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

from dsindex.datasets.exports import read_export_manifest
from dsindex.datasets.indexed import IndexedDataset
from dsindex.datasets.kinds import tell_kind
from dsindex.datasets.pbin import PbinDocuments
from dsindex.engine.dispatch import run_in_order
from dsindex.engine.executors import Call
from dsindex.engine.start import make_executor
from dsindex.errors import FormatError, InputError, UsageError
from dsindex.formats.manifest import manifest_path, read_manifest
from dsindex.formats.pbin import PBIN_VERSIONS
from dsindex.store.reading import digest_blocks, is_stored, stored_size
from dsindex.store.storage import DIGEST_BLOCK_BYTES, StoredFile, combine_digests
from dsindex.text.tokenizer import load_tokenizer
from dsindex.tools.documents import documents_of, open_documents
from dsindex.tools.results import CheckResult, DatasetCounts, VerifyReport
from dsindex.tools.verify_caches import find_caches, verify_cache
from dsindex.tools.verify_tokens import compare_shard, find_difference, open_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from dsindex.datasets.kinds import Subject
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
    with contextlib.closing(make_executor(config)) as executor:
        return _Run(subject, config, executor, reporter).verify()


def _refuse_foreign(path: str, subject: Subject, config: VerifyConfig) -> None:
    if subject.kind == "export" and (config.cache is not None or config.against_source or config.same_as is not None):
        raise UsageError(f"--cache, --against-source and --same-as are for datasets, not for the export {path}")
    if subject.kind not in {"MMIDIDX", "pbin", "packs", "export"}:
        hints = {
            "instruction data": f"; verify {subject.path}_text_document and {subject.path}_loss_mask",
            "index cache": "; verify its dataset, with --cache",
        }
        expected = "expected a dataset of .bin and .idx, a .pbin or an export"
        raise InputError(f"{path}: {expected}, got {subject.kind}{hints.get(subject.kind, '')}")


class _Run:
    """The verification of one dataset."""

    def __init__(self, subject: Subject, config: VerifyConfig, executor: Executor, reporter: Reporter) -> None:
        self._subject, self._config, self._executor, self._reporter = subject, config, executor, reporter
        self._results: list[CheckResult] = []
        self._notes: list[str] = []
        self._compared = False

    def verify(self) -> VerifyReport:
        subject, config = self._subject, self._config
        manifest, files = (None, self._exported()) if subject.kind == "export" else self._read_manifest()
        source = open_source(subject, manifest, config) if config.against_source else None
        counts, version = (None, None) if subject.kind == "export" else self._read_structure(manifest)
        own = {"export": (), "pbin": ("pbin",)}.get(subject.kind, ("bin", "idx", "provenance.parquet"))
        self._executor.require_seen([*files, *(f"{subject.prefix}.{suffix}" for suffix in own)])
        checks = [_check_digest(path, file) for path, file in files.items()]
        checks += [] if counts is None else self._checks_of_content(counts, manifest)
        self._run(checks)
        if source is not None:
            self._compare_with_source(source, counts)
        return VerifyReport(
            path=subject.path,
            kind=subject.kind,
            version=version,
            counts=counts,
            checks=tuple(self._results),
            compared=self._compared,
            notes=tuple(self._notes),
        )

    def _exported(self) -> dict[str, StoredFile]:
        """Return the files of an export in its manifest."""
        folder = self._subject.path
        try:
            manifest = read_export_manifest(folder)
        except FormatError as error:
            self._results.append(CheckResult.of("the manifest", [str(error)]))
            return {}
        return {
            os.path.join(folder, name): StoredFile(name=name, size_bytes=file.size_bytes, digest=file.xxh3_128)
            for name, file in (manifest.content.digests.items() if manifest is not None else ())
        }

    def _read_manifest(self) -> tuple[Manifest | None, dict[str, StoredFile]]:
        """Read the manifest and its files, and recognise one of another dataset under the same name."""
        prefix, is_packed = self._subject.prefix, self._subject.kind == "pbin"
        try:
            manifest = read_manifest(prefix)
        except FormatError as error:
            self._results.append(CheckResult.of("the manifest", [str(error)]))
            return None, {}
        if manifest is not None and ("pbin" in manifest.content.digests) != is_packed:
            self._notes.append(f"{manifest_path(prefix)} belongs to a dataset of another format with the same name")
            return None, {}
        files = {} if manifest is None else manifest.content.digests
        return manifest, {f"{prefix}.{suffix}": file for suffix, file in files.items()}

    def _checks_of_content(self, counts: DatasetCounts, manifest: Manifest | None) -> Iterator[Check]:
        subject, config = self._subject, self._config
        recorded = None if manifest is None else manifest.content.tokenizer
        size = None if recorded is None else recorded.vocabulary_size
        if size is None and config.tokenizer_model is not None:
            size = load_tokenizer(config.tokenizer_model).vocabulary_size
        if size is not None and np.dtype(counts.token_type).kind in "iu":
            step = max(1, counts.tokens) if subject.kind == "pbin" else PIECE_TOKENS
            yield Check(
                name=f"token ids below the {size:,} of the vocabulary",
                function=find_foreign_id,
                pieces=[
                    (subject, begin, min(begin + step, counts.tokens), size) for begin in range(0, counts.tokens, step)
                ],
                judge=lambda found: list(chain.from_iterable(found))[:1],
            )
        if config.cache is not None:
            yield _check_caches(config.cache, subject.path)
        if config.same_as is not None:
            name, pieces = f"the same documents as {config.same_as}", [(subject.path, config.same_as)]
            yield Check(name=name, function=find_difference, pieces=pieces, compares_tokens=True)

    def _read_structure(self, manifest: Manifest | None) -> tuple[DatasetCounts | None, str | None]:
        """Check every entry of the index against the tokens; return None for a damaged one."""
        subject, findings = self._subject, list[str]()
        counts = version = None
        try:
            if subject.kind == "pbin":
                era = None if manifest is None else manifest.content.options.pbin_era
                packed = PbinDocuments(subject.path, version=None if era is None else PBIN_VERSIONS[era])
                version = packed.header.version.name
                counts = _count(packed, len(packed), packed.header.dtype.newbyteorder("=").name)
            else:
                _require_idx(subject.path)
                dataset = IndexedDataset(subject.path)
                counts = _count(dataset, len(dataset), str(dataset.dtype))
        except (FormatError, InputError) as error:
            findings.append(f"{error}; {REMEDY}")
        self._results.append(CheckResult.of(STRUCTURE, findings))
        return counts, version

    def _compare_with_source(self, source: SourceShards, counts: DatasetCounts | None) -> None:
        damaged = [each for each in self._results if each.findings and each.name.endswith(".provenance.parquet")]
        if counts is None or damaged:
            note = "index or provenance are damaged, so the dataset was not compared with its source"
            self._notes.append(note)
            return
        shards, pieces = source.choose(counts.documents, share=self._config.sample)
        name = f"against the source: {shards} tokenized again with {source.settings.engine.describe()}"
        self._run([Check(name=name, function=compare_shard, pieces=pieces, compares_tokens=True)])

    def _run(self, checks: Sequence[Check]) -> None:
        self._reporter.stage("verify", total=sum(len(check.pieces) for check in checks), unit="pieces")
        for check in checks:
            self._results.append(CheckResult.of(check.name, check.judge(self._call(check))))
            self._compared |= check.compares_tokens

    def _call(self, check: Check) -> Iterator[Any]:
        place, name = self._subject.prefix, check.function.__name__
        calls = (
            Call(name=f"{name}[{number}]", place=place, function=check.function, arguments=own)
            for number, own in enumerate(check.pieces)
        )
        for result in run_in_order(self._executor, calls, on_idle=self._reporter.tick):
            self._reporter.advance(1)
            yield result


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
    is_read = is_stored(path) and stored_size(path) == file.size_bytes
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
    elif (size_bytes := stored_size(path)) != file.size_bytes:
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
