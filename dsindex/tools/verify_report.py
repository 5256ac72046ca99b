"""Check a dataset of any kind against its manifest: counts, record counts, files, every token, and provenance."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, groupby, tee
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import xxhash

from dsindex.amounts import count, short_number, split_names
from dsindex.datasets.provenance import count_rows, read_rows
from dsindex.engine.dispatch import run_in_order
from dsindex.engine.executors import Call
from dsindex.engine.output import PROVENANCE_SUFFIX, QUARANTINE_SUFFIX
from dsindex.engine.standard_streams import shown_columns
from dsindex.errors import FormatError, TokenizerError
from dsindex.json_text import encode_json
from dsindex.store.reading import is_stored, open_readable, stored_size
from dsindex.store.storage import DIGEST_BLOCK_BYTES, combine_digests
from dsindex.text.forms import TABLES
from dsindex.text.recorded_tokenizer import NamedTokenizer, find_tokenizer
from dsindex.tools.verify_files import DOCUMENTS_PER_PIECE, verify_digest, verify_quarantine

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from dsindex.engine.executors import Executor
    from dsindex.engine.manifest import Content, Manifest, RecordedTokenizer
    from dsindex.engine.progress import Reporter
    from dsindex.store.types import Readable
    from dsindex.text.tokenizer import Tokenizer
    from dsindex.tools.verify_files import IndexCounts


# Checks as values: a name, findings known at once, the calls still to run, and how to judge their results.
#
# Planning a check reads little and runs nothing. `run_checks` runs the calls of all checks, and `make_report` in
# `report` collects the results. Both keep the order of the checks, so a report does not depend on where they ran or
# which ended first.


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call of a check."""

    call: Call
    size: int = 0
    """Size in the progress display, in the stage's unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The conclusion from the results of a check's calls."""

    checked: tuple[str, ...] = ()
    """Names of checks that are known only from the results, and found nothing."""
    failed: tuple[str, ...] = ()
    """Names of those that did."""
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Sentences about parts that could not be checked, and why."""

    @classmethod
    def of(cls, name: str, finding: str, *, is_sound: bool) -> Self:
        """Return the verdict of one check, whose finding counts unless it is sound."""
        return cls(checked=(name,)) if is_sound else cls(failed=(name,), findings=(finding,))


def collect_findings(results: Iterable[Sequence[str]]) -> Verdict:
    """Judge calls that return findings."""
    return Verdict(findings=tuple(chain.from_iterable(results)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check. Without steps it is already complete, or its notes say why it cannot be made."""

    name: str | None = None
    """The name in the report; None: not listed, or named by the verdict."""
    findings: tuple[str, ...] = ()
    """Findings known without a call."""
    notes: tuple[str, ...] = ()
    """Sentences about parts that cannot be checked, and why."""
    steps: Iterable[Step] = ()
    """The steps, consumed once and only as they can be started."""
    size: int = 0
    shared: object = None
    """Last argument of every call, sent to each worker once; None: no such argument."""
    judge: Callable[[Iterator[Any]], Verdict] = collect_findings
    """Called with the results in the order of the steps, as an iterator that waits for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RanCheck:
    """A completed check and its verdict."""

    check: Check
    verdict: Verdict

    @property
    def is_sound(self) -> bool:
        """Whether the check has a name and neither it nor its verdict has findings."""
        return self.check.name is not None and not self.check.findings and not self.verdict.findings


def run_checks(
    checks: Sequence[Check], *, executor: Executor, reporter: Reporter, stage: str = "verify", unit: str = "bytes"
) -> list[RanCheck]:
    """Run the calls of all checks side by side; memory does not depend on the number of calls.

    Args:
        checks: The checks, in the order of the report.
        executor: Runs the calls.
        reporter: Shows progress.
        stage: Name of the stage in the progress display.
        unit: Unit of the steps' sizes.

    Returns:
        The checks with their verdicts, in the same order.

    Raises:
        DsindexError: The error of the first call that fails.
    """
    reporter.stage(stage, total=sum(check.size for check in checks), unit=unit)
    planned, awaited = tee(_all_steps(checks, executor))
    with contextlib.closing(
        run_in_order(executor, (step.call for _, step in planned), on_idle=reporter.tick)
    ) as results:

        def taken() -> Iterator[tuple[int, Any]]:
            for value, (number, step) in zip(results, awaited, strict=True):
                reporter.advance(step.size)
                yield number, value

        verdicts = {
            number: checks[number].judge(value for _, value in group)
            for number, group in groupby(taken(), key=lambda numbered: numbered[0])
        }
    return [
        RanCheck(check=check, verdict=verdicts[number] if number in verdicts else check.judge(iter(())))
        for number, check in enumerate(checks)
    ]


def _all_steps(checks: Sequence[Check], executor: Executor) -> Iterator[tuple[int, Step]]:
    """Yield the steps of all checks, each with the number of its check."""
    for number, check in enumerate(checks):
        if check.shared is None:
            yield from ((number, step) for step in check.steps)
            continue
        shared = executor.share(check.shared)
        for step in check.steps:
            yield number, replace(step, call=replace(step.call, arguments=(*step.call.arguments, shared)))


# Load the tokenizer in a manifest, or the one at a path that was given for it.


def name_tokenizer(recorded: RecordedTokenizer, manifest: Manifest) -> NamedTokenizer:
    """Return the tokenizer in a manifest, to look for it."""
    inputs = manifest.run.plan["inputs"]
    return NamedTokenizer(
        name=recorded.name,
        sha256=recorded.sha256,
        revision=recorded.revision,
        options=encode_json(recorded.options or {}),
        path=manifest.run.tokenizer_path,
        first_input=str(inputs[0][0]) if inputs else None,
    )


def load_recorded(prefix: str, recorded: RecordedTokenizer, manifest: Manifest, *, given: str | None) -> Tokenizer:
    """Load the tokenizer that a dataset was made with.

    Args:
        prefix: The dataset's path without suffix.
        recorded: The tokenizer in its manifest.
        manifest: The manifest.
        given: The path to load it from; None to look for it.

    Raises:
        TokenizerError: If it is missing or differs from the recorded one.
    """
    named = name_tokenizer(recorded, manifest)
    if given is not None:
        tokenizer = named.load(given, is_given=True)
        if tokenizer.sha256 != named.sha256:
            raise _another(named, given, tokenizer.sha256)
        return tokenizer
    found, others = find_tokenizer(named, prefix)
    if found is not None:
        return found
    if not others:
        raise TokenizerError(
            f"expected the tokenizer {named.name!r} (sha256 {named.sha256[:16]}…) that the dataset was made with, "
            f"found none by that name; give its path with --tokenizer-model"
        )
    other = next((each for each in others if each.sha256 is not None), others[0])
    raise TokenizerError(other.error) if other.sha256 is None else _another(named, other.place, other.sha256)


def _another(named: NamedTokenizer, path: str, sha256: str) -> TokenizerError:
    return TokenizerError(
        f"{path}: expected the tokenizer with sha256 {named.sha256} that the dataset was made with, got {sha256}; give "
        f"that one with --tokenizer-model"
    )


# Read the options of `dsindex pack` from the manifest of a `.pbin`.


@dataclass(frozen=True, slots=True, kw_only=True)
class PbinOptions:
    """The options of `dsindex pack` that the dataset depends on."""

    jq_pattern: str
    pbin_era: str


def read_pbin_options(prefix: str, content: Content) -> PbinOptions:
    """Return the options with which a `.pbin` was packed.

    Args:
        prefix: Path of the `.pbin` without suffix, for messages.
        content: The manifest's content.

    Raises:
        FormatError: If one is missing.
    """
    from dsindex.engine.manifest import manifest_path

    options = content.options
    if options.jq_pattern is None or options.pbin_era is None:
        missing = "jq_pattern" if options.jq_pattern is None else "pbin_era"
        raise FormatError(
            f"{manifest_path(prefix)}: expected a valid content.options.{missing}, got a damaged manifest (Field "
            f"required); restore the file, or pack again with --fresh"
        )
    return PbinOptions(jq_pattern=options.jq_pattern, pbin_era=options.pbin_era)


# The report on one verified dataset: completed checks, findings, and notes on what could not be checked.


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """The result of a verification."""

    prefix: str
    """The dataset as given: a prefix, or the path of a `.pbin`."""
    checks: tuple[str, ...] = ()
    """Names of the checks that found nothing."""
    failed: tuple[str, ...] = ()
    """Names of those that found something."""
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Sentences about what could not be checked, and why."""
    counts: IndexCounts | None = None
    version: str | None = None
    """Version of a `.pbin`."""
    is_there: bool = True
    """False if none of the dataset's files exists; the finding then names the missing files."""

    @property
    def is_whole(self) -> bool:
        """Whether there are no findings."""
        return not self.findings


