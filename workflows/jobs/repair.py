"""The driver of `dsindex repair`, which tries the ways to restore a dataset in a fixed order.

A result is certain if a manifest's digests prove it, if it comes from shards with right digests, or from an index that
fits its `.bin` entry by entry. Anything else is a guess, which is made only with --guess.
"""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dsindex.checks.foreign import find_last_key
from dsindex.checks.structure import verify_index
from dsindex.errors import FormatError, InputError, OutputError, TokenizerError
from dsindex.formats.new_files import NewFiles, refuse_existing
from dsindex.formats.pbin_join import repair_joined
from dsindex.json_text import encode_json
from dsindex.rescue.by_index import examine_index, repair_by_index
from dsindex.rescue.by_shards import repair_by_shards
from dsindex.rescue.by_tokens import repair_by_eod, repair_by_lengths
from dsindex.rescue.outputs import RepairOutputs, RepairReport, require_digest
from dsindex.storage import digest_file
from workflows.execution.ordered import ordered_runner
from workflows.jobs.repair_shards import find_shards, find_work_folder
from workflows.options.config import LocalPath  # noqa: TC001 - pydantic reads it
from workflows.stages.shared_files import require_shared
from workflows.stages.start import start_with_nodes
from workflows.state.manifest import Manifest, read_manifest
from workflows.verification.source import SourceConfig, lay_out_source, open_recorded_source

if TYPE_CHECKING:
    from collections.abc import Callable

    from workflows.execution.calls import Executor
    from workflows.progress.reporter import Reporter

Way = Literal["auto", "shards", "index", "bin", "source"]
REPORT_SUFFIX = "repair.json"


class RepairConfig(SourceConfig):
    """Options of `dsindex repair`."""

    output: LocalPath
    """The new prefix, or the new .pbin."""
    way: Way = "auto"
    work_dir: str | None = None
    index_only: bool = False
    guess: bool = False
    eod_id: int | None = None
    dtype: Literal["uint8", "uint16", "int32", "int64"] | None = None


def run_repair(prefix: str, config: RepairConfig, *, reporter: Reporter) -> RepairReport:
    """Restore one dataset into new files.

    Raises:
        FormatError: If no way is certain, with the reason for each.
        OutputError: If an output exists or cannot be written.
    """
    executor = start_with_nodes(config, reporter)
    try:
        require_shared(
            executor, files=(f"{prefix}.{suffix}" for suffix in ("bin", "idx")), folders=[_folder_of(config.output)]
        )
        return _Repair(prefix, config, reporter, executor).run()
    finally:
        executor.close()


def run_pbin_repair(path: str, config: RepairConfig) -> int:
    """Repair a `.pbin` that was joined with low offsets; return the number of repaired joints, 0 for an intact file.

    Raises:
        FormatError: If it is damaged in another way.
        OutputError: If the output exists or cannot be written.
    """
    executor = start_with_nodes(config)
    try:
        require_shared(executor, files=[path], folders=[_folder_of(config.output)])
        return repair_joined(path, config.output, run_tasks=ordered_runner(executor, name="repair"))
    finally:
        executor.close()


def _folder_of(path: str) -> str:
    return os.path.dirname(os.path.abspath(path))


