"""`dsindex verify`: functions over pieces of a dataset that return findings, mapped over an executor.

A check is a name, a function and the pieces to call it with. Its findings are sentences with a place and a remedy.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from dsindex.datasets.exports import export_folder_of, read_export_manifest
from dsindex.datasets.opening import PBIN_SUFFIX
from dsindex.engine.dispatch import run_in_order
from dsindex.engine.executors import Call
from dsindex.engine.manifest import manifest_path, read_manifest
from dsindex.engine.output import PROVENANCE_SUFFIX, QUARANTINE_SUFFIX
from dsindex.engine.start import make_executor
from dsindex.errors import FormatError, InputError, UsageError
from dsindex.store.reading import is_stored
from dsindex.store.storage import what_is_no_file
from dsindex.tools.kinds import tell_kind
from dsindex.tools.results import CheckResult, VerifyReport
from dsindex.tools.verify_caches import find_caches, verify_cache
from dsindex.tools.verify_files import (
    cut_documents,
    cut_tokens,
    find_foreign_counts,
    find_wrong_sums,
    judge_tokens,
    verify_digest,
    verify_ends,
    verify_quarantine,
    verify_rows,
    verify_structure,
    verify_tokens,
)
from dsindex.tools.verify_same import find_difference
from dsindex.tools.verify_source import check_source, open_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from dsindex.engine.executors import Executor
    from dsindex.engine.manifest import Manifest
    from dsindex.engine.progress import Reporter
    from dsindex.options.datasets import VerifyConfig
    from dsindex.tools.kinds import Subject
    from dsindex.tools.verify_files import Structure

STRUCTURE = "structure: every entry of the index against the tokens"
ROWS = "provenance: a row per document, in order, inside the inputs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check of a dataset."""

    name: str
    function: Callable[..., Any]
    pieces: Sequence[tuple[Any, ...]]
    """The arguments of each call; pieces are small, and may be sent to other machines."""
    judge: Callable[[Iterator[Any]], Iterable[str]] = chain.from_iterable
    """Turns the results of all pieces, in order, into findings."""
    compares_tokens: bool = False
    """Whether tokens are compared with something: a digest, the source, or another dataset."""


def verify_dataset(path: str, config: VerifyConfig, *, reporter: Reporter) -> VerifyReport:
    """Verify one dataset: always its structure; the rest as far as a manifest and options allow.

    Raises:
        InputError: If `--against-source` or `--cache` asks for a check that is impossible.
        TokenizerError: If the tokenizer for `--against-source` is not the one that the dataset was made with.
    """
    try:
        subject = tell_kind(path)
    except (InputError, FormatError) as error:
        return VerifyReport(path=path, kind=None, checks=(CheckResult.of("the dataset is there", [str(error)]),))
    if subject.kind == "export":
        if config.cache is not None or config.against_source or config.same_as is not None:
            raise UsageError(f"--cache, --against-source and --same-as are for datasets, not for the export {path}")
        return _verify_export(subject.path, reporter)
    if subject.kind not in {"MMIDIDX", "pbin", "packs"}:
        hint = ""
        if subject.kind == "instruction data":
            hint = f"; verify {subject.path}_text_document and {subject.path}_loss_mask"
        elif subject.kind == "index cache":
            hint = "; verify its dataset, with --cache"
        raise InputError(f"{path}: expected a dataset of .bin and .idx, a .pbin or an export, got {subject.kind}{hint}")
    executor = make_executor(config)
    try:
        return _Verification(subject, config, executor, reporter).run()
    finally:
        executor.close()