def make_report(
    prefix: str,
    ran: Sequence[RanCheck],
    *,
    counts: IndexCounts | None = None,
    version: str | None = None,
) -> VerifyReport:
    """Return the report of completed checks: first what was known without a call, then the verdicts.

    Args:
        prefix: The dataset as given.
        ran: The checks, in the order of the report.
        counts: Counts of the index; None if it is damaged.
        version: Version of a `.pbin`.
    """
    verdicts = [each.verdict for each in ran]
    said: list[Check | Verdict] = [*(each.check for each in ran), *verdicts]
    named = [(each.check.name, each.is_sound) for each in ran if each.check.name is not None]
    return VerifyReport(
        prefix=prefix,
        checks=(
            *(name for name, is_sound in named if is_sound),
            *(name for verdict in verdicts for name in verdict.checked),
        ),
        failed=(
            *(name for name, is_sound in named if not is_sound),
            *(name for verdict in verdicts for name in verdict.failed),
        ),
        findings=tuple(finding for each in said for finding in each.findings),
        notes=tuple(note for each in said for note in each.notes),
        counts=counts,
        version=version,
    )


def report_absence(given: str, paths: Sequence[str]) -> VerifyReport | None:
    """Return the report on a dataset of which no file exists; None if there is one.

    Args:
        given: The dataset as given.
        paths: Paths of its files.
    """
    if any(os.path.lexists(path) or is_stored(path) for path in paths):
        return None
    sought = " and ".join((", ".join(paths[:-1]), paths[-1]) if len(paths) > 1 else paths)
    finding = f"there is no dataset: looked for {sought}; check the path"
    if os.path.isdir(given):
        finding += ", which is a folder; add the name of a dataset in it, without .bin and .idx"
    return VerifyReport(prefix=given, findings=(finding,), is_there=False)


