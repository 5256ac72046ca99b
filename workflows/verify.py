"""The driver of `dsindex verify`: a dataset against its manifest, its caches and its source, on any executor."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

from dsindex.errors import FormatError
from dsindex.provenance import count_rows
from dsindex.storage import combine_digests
from dsindex.verify.caches import find_caches, verify_cache
from dsindex.verify.provenance import InputFacts, RowPiece, RowPieceResult, compare_row_counts, verify_rows
from dsindex.verify.structure import (
    DOCUMENTS_PER_PIECE,
    DocumentPiece,
    IndexCounts,
    verify_digest,
    verify_ends,
    verify_index,
    verify_quarantine,
)
from dsindex.verify.tokens import TokenPieceResult, plan_token_pieces, verify_tokens
from workflows.dispatch import run_calls
from workflows.executors import Call, make_executor
from workflows.manifest import Content, read_content, read_manifest
from workflows.publishing import PROVENANCE_SUFFIX, QUARANTINE_SUFFIX
from workflows.verify_source import SourceConfig, compare_with_source, open_recorded_source

if TYPE_CHECKING:
    from collections.abc import Callable

    from workflows.executors import Executor
    from workflows.manifest import RecordedFile
    from workflows.progress import Reporter


def parse_share(value: object) -> object:
    """Read a share as people write it.

    >>> parse_share("1%"), parse_share("0.5"), parse_share(1)
    (0.01, 0.5, 1)
    """
    if not isinstance(value, str):
        return value
    try:
        return float(value[:-1]) / 100 if value.endswith("%") else float(value)
    except ValueError:
        msg = f"expected a share such as 1% or 0.01, got {value!r}"
        raise ValueError(msg) from None


class VerifyConfig(SourceConfig):
    """`dsindex verify`."""

    cache: str | None = None
    """A folder with index caches to check against the data."""
    against_source: bool = False
    sample: Annotated[float, BeforeValidator(parse_share), Field(gt=0, le=1)] = 1.0
    """Share of the documents that are tokenized again."""


@dataclass(slots=True)
class VerifyReport:
    """What was looked at and what was found."""

    prefix: str
    checks: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What could not be checked, and why."""
    counts: IndexCounts | None = None
    has_manifest: bool = False

    @property
    def is_whole(self) -> bool:
        """True when nothing was found."""
        return not self.findings


def run_verify(prefix: str, config: VerifyConfig, *, reporter: Reporter) -> VerifyReport:
    """Verify one dataset: structure always; the rest where a manifest or the options say what to compare with.

    Raises:
        InputError: If `--against-source` or `--cache` asks for what cannot be done.
        TokenizerError: If `--against-source` is given another tokenizer than the dataset was made with.
    """
    executor = make_executor(config)
    try:
        return _Verification(prefix, config, reporter, executor).run()
    finally:
        executor.close()