class _Verification:
    """The verification of one dataset."""

    def __init__(self, subject: Subject, config: VerifyConfig, executor: Executor, reporter: Reporter) -> None:
        self._subject = subject
        self._config = config
        self._executor = executor
        self._reporter = reporter
        self._suffix = "pbin" if subject.kind == "pbin" else "bin"
        self._prefix = subject.path.removesuffix(PBIN_SUFFIX)
        self._manifest: Manifest | None = None
        self._results: list[CheckResult] = []
        self._notes: list[str] = []
        self._compared = False

    def run(self) -> VerifyReport:
        self._read_manifest()
        source = None
        if self._config.against_source:
            source = open_source(self._subject, self._manifest, self._config)
        structure, findings = verify_structure(self._subject, self._manifest)
        self._results.append(CheckResult.of(STRUCTURE, findings))
        self._require_shared()
        checks = [*self._checks_of_tokens(structure), *self._checks_of_files()]
        if structure is not None:
            checks += self._checks_of_documents(structure)
        self._run(checks)
        is_found = not any(each.findings for each in self._results if each.name in {STRUCTURE, ROWS})
        if source is not None and structure is not None and is_found:
            shards = check_source(source, structure.num_documents, share=self._config.sample)
            self._run([Check(name=shards.name, function=shards.function, pieces=shards.pieces, compares_tokens=True)])
        elif source is not None:
            self._notes.append("index or provenance are damaged, so the dataset was not compared with its source")
        return VerifyReport(
            path=self._subject.path,
            kind=self._subject.kind,
            version=None if structure is None else structure.version,
            counts=None if structure is None else structure.counts,
            checks=tuple(self._results),
            compared=self._compared,
            notes=tuple(self._notes),
        )

    def _read_manifest(self) -> None:
        """Read the manifest, and recognise one of another dataset under the same name."""
        path = manifest_path(self._prefix)
        irregular = what_is_no_file(path)
        try:
            if irregular is not None:  # opening a pipe could block
                raise FormatError(f"{path}: expected a regular file, got {irregular}; move it away")
            manifest = read_manifest(self._prefix)
        except FormatError as error:
            self._results.append(CheckResult.of("the manifest", [str(error)]))
            return
        if manifest is not None and self._suffix not in manifest.content.digests:
            self._notes.append(f"{path} belongs to a dataset of another format with the same name")
        elif manifest is not None:
            self._manifest = manifest

    def _require_shared(self) -> None:
        suffixes = ("pbin",) if self._suffix == "pbin" else ("bin", "idx", PROVENANCE_SUFFIX)
        self._executor.require_seen(f"{self._prefix}.{suffix}" for suffix in suffixes)

    def _run(self, checks: Sequence[Check]) -> None:
        self._reporter.stage("verify", total=sum(len(check.pieces) for check in checks), unit="pieces")
        for check in checks:
            findings = tuple(check.judge(self._call(check)))
            self._results.append(CheckResult.of(check.name, findings))
            self._compared |= check.compares_tokens

    def _call(self, check: Check) -> Iterator[Any]:
        calls = (
            Call(
                name=f"{check.function.__name__}[{number}]", place=self._prefix, function=check.function, arguments=own
            )
            for number, own in enumerate(check.pieces)
        )
        for result in run_in_order(self._executor, calls, on_idle=self._reporter.tick):
            self._reporter.advance(1)
            yield result

    def _checks_of_tokens(self, structure: Structure | None) -> Iterator[Check]:
        path, content = f"{self._prefix}.{self._suffix}", self._manifest.content if self._manifest else None
        if not is_stored(path):
            return
        names = ["every byte of the tokens can be read"]
        if content is not None:
            names = [f"digest of the .{self._suffix}"]
            names += ["token ids in the vocabulary"] if content.tokenizer is not None and structure is not None else []
            names += ["number of EOD tokens"] if content.eod_id is not None and structure is not None else []
        yield Check(
            name=", ".join(names),
            function=verify_tokens,
            pieces=cut_tokens(path, content, structure),
            judge=partial(judge_tokens, path, content, structure),
            compares_tokens=content is not None,
        )

    def _checks_of_files(self) -> Iterator[Check]:
        """Compare all other files of the manifest with their sizes and digests."""
        for suffix, file in self._manifest.content.digests.items() if self._manifest is not None else ():
            if suffix != self._suffix:
                path = f"{self._prefix}.{suffix}"
                yield Check(name=f"digest of the .{suffix}", function=verify_digest, pieces=[(path, file)])

    def _checks_of_documents(self, structure: Structure) -> Iterator[Check]:
        config = self._config
        if self._manifest is not None:
            content = self._manifest.content
            findings = find_foreign_counts(self._subject.path, content, structure)
            if content.account is not None:
                findings += find_wrong_sums(self._subject.path, content, structure)
            self._results.append(CheckResult.of("counts of documents, sequences, tokens and records", findings))
            account, quarantine = content.account, f"{self._prefix}.{QUARANTINE_SUFFIX}"
            if account is not None and (account.quarantined or os.path.lexists(quarantine) or is_stored(quarantine)):
                pieces = [(quarantine, account.quarantined)]
                yield Check(name="number of quarantined records", function=verify_quarantine, pieces=pieces)
            if content.eod_id is not None:
                runs = cut_documents(self._subject, structure.num_documents, content.eod_id)
                yield Check(name="every document with tokens ends with EOD", function=verify_ends, pieces=runs)
            provenance = f"{self._prefix}.{PROVENANCE_SUFFIX}"
            if content.account is not None and is_stored(provenance):
                without_row = 0 if structure.version is None else content.account.empty_documents
                rows = (provenance, structure.num_documents, without_row, content.inputs)
                yield Check(name=ROWS, function=verify_rows, pieces=[rows])
        if config.cache is not None:
            yield self._check_caches(config.cache)
        if config.same_as is not None:
            yield Check(
                name=f"the same documents as {config.same_as}",
                function=find_difference,
                pieces=[(self._subject.path, config.same_as)],
                compares_tokens=True,
            )

    def _check_caches(self, folder: str) -> Check:
        found = find_caches(folder, self._prefix)
        if not found:
            name = os.path.basename(self._prefix)
            raise InputError(f"{folder}: expected an index cache of {name}, found none; build one: dsindex index")
        kinds = Counter("blend" if "-BlendedDataset-" in each else "dataset" for each in found)
        said = " and ".join(f"{count} of a {kind}" for kind, count in sorted(kinds.items(), reverse=True))
        pieces = [(each, self._prefix) for each in found]
        return Check(name=f"index caches against the data: {said}", function=verify_cache, pieces=pieces)


def _verify_export(path: str, reporter: Reporter) -> VerifyReport:
    """Read every file of an export once, and compare it with the manifest."""
    folder = export_folder_of(path) or path
    name = "size and digest of every file of the export"
    try:
        manifest = read_export_manifest(folder)
    except FormatError as error:
        return VerifyReport(path=folder, kind="export", checks=(CheckResult.of(name, [str(error)]),))
    files = {} if manifest is None else manifest.content.digests
    reporter.stage("verify", total=len(files), unit="files")
    findings = []
    for file_name, file in files.items():
        findings += verify_digest(os.path.join(folder, file_name), file)
        reporter.advance(1)
    return VerifyReport(path=folder, kind="export", checks=(CheckResult.of(name, findings),), compared=bool(files))