_UNCHECKED = "digests, vocabulary and EOD could not be checked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A dataset's manifest, as far as it can be read."""

    prefix: str
    """Path without suffix."""
    manifest: Manifest | None = None
    """The manifest; None if it is missing, damaged or another dataset's."""
    is_foreign: bool = False
    """Whether the manifest belongs to another dataset under the same name."""
    is_there: bool = False
    """Whether this dataset has a manifest, readable or not."""
    check: Check = field(default_factory=Check)
    """Findings and notes about the manifest itself."""

    @property
    def content(self) -> Content | None:
        """The manifest's part about the dataset; None if there is no usable manifest."""
        return self.manifest.content if self.manifest is not None else None


def read_recorded(prefix: str, *, token_suffix: str) -> Recorded:
    """Read the manifest of a dataset, and recognise one of another dataset under the same name.

    Args:
        prefix: Path without suffix.
        token_suffix: Suffix of the token file, which the manifest must list.
    """
    from dsindex.engine.manifest import manifest_path, read_manifest  # the structure is checked without pydantic, too

    try:
        refuse_irregular(manifest_path(prefix))
        manifest = read_manifest(prefix)
    except FormatError as error:
        return Recorded(prefix=prefix, is_there=True, check=Check(findings=(str(error),)))
    if manifest is None:
        return Recorded(prefix=prefix, check=Check(notes=(f"there is no manifest: {_UNCHECKED}",)))
    content = manifest.content
    others = content.digests.keys() & {"bin", "idx", "pbin"} - {token_suffix}
    if token_suffix not in content.digests and others:
        known = " and ".join(f".{suffix}" for suffix in sorted(others))
        note = f"{manifest_path(prefix)} belongs to the {known}: {_UNCHECKED}"
        return Recorded(prefix=prefix, is_foreign=True, check=Check(notes=(note,)))
    return Recorded(prefix=prefix, manifest=manifest, is_there=True)