class _Verification:
    def __init__(self, prefix: str, config: VerifyConfig, reporter: Reporter, executor: Executor) -> None:
        self._prefix = prefix
        self._config = config
        self._reporter = reporter
        self._executor = executor
        self._report = VerifyReport(prefix)
        self._manifest: dict[str, Any] = {}
        self._content: Content | None = None
        self._calls: list[tuple[Call, int, Callable[[Any], None]]] = []
        self._provenance_is_sound = False

    def run(self) -> VerifyReport:
        report = self._report
        self._read_manifest()
        report.counts, findings = verify_index(self._prefix)
        report.findings += findings
        report.checks.append("structure of the .idx, and every entry against the .bin")
        counts, content = report.counts, self._content
        if content is not None and counts is not None:
            self._compare_counts(content, counts)
            self._check_account(content, counts)
        self._plan_tokens()
        if counts is not None:
            self._plan_ends(counts)
        if content is not None:
            self._plan_digests(content.digests)
        if counts is not None:
            self._plan_provenance(counts)
            self._plan_caches()
        self._run_calls()
        if self._config.against_source:
            self._compare_with_source()
        return report

    def _read_manifest(self) -> None:
        try:
            manifest = read_manifest(self._prefix)
        except FormatError as error:
            self._report.findings.append(str(error))
            self._report.has_manifest = True
            return
        if manifest is None:
            self._report.notes.append("no manifest lies beside it: digests, vocabulary and EOD could not be checked")
            return
        self._report.has_manifest = True
        self._manifest, self._content = manifest, read_content(self._prefix, manifest)

    def _compare_counts(self, content: Content, counts: IndexCounts) -> None:
        """Compare what the index says with what the manifest says."""
        pairs = {
            "sequences": (content.sequences, counts.num_sequences),
            "documents": (content.documents, counts.num_documents),
            "tokens": (content.tokens, counts.num_tokens),
            "token_dtype": (content.token_dtype, counts.token_dtype),
        }
        self._report.findings += [
            f"{self._prefix}: expected {name} {expected} as in the manifest, got {got}; "
            f"the files are not those that the manifest was written for"
            for name, (expected, got) in pairs.items()
            if expected != got
        ]

    def _check_account(self, content: Content, counts: IndexCounts) -> None:
        account = content.account
        if account is None:
            return
        sums = [
            ("lines = records + blank", account.lines, account.records + account.blank),
            (
                "records = kept + quarantined + elsewhere",
                account.records,
                account.kept + account.quarantined + account.elsewhere,
            ),
            ("kept = documents", account.kept, counts.num_documents),
            ("empty documents", account.empty_documents, counts.num_empty_documents),
            ("documents with tokens", account.documents_with_tokens, counts.num_documents - counts.num_empty_documents),
            ("lines of all inputs", account.lines, sum(file.lines or 0 for file in content.inputs)),
            ("records kept of all inputs", account.kept, sum(file.kept or 0 for file in content.inputs)),
        ]
        self._report.findings += [
            f"{self._prefix}: the account does not add up: {what}, but {left} and {right}; "
            f"the manifest was changed, or belongs to other files"
            for what, left, right in sums
            if left != right
        ]
        self._report.checks.append("the account: every line of the input is a document, empty, blank or quarantined")
        path = f"{self._prefix}.{QUARANTINE_SUFFIX}"
        if account.quarantined or os.path.exists(path):
            call = Call(
                name="quarantine", place=path, function=verify_quarantine, arguments=(path, account.quarantined)
            )
            self._calls.append((call, 0, self._report.findings.extend))
            self._report.checks.append("the quarantine: as many records as the account says")

    def _plan_tokens(self) -> None:
        """Digest the `.bin` by blocks, and look at every token on the way: it may be whole where the `.idx` is not."""
        path = f"{self._prefix}.bin"
        counts, content = self._report.counts, self._content
        dtype = counts.token_dtype if counts is not None else content.token_dtype if content is not None else None
        if dtype is None or not os.path.isfile(path):
            return
        tokenizer = content.tokenizer if content is not None else None
        pieces = plan_token_pieces(
            path,
            os.path.getsize(path),
            dtype=dtype,
            vocabulary_size=tokenizer.vocabulary_size if tokenizer is not None else None,
            eod_id=content.eod_id if content is not None else None,
        )
        results: dict[int, TokenPieceResult] = {}

        def take(number: int, result: TokenPieceResult) -> None:
            results[number] = result
            self._report.findings += result.findings
            if len(results) == len(pieces):
                self._finish_tokens([results[number] for number in range(len(pieces))])

        for number, piece in enumerate(pieces):
            call = Call(name=f"verify[{number:05d}]", place=path, function=verify_tokens, arguments=(piece,))
            self._calls.append((call, piece.end - piece.begin, partial(take, number)))
        if not pieces:
            self._finish_tokens([])

    def _finish_tokens(self, results: list[TokenPieceResult]) -> None:
        content, report = self._content, self._report
        if content is None:
            return
        recorded = content.digests.get("bin")
        if recorded is not None:
            digest = combine_digests(bytes.fromhex(block) for result in results for block in result.block_digests)
            if digest != recorded.xxh3_128:
                report.findings.append(
                    f"{self._prefix}.bin: expected the digest {recorded.xxh3_128}, got {digest}; its content changed, "
                    f"restore it or build it again"
                )
            report.checks.append("digest of the .bin")
        if content.tokenizer is not None:
            report.checks.append("every token id lies in the vocabulary")
        if content.eod_id is not None and content.account is not None and content.eod_in_text is not None:
            expected = content.account.documents_with_tokens + content.eod_in_text
            got = sum(result.num_eod for result in results)
            if got != expected:
                report.findings.append(
                    f"{self._prefix}.bin: expected {expected} EOD tokens (one per document with tokens, and "
                    f"{content.eod_in_text} from text), got {got}; its content changed, restore it or build it again"
                )
            report.checks.append("the number of EOD tokens")

    def _plan_ends(self, counts: IndexCounts) -> None:
        if self._content is None or self._content.eod_id is None:
            return
        for begin in range(0, counts.num_documents, DOCUMENTS_PER_PIECE):
            end = min(begin + DOCUMENTS_PER_PIECE, counts.num_documents)
            piece = DocumentPiece(prefix=self._prefix, begin=begin, end=end, eod_id=self._content.eod_id)
            call = Call(name=f"ends[{begin}]", place=self._prefix, function=verify_ends, arguments=(piece,))
            self._calls.append((call, 0, self._report.findings.extend))
        self._report.checks.append("every document with tokens ends with EOD")

    def _plan_digests(self, digests: dict[str, RecordedFile]) -> None:
        for suffix, recorded in digests.items():
            path = f"{self._prefix}.{suffix}"
            if not os.path.exists(path):
                if suffix not in {"bin", "idx"}:  # of those the index's check says so
                    self._report.findings.append(f"{path}: is missing, and the manifest has it; restore it")
                continue
            size_bytes = os.path.getsize(path)
            if size_bytes != recorded.size_bytes:
                self._report.findings.append(
                    f"{path}: expected {recorded.size_bytes} bytes as in the manifest, got {size_bytes}; "
                    f"restore or repair it"
                )
            elif suffix != "bin":
                call = Call(
                    name=f"digest[{suffix}]", place=path, function=verify_digest, arguments=(path, recorded.xxh3_128)
                )
                self._calls.append((call, size_bytes, self._report.findings.extend))
                self._report.checks.append(f"digest of the .{suffix}")

    def _plan_provenance(self, counts: IndexCounts) -> None:
        path = f"{self._prefix}.{PROVENANCE_SUFFIX}"
        if not os.path.isfile(path):
            return
        try:
            num_rows = count_rows(path)
        except FormatError as error:
            self._report.findings.append(f"{error}; restore it or build again")
            return
        if num_rows != counts.num_documents:
            self._report.findings.append(
                f"{path}: expected a row for each of {counts.num_documents} documents, got {num_rows}; "
                f"it belongs to another dataset"
            )
            return
        facts = self._input_facts()
        if facts is None:
            self._report.notes.append("the manifest does not describe the inputs, so provenance could not be checked")
            return
        inputs = self._executor.share(facts)
        results: list[RowPieceResult] = []
        begins = range(0, num_rows, DOCUMENTS_PER_PIECE)

        def take(result: RowPieceResult) -> None:
            results.append(result)
            self._report.findings += result.findings
            if len(results) == len(begins) and not any(result.findings for result in results):
                wrong = compare_row_counts(path, results, facts)
                self._report.findings += wrong
                self._provenance_is_sound = not wrong

        for begin in begins:
            piece = RowPiece(path=path, begin=begin, end=min(begin + DOCUMENTS_PER_PIECE, num_rows))
            call = Call(name=f"provenance[{begin}]", place=path, function=verify_rows, arguments=(piece, inputs))
            self._calls.append((call, 0, take))
        self._report.checks.append("provenance: a row per document, in order, inside the inputs of the manifest")

    def _input_facts(self) -> tuple[InputFacts, ...] | None:
        facts = []
        for file in self._content.inputs if self._content is not None else ():
            if file.size_bytes is None or file.lines is None or file.kept is None:
                return None
            facts.append(InputFacts(size_bytes=file.size_bytes, lines=file.lines, kept=file.kept))
        return tuple(facts) or None

    def _plan_caches(self) -> None:
        folder = self._config.cache
        if folder is None:
            return
        tasks = find_caches(folder, self._prefix)
        if not tasks:
            name = os.path.basename(self._prefix)
            self._report.findings.append(
                f"{folder}: expected an index cache of {name}, found none; check --cache, or build one: dsindex index"
            )
        for task in tasks:
            call = Call(name="cache", place=task.description, function=verify_cache, arguments=(task,))
            self._calls.append((call, 0, self._report.findings.extend))
        kinds = Counter("blend" if "-BlendedDataset-" in task.description else "dataset" for task in tasks)
        said = " and ".join(f"{count} of a {kind}" for kind, count in sorted(kinds.items(), reverse=True))
        self._report.checks.append(f"index caches against the data: {said or 'none'}")

    def _run_calls(self) -> None:
        self._reporter.stage("verify", total=sum(size for _, size, _ in self._calls), unit="bytes")

        def on_result(number: int, value: Any) -> None:  # noqa: ANN401 - each call has its own kind of result
            _, size, take = self._calls[number]
            take(value)
            self._reporter.advance(size)

        calls = ((number, call) for number, (call, _, _) in enumerate(self._calls))
        run_calls(self._executor, calls, on_result=on_result, on_idle=self._reporter.tick)

    def _compare_with_source(self) -> None:
        report = self._report
        if report.counts is None:
            report.notes.append("the index is damaged, so the dataset could not be compared with its source")
            return
        source = open_recorded_source(self._prefix, self._content, self._manifest, self._config)
        if source.findings:
            report.findings += source.findings
            return
        comparison = compare_with_source(
            source if self._provenance_is_sound else source.without_provenance(),
            num_documents=report.counts.num_documents,
            share=self._config.sample,
            executor=self._executor,
            reporter=self._reporter,
        )
        report.findings += comparison.findings
        report.checks.append(
            f"against the source: {comparison.documents:,} of {report.counts.num_documents:,} documents tokenized again"
            f" with {source.settings.engine.name}"
        )