class _Repair:
    def __init__(self, prefix: str, config: RepairConfig, reporter: Reporter, executor: Executor) -> None:
        self._prefix = prefix
        self._config = config
        self._reporter = reporter
        self._executor = executor
        self._notes: list[str] = []
        self._manifest = self._read_manifest()
        self._content = self._manifest.content if self._manifest is not None else None
        self._digests = (
            {suffix: file.digest for suffix, file in self._content.digests.items() if suffix in {"bin", "idx"}}
            if self._content is not None
            else {}
        )
        self._target = RepairOutputs(prefix=config.output, index_only=config.index_only, digests=self._digests)

    def _read_manifest(self) -> Manifest | None:
        try:
            return read_manifest(self._prefix)
        except FormatError as error:
            self._notes.append(f"the manifest could not be used: {error}")
            return None

    def run(self) -> RepairReport:
        report_path = f"{self._config.output}.{REPORT_SUFFIX}"
        inputs = [f"{self._prefix}.{suffix}" for suffix in ("bin", "idx")]
        refuse_existing([*self._target.paths, report_path], inputs=inputs)
        if self._config.way == "auto" and (whole := self._recognise_whole()) is not None:
            return whole
        self._reporter.stage("repair", total=1, unit="datasets")
        report = self._try_ways()
        if self._digests and report.is_certain and not report.lost:
            what = "the .idx matches" if self._config.index_only else "both files match"
            self._notes.append(f"{what} {self._prefix}.manifest.json by digest")
        report = replace(report, notes=(*report.notes, *self._notes))
        described = encode_json(
            {"format": "dsindex repair 1", "of": self._prefix, **asdict(report)}, indent=True, newline=True
        )
        try:
            with NewFiles([report_path]) as [new]:
                new.file.write(described)
        except OutputError as error:
            msg = f"{error}; only this report is missing: {' and '.join(report.outputs)} are complete"
            raise OutputError(msg) from error
        self._reporter.advance(1)
        return report

    def _recognise_whole(self) -> RepairReport | None:
        """Return the result for an intact dataset: its index fits its tokens and its manifest, if there is one."""
        counts, _ = verify_index(self._prefix)
        if counts is None:
            return None
        if any(digest_file(f"{self._prefix}.{suffix}") != digest for suffix, digest in self._digests.items()):
            return None
        return RepairReport(
            way="nothing: it is whole",
            is_certain=True,
            outputs=(),
            num_documents=counts.num_documents,
            num_sequences=counts.num_sequences,
            num_tokens=counts.num_tokens,
            lost=(),
            notes=tuple(self._notes),
        )

    def _try_ways(self) -> RepairReport:
        """Try the wanted ways, the most certain first.

        Raises:
            FormatError: If none works, with the reason for each.
        """
        ways: dict[str, Callable[[], RepairReport]] = {
            "shards": self._by_shards,
            "index": self._by_index,
            "bin": self._by_tokens,
            "source": self._by_source,
        }
        wanted = list(ways) if self._config.way == "auto" else [self._config.way]
        attempts = [(way, ways[way]) for way in wanted]
        if self._config.way == "auto":
            attempts.append(("index", self._by_part_of_index))
        if self._config.guess and self._config.way in {"auto", "index"}:
            attempts.append(("index", self._by_sequences))
        if self._config.guess and self._config.way in {"auto", "bin"}:
            attempts.append(("bin", self._by_guessed_eod))
        reasons: dict[str, None] = {}  # in order, each once
        for way, attempt in attempts:
            try:
                return attempt()
            except (FormatError, InputError, TokenizerError) as error:
                reasons[f"from {way}: {error}"] = None
        last_key = find_last_key(self._prefix)
        if last_key is not None:
            reasons[last_key.describe(self._prefix)] = None
        hint = "" if self._config.guess else "; --guess allows a guess"
        msg = f"{self._prefix}: cannot be repaired with certainty{hint}:" + "".join(f"\n  {why}" for why in reasons)
        raise FormatError(msg)

    def _by_shards(self) -> RepairReport:
        work_dir = self._config.work_dir or find_work_folder(self._prefix)
        if work_dir is None:
            msg = f"there is no work folder beside {self._prefix}; if it is elsewhere, give its path with --work-dir"
            raise FormatError(msg)
        found = find_shards(work_dir, self._prefix, executor=self._executor, reporter=self._reporter)
        # If shards are missing, the result cannot have the manifest's digests.
        target = self._target if not found.lost else replace(self._target, digests={})
        if self._config.index_only:
            self._require_tokens(sum(part.bin_bytes for part in found.parts))
        return repair_by_shards(found.parts, target, lost=found.lost)

    def _require_tokens(self, size_bytes: int) -> None:
        """Check that the existing `.bin` has the tokens of the shards, so that an index alone fits it.

        Raises:
            FormatError: If it differs.
        """
        path = f"{self._prefix}.bin"
        got = os.path.getsize(path) if os.path.isfile(path) else 0
        if got != size_bytes:
            msg = f"{path}: expected {size_bytes} bytes, got {got}; leave out --index-only"
            raise FormatError(msg)
        if "bin" in self._digests:
            require_digest(path, self._digests["bin"])

    def _by_index(self) -> RepairReport:
        """Restore an index that lacks only its pointers, and prove it by the manifest if there is one."""
        found = examine_index(self._prefix, dtype=self._dtype())
        one_each = self._one_sequence_per_document()
        if not found.is_complete and not (one_each and found.lengths_end == found.bin_bytes):
            msg = (
                f"{self._prefix}.idx: expected every length and boundary, and a .bin that fits them, got "
                f"{max(0, found.num_boundaries - 1)} of {found.header.num_documents} documents"
            )
            raise FormatError(msg)
        return repair_by_index(found, self._target, one_sequence_per_document=not found.is_complete, is_certain=True)

    def _by_part_of_index(self) -> RepairReport:
        """Save the intact documents, if there is no manifest or its digests cannot be reached any more."""
        found = examine_index(self._prefix, dtype=self._dtype())
        one_each = self._one_sequence_per_document()
        if found.is_complete and self._digests:
            msg = (
                f"{self._prefix}: the .idx fits the .bin, but their digests are not the manifest's, so it is unknown "
                f"what is damaged; restore the files, or remove the manifest if it is another dataset's"
            )
            raise FormatError(msg)
        return repair_by_index(
            found,
            replace(self._target, digests={}),
            one_sequence_per_document=one_each and found.num_lengths > found.num_sequences,
            is_certain=True,
        )

    def _by_sequences(self) -> RepairReport:
        found = examine_index(self._prefix, dtype=self._dtype())
        return repair_by_index(
            found, replace(self._target, digests={}), one_sequence_per_document=True, is_certain=False
        )

    def _dtype(self) -> np.dtype[Any] | None:
        if self._config.dtype is not None:
            return np.dtype(self._config.dtype).newbyteorder("<")
        return np.dtype(self._content.token_dtype).newbyteorder("<") if self._content is not None else None

    def _one_sequence_per_document(self) -> bool:
        """Tell whether the manifest says that every document is one sequence."""
        content = self._content
        return (
            content is not None
            and content.account is not None
            and (content.account.empty_documents == 0 or content.options.empty_documents == "eod")
            and content.sequences == content.documents
        )

    def _by_tokens(self) -> RepairReport:
        content, path = self._content, f"{self._prefix}.bin"
        if content is None:
            msg = "there is no manifest, so it is unknown whether every document ends with EOD"
            raise FormatError(msg)
        if content.eod_id is None or content.eod_in_text != 0 or not self._one_sequence_per_document():
            empty = content.account.empty_documents if content.account is not None else "an unknown number of"
            msg = (
                f"the .bin alone does not determine the documents: the manifest has append_eod "
                f"{content.options.append_eod}, {content.eod_in_text} EOD from text, {empty} empty documents, "
                f"{content.sequences} sequences of {content.documents} documents"
            )
            raise FormatError(msg)
        self._require_digest_of_tokens()
        return repair_by_eod(
            path,
            self._target,
            dtype=np.dtype(content.token_dtype).newbyteorder("<"),
            eod_id=content.eod_id,
            num_documents=content.documents,
        )

    def _require_digest_of_tokens(self) -> None:
        if "bin" not in self._digests:
            msg = "the manifest has no digest of the .bin"
            raise FormatError(msg)
        require_digest(f"{self._prefix}.bin", self._digests["bin"])

    def _by_source(self) -> RepairReport:
        """Tokenize the inputs again for their lengths; the `.bin` itself must be intact."""
        self._require_digest_of_tokens()
        source = open_recorded_source(self._prefix, self._manifest, self._config)
        if source.settings.shuffle_seed is not None:
            msg = "the documents are shuffled, so they are not in the order of the inputs; build them again"
            raise FormatError(msg)
        if source.findings:
            raise FormatError("; ".join(source.findings))
        return repair_by_lengths(
            f"{self._prefix}.bin",
            self._target,
            dtype=np.dtype(source.settings.dtype).newbyteorder("<"),
            batches=lay_out_source(source.settings, executor=self._executor),
        )

    def _by_guessed_eod(self) -> RepairReport:
        eod_id = self._config.eod_id
        if eod_id is None and self._content is not None:
            eod_id = self._content.eod_id
        dtype = self._dtype()
        if dtype is None:
            try:
                dtype = examine_index(self._prefix).header.dtype
            except FormatError:
                dtype = None
        if eod_id is None or dtype is None:
            msg = "a guess requires the id of EOD and the token type; add --eod-id and --dtype"
            raise FormatError(msg)
        report = repair_by_eod(
            f"{self._prefix}.bin", replace(self._target, digests={}), dtype=dtype, eod_id=eod_id, num_documents=None
        )
        last_key = find_last_key(self._prefix)
        if last_key is not None:
            same = "as many documents as" if last_key.num_documents == report.num_documents else "NOT the documents of"
            self._notes.append(f"{same} {last_key.prefix}, of the last key of the same run: {last_key.num_documents}")
        return report