def refuse_irregular(path: str) -> None:
    """Refuse a path that is not a regular file, since opening a pipe could block; a missing file is accepted.

    Raises:
        FormatError: If it exists and is not a regular file.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        raise FormatError(f"{path}: expected a regular file, got something else; move it away")


def check_counts(given: str, content: Content, counts: IndexCounts) -> Check:
    """Compare the counts of the index with the manifest.

    Args:
        given: The dataset, for messages.
        content: The manifest's content.
        counts: The counts of the index.
    """
    pairs = {
        "sequences": (content.sequences, counts.num_sequences),
        "documents": (content.documents, counts.num_documents),
        "tokens": (content.tokens, counts.num_tokens),
        "token_dtype": (content.token_dtype, counts.token_dtype),
    }
    return Check(
        findings=tuple(
            f"{given}: expected {name} {expected} as in the manifest, got {got}; the manifest belongs to other files"
            for name, (expected, got) in pairs.items()
            if expected != got
        )
    )


def check_record_counts(given: str, content: Content, counts: IndexCounts, *, keeps_empty: bool) -> Check:
    """Check that the record counts add up, if the manifest has them.

    Args:
        given: The dataset, for messages.
        content: The manifest's content.
        counts: The counts of the index.
        keeps_empty: Whether a record without tokens is a document.
    """
    account = content.account
    if account is None:
        return Check()
    if content.options.empty_documents == "eod":  # their tokens are EOD
        with_tokens, keeps_empty = counts.num_documents - account.empty_documents, False
    else:
        with_tokens = counts.num_documents - counts.num_empty_documents
    sums = [
        ("lines = records + blank", account.lines, account.records + account.blank),
        (
            "records = kept + filtered + quarantined + elsewhere",
            account.records,
            account.kept + account.filtered + account.quarantined + account.elsewhere,
        ),
        ("kept = documents with tokens + empty", account.kept, account.documents_with_tokens + account.empty_documents),
        ("documents with tokens = those of the index", account.documents_with_tokens, with_tokens),
        (
            "empty documents = those of the index",
            account.empty_documents if keeps_empty else 0,
            counts.num_empty_documents,
        ),
        ("lines = lines of all inputs", account.lines, sum(file.lines or 0 for file in content.inputs)),
        ("kept = records kept of all inputs", account.kept, sum(file.kept or 0 for file in content.inputs)),
    ]
    empty = "empty" if keeps_empty else "without tokens"
    filtered = " filtered," if account.filtered else ""
    return Check(
        name=f"record counts: every line of the input is a document, {empty},{filtered} blank or quarantined",
        findings=tuple(
            f"{given}: the record counts do not add up: expected {what}, got {left} and {right}; "
            f"the manifest was changed, or belongs to other files"
            for what, left, right in sums
            if left != right
        ),
    )


def check_quarantine(recorded: Recorded) -> Check:
    """Check the number of quarantined records, if there are any."""
    account = recorded.content.account if recorded.content is not None else None
    path = f"{recorded.prefix}.{QUARANTINE_SUFFIX}"
    if account is None or not (account.quarantined or os.path.exists(path) or is_stored(path)):
        return Check()
    call = Call(name="quarantine", place=path, function=verify_quarantine, arguments=(path, account.quarantined))
    return Check(name="quarantine: the number of records in the manifest", steps=[Step(call=call)])


def check_files(recorded: Recorded, *, token_suffix: str, structural: Collection[str]) -> Iterator[Check]:
    """Compare files with the sizes and digests in the manifest.

    Args:
        recorded: The dataset's manifest.
        token_suffix: Suffix of the token file, whose digest is checked together with its tokens.
        structural: Suffixes of files whose absence another check reports.
    """
    for suffix, file in recorded.content.digests.items() if recorded.content is not None else ():
        path = f"{recorded.prefix}.{suffix}"
        if not is_stored(path):
            if suffix not in structural:
                what = "expected a regular file, got something else" if os.path.exists(path) else "is missing"
                yield Check(findings=(f"{path}: {what}, but the manifest lists it; restore it",))
            continue
        size_bytes = stored_size(path)
        if size_bytes != file.size_bytes:
            finding = (
                f"{path}: expected {file.size_bytes} bytes as in the manifest, got {size_bytes}; "
                "restore it or build it again"
            )
            yield Check(findings=(finding,))
        elif suffix != token_suffix:
            call = Call(name=f"digest[{suffix}]", place=path, function=verify_digest, arguments=(path, file.digest))
            yield Check(name=f"digest of the .{suffix}", steps=[Step(call=call, size=size_bytes)], size=size_bytes)


def describe_verification(report: VerifyReport) -> list[str]:
    """Return a report as text."""
    if not report.is_there:
        return [f"{report.prefix}: {finding}" for finding in report.findings]
    lines = [f"{report.prefix}: {'intact' if report.is_whole else 'DAMAGED'}"]
    if report.counts is not None:
        counts = report.counts
        sequences = f"{count(counts.num_sequences, 'sequence')}, " if report.version is None else ""
        lines.append(
            f"  {count(counts.num_documents, 'document')} ({counts.num_empty_documents:,} empty), "
            f"{sequences}{count(counts.num_tokens, 'token')} of type {counts.token_dtype}"
        )
    if report.version is not None:
        lines.append(f"  version of the .pbin: {report.version}")
    lines += [f"  checked: {check}" for check in report.checks]
    lines += [f"  note: {note}" for note in report.notes]
    lines += [f"  FAILED: {check}" for check in report.failed]
    lines += [f"  FOUND: {finding}" for finding in report.findings]
    return lines


def describe_verifications(reports: Sequence[VerifyReport]) -> list[str]:
    """Return reports as text: of several, a line for each, and then what is wrong."""
    if len(reports) == 1:
        return describe_verification(reports[0])
    lines = _summarize(reports)
    lines += [f"note: {note}" for note in dict.fromkeys(note for report in reports for note in report.notes)]
    for report in reports:
        if not report.is_there:
            lines += ["", *describe_verification(report)]
        elif not report.is_whole:
            lines += ["", f"{report.prefix}: DAMAGED", *(f"  FAILED: {check}" for check in report.failed)]
            lines += [f"  FOUND: {finding}" for finding in report.findings]
    return lines


_FILES = (".yaml", ".yml", ".pbin")
"""What the paths of files end with that are verified beside datasets."""


def _summarize(reports: Sequence[VerifyReport]) -> list[str]:
    """Return a line for each report; where these are too wide, paths lose what they share, and numbers have units."""

    def show(paths: Sequence[str], number: Callable[[int], str]) -> list[str]:
        width, lines = max(map(len, paths)), []
        for report, path in zip(reports, paths, strict=True):
            said = [] if report.counts is None else [
                _amount(report.counts.num_documents, "document", number),
                _amount(report.counts.num_tokens, "token", number),
            ]  # fmt: skip
            said += [count(len(report.checks), "check")] + ([f"{len(report.failed)} failed"] if report.failed else [])
            state = "intact" if report.is_whole else "DAMAGED" if report.is_there else "MISSING"
            lines.append(f"{state:8} {path:{width}}  {', '.join(said) if report.is_there else ''}".rstrip())
        return lines

    columns, paths = shown_columns(), [report.prefix for report in reports]
    lines = show(paths, "{:,}".format)
    if columns is None or max(map(len, lines)) <= columns:
        return lines
    begin, names, end = split_names([path for path in paths if not path.endswith(_FILES)])
    short = {f"{begin}{name}{end}": name for name in names}
    above = [f"{begin}…{end}:"] if begin or end else []
    return above + show([short.get(path, path) for path in paths], short_number)


def _amount(amount: int, noun: str, number: Callable[[int], str]) -> str:
    return f"{number(amount)} {noun}{'' if amount == 1 else 's'}"


# Check a `.bin` or `.pbin` byte by byte: digests of its blocks, ids outside the vocabulary, the number of EOD.

CHUNK_BYTES = 4 << 20
_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPiece:
    """Bytes [begin, end) of a file with tokens; begin is a multiple of DIGEST_BLOCK_BYTES."""

    path: str
    begin: int
    end: int
    tokens_begin: int
    """First byte of the file's tokens; a multiple of the token size, as is CHUNK_BYTES."""
    tokens_end: int
    """One past the last byte of the tokens."""
    dtype: str
    vocabulary_size: int | None
    """Upper limit of ids; None if it is unknown."""
    eod_id: int | None
    """The id to count; None if it is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPieceResult:
    """The result of one piece."""

    block_digests: tuple[str, ...]
    """Digests of the piece's blocks; empty if it could not be read."""
    num_eod: int
    findings: tuple[str, ...]


def plan_token_pieces(
    path: str,
    size_bytes: int,
    *,
    token_bytes: tuple[int, int],
    dtype: str,
    vocabulary_size: int | None,
    eod_id: int | None,
) -> list[TokenPiece]:
    """Cut a file with tokens into pieces of one digest block.

    Args:
        path: The file.
        size_bytes: Its size.
        token_bytes: First byte of its tokens, and one past the last.
        dtype: The stored token type.
        vocabulary_size: Upper limit of ids; None if it is unknown.
        eod_id: The id to count; None if it is unknown.
    """
    return [
        TokenPiece(
            path=path,
            begin=begin,
            end=min(begin + DIGEST_BLOCK_BYTES, size_bytes),
            tokens_begin=token_bytes[0],
            tokens_end=token_bytes[1],
            dtype=dtype,
            vocabulary_size=vocabulary_size,
            eod_id=eod_id,
        )
        for begin in range(0, size_bytes, DIGEST_BLOCK_BYTES)
    ]


def verify_tokens(piece: TokenPiece) -> TokenPieceResult:
    """Digest a piece, find ids outside the vocabulary, and count EOD."""
    digest = xxhash.xxh3_128()
    findings: list[str] = []
    num_eod = 0
    dtype = np.dtype(piece.dtype)
    buffer = memoryview(bytearray(min(CHUNK_BYTES, piece.end - piece.begin)))
    try:
        with open_readable(piece.path) as file:
            file.expect_forwards(piece.begin, piece.end)
            for begin in range(piece.begin, piece.end, CHUNK_BYTES):
                chunk = buffer[: min(CHUNK_BYTES, piece.end - begin)]
                _fill(file, chunk, begin)
                digest.update(chunk)
                first = max(begin, piece.tokens_begin)
                size_bytes = max(0, min(begin + len(chunk), piece.tokens_end) - first)
                # A partial token at the end of a truncated file is reported by the check of the index.
                tokens = np.frombuffer(chunk, dtype, size_bytes // dtype.itemsize, min(first - begin, len(chunk)))
                if piece.eod_id is not None:
                    num_eod += int(np.count_nonzero(tokens == piece.eod_id))
                findings += _outside_vocabulary(piece, tokens, first)
    except (OSError, EOFError) as error:
        unread = f"{piece.path}: cannot be read at bytes {piece.begin} to {piece.end} ({error}); restore it"
        return TokenPieceResult(block_digests=(), num_eod=num_eod, findings=(*findings[:_SHOWN], unread))
    return TokenPieceResult(block_digests=(digest.hexdigest(),), num_eod=num_eod, findings=tuple(findings[:_SHOWN]))


def _fill(file: Readable, chunk: memoryview[int], begin: int) -> None:
    done = 0
    while done < len(chunk):
        count = file.read_into(chunk[done:], begin + done)
        if not count:
            raise EOFError(f"expected {len(chunk)} bytes at offset {begin}, got {done}")
        done += count


def _outside_vocabulary(piece: TokenPiece, tokens: NDArray[Any], begin: int) -> list[str]:
    limit = piece.vocabulary_size
    if limit is None or not tokens.size or (int(tokens.max()) < limit and int(tokens.min()) >= 0):
        return []
    first = int(np.flatnonzero((tokens >= limit) | (tokens < 0))[0])
    place = begin + first * tokens.itemsize
    return [
        (
            f"{piece.path}: expected token ids from 0 to {limit - 1}, got {tokens[first]} at byte {place}; "
            f"its content changed, restore it or build it again"
        )
    ]


# Check the token file of a dataset of any kind: its digest by blocks, and every token in the same pass.


def check_tokens(
    recorded: Recorded,
    *,
    suffix: str,
    dtype: str,
    tokens: tuple[int, int],
    judge_num_eod: Callable[[Content, int], Verdict],
) -> Check:
    """Digest a token file by blocks, and check every token in the same pass.

    Args:
        recorded: The dataset's manifest.
        suffix: Suffix of the file, which must exist.
        dtype: The stored token type.
        tokens: First byte of the tokens, and one past the last.
        judge_num_eod: Judges the number of EOD tokens.
    """
    path = f"{recorded.prefix}.{suffix}"
    content = recorded.content
    tokenizer = content.tokenizer if content is not None else None
    size_bytes = stored_size(path)
    pieces = plan_token_pieces(
        path,
        size_bytes,
        token_bytes=tokens,
        dtype=dtype,
        vocabulary_size=tokenizer.vocabulary_size if tokenizer is not None else None,
        eod_id=content.eod_id if content is not None else None,
    )

    def judge(results: Iterable[TokenPieceResult]) -> Verdict:
        findings: list[str] = []
        blocks: list[str] = []
        num_eod = num_unread = 0
        for result in results:
            findings += result.findings
            blocks += result.block_digests
            num_eod += result.num_eod
            num_unread += not result.block_digests
        if content is None:
            return Verdict(findings=tuple(findings))
        if num_unread:
            note = f"{path} cannot be read to its end: its digest, vocabulary and EOD could not be checked"
            return Verdict(findings=tuple(findings), notes=(note,))
        vocabulary = ("every token id is in the vocabulary",) if tokenizer is not None and tokens[0] < tokens[1] else ()
        parts = [
            _judge_digest(path, content, suffix, blocks),
            Verdict(failed=vocabulary, findings=tuple(findings)) if findings else Verdict(checked=vocabulary),
            judge_num_eod(content, num_eod),
        ]
        return Verdict(
            checked=tuple(name for part in parts for name in part.checked),
            failed=tuple(name for part in parts for name in part.failed),
            findings=(*findings, *parts[0].findings, *parts[2].findings),
        )

    return Check(
        steps=(
            Step(
                call=Call(name=f"verify[{number:05d}]", place=path, function=verify_tokens, arguments=(piece,)),
                size=piece.end - piece.begin,
            )
            for number, piece in enumerate(pieces)
        ),
        size=size_bytes,
        judge=judge,
    )


def _judge_digest(path: str, content: Content, suffix: str, block_digests: Iterable[str]) -> Verdict:
    recorded = content.digests.get(suffix)
    if recorded is None:
        return Verdict()
    digest = combine_digests(map(bytes.fromhex, block_digests))
    finding = (
        f"{path}: expected the digest {recorded.digest}, got {digest}; its content changed, "
        f"restore it or build it again"
    )
    return Verdict.of(f"digest of the .{suffix}", finding, is_sound=digest == recorded.digest)


# Check a provenance file: its layout, one row per document, and rows that are possible for the manifest's inputs.


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFacts:
    """The manifest's facts about one input."""

    size_bytes: int
    """Size of its text, or of the file of a table."""
    lines: int
    kept: int
    is_table: bool = False
    """Whether offsets are numbers of row groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPiece:
    """Documents [begin, end) of a provenance file."""

    path: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPieceResult:
    """The result of one piece, to be added up over all."""

    rows_per_input: dict[int, int]
    findings: tuple[str, ...]


def verify_rows(piece: RowPiece, inputs: Sequence[InputFacts]) -> RowPieceResult:
    """Check rows: inputs must be in order, offsets and lines must increase within an input and be inside it."""
    begin = max(0, piece.begin - 1)  # one row of the previous piece, so that all neighbours are compared
    try:
        numbers, offsets, lines = read_rows(piece.path, begin, piece.end)
    except FormatError as error:
        return RowPieceResult(rows_per_input={}, findings=(f"{error}; restore it or build again",))
    findings: list[str] = []

    def check(wrong: NDArray[np.bool_], what: str) -> None:
        if wrong.any():
            row = int(np.argmax(wrong))
            findings.append(
                f"{piece.path}: expected {what}, got input {numbers[row]}, offset {offsets[row]}, line {lines[row]} "
                f"for document {begin + row}; restore it or build again"
            )

    check((numbers < 0) | (numbers >= len(inputs)), f"inputs from 0 to {len(inputs) - 1}")
    if findings:
        return RowPieceResult(rows_per_input={}, findings=tuple(findings))
    sizes = np.array([facts.size_bytes for facts in inputs], np.int64)[numbers]
    last_lines = np.array([facts.lines for facts in inputs], np.int64)[numbers]
    check((offsets < 0) | (offsets >= sizes), "offsets inside the input")
    is_table = np.array([facts.is_table for facts in inputs], np.bool_)[numbers]
    # Every preceding line takes at least a newline, and line 1 is at byte 0.
    too_early = ~is_table & (lines - 1 > offsets)
    check((lines < 1) | (lines > last_lines) | too_early, "lines that the input can have at that offset")
    same = numbers[1:] == numbers[:-1]
    falls = numbers[1:] < numbers[:-1]
    # All rows of a row group have its number.
    backwards = offsets[1:] - offsets[:-1] < np.where(is_table[1:], 0, 1)
    stalls = same & (backwards | (lines[1:] - lines[:-1] < 1))
    check(np.concatenate(([False], falls | stalls)), "documents in the order of their inputs and lines")
    own = numbers[piece.begin - begin :]
    found, counts = np.unique(own, return_counts=True)
    return RowPieceResult(
        rows_per_input=dict(zip(found.tolist(), counts.tolist(), strict=True)), findings=tuple(findings)
    )


def compare_row_counts(
    path: str, results: Sequence[RowPieceResult], inputs: Sequence[InputFacts], *, num_without_row: int
) -> list[str]:
    """Compare the rows of each input with the number of records kept according to the manifest.

    Args:
        path: The file, named in findings.
        results: The results of all pieces.
        inputs: The manifest's facts about the inputs.
        num_without_row: Records of all inputs that were kept but are no documents.
    """
    counts = [0] * len(inputs)
    for result in results:
        for number, rows in result.rows_per_input.items():
            counts[number] += rows
    fewer = f" (or up to {num_without_row} fewer, which have no tokens)" if num_without_row else ""
    return [
        f"{path}: expected {facts.kept} documents{fewer} from input {number} as in the manifest, got {rows}; "
        f"restore it or build again"
        for number, (rows, facts) in enumerate(zip(counts, inputs, strict=True))
        if not facts.kept - num_without_row <= rows <= facts.kept
    ][:3]


# Check the provenance of a dataset of any kind against the inputs in its manifest.


def check_provenance(recorded: Recorded, *, num_documents: int, num_without_row: int) -> Check:
    """Check the provenance, if there is one.

    Args:
        recorded: The dataset's manifest.
        num_documents: Number of documents of the dataset.
        num_without_row: Number of records that were kept but are not documents.
    """
    path = f"{recorded.prefix}.{PROVENANCE_SUFFIX}"
    if recorded.is_foreign or not is_stored(path):
        return Check()
    try:
        num_rows = count_rows(path)
    except FormatError as error:
        return Check(findings=(f"{error}; restore it or build again",))
    if num_rows != num_documents:
        finding = (
            f"{path}: expected a row for each of {num_documents} documents, got {num_rows}; "
            f"it belongs to another dataset"
        )
        return Check(findings=(finding,))
    facts = _input_facts(recorded.content)
    if facts is None:
        return Check(notes=("the manifest does not describe the inputs, so provenance could not be checked",))
    pieces = (
        RowPiece(path=path, begin=begin, end=end)
        for begin in range(0, num_rows, DOCUMENTS_PER_PIECE)
        for end in (min(begin + DOCUMENTS_PER_PIECE, num_rows),)
    )

    def judge(results: Iterable[RowPieceResult]) -> Verdict:
        taken = list(results)
        findings = tuple(finding for result in taken for finding in result.findings)
        if not findings:
            findings = tuple(compare_row_counts(path, taken, facts, num_without_row=num_without_row))
        return Verdict(findings=findings)

    call = partial(Call, place=path, function=verify_rows)
    return Check(
        name="provenance: a row per document, in order, inside the inputs of the manifest",
        steps=(Step(call=call(name=f"provenance[{piece.begin}]", arguments=(piece,))) for piece in pieces),
        shared=facts,
        judge=judge,
    )


def _input_facts(content: Content | None) -> tuple[InputFacts, ...] | None:
    facts = []
    for file in content.inputs if content is not None else ():
        size_bytes = file.size_bytes if file.text_bytes is None else file.text_bytes
        if size_bytes is None or file.lines is None or file.kept is None:
            return None
        is_table = file.format in TABLES
        facts.append(InputFacts(size_bytes=size_bytes, lines=file.lines, kept=file.kept, is_table=is_table))
    return tuple(facts) or None
