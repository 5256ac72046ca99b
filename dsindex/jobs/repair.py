"""The driver of `dsindex repair`, which tries the ways to restore a dataset in a fixed order.

A result is certain if a manifest's digests prove it, if it comes from shards with right digests, or from an index that
fits its `.bin` entry by entry. Nothing else is written.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.engine.inputs import (
    FEW_SHARDS,
    MAX_SHARDS,
    InputFile,
    InputParts,
    by_input,
    choose_shard_sizes,
    count_shards,
    measure_places,
    plan_shards,
)
from dsindex.engine.ledger import read_committed_shards, read_cuts
from dsindex.engine.manifest import Manifest, read_manifest
from dsindex.engine.merge import Part, open_part
from dsindex.engine.nodes import require_shared
from dsindex.engine.shards.tokenize import task_key
from dsindex.engine.start import start_with_nodes
from dsindex.engine.tokenize import find_whole_shards
from dsindex.engine.work_folder import read_plan
from dsindex.errors import FormatError, InputError, OutputError, TokenizerError
from dsindex.execution.dispatch import ordered_runner
from dsindex.formats.new_files import NewFiles, refuse_existing
from dsindex.formats.pbin import repair_joined
from dsindex.jobs.rescue_files import (
    RepairOutputs,
    RepairReport,
    examine_index,
    repair_by_eod,
    repair_by_index,
    repair_by_lengths,
    repair_by_shards,
    require_digest,
)
from dsindex.json_text import encode_json
from dsindex.store.journal import ledger_path
from dsindex.store.reading import digest_file
from dsindex.tools.inspect_kinds import find_work_folder
from dsindex.tools.verify_files import verify_index
from dsindex.tools.verify_source import lay_out_source, open_recorded_source

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dsindex.engine.shards.tokenize import ShardResult, ShardTask
    from dsindex.execution.calls import Executor
    from dsindex.execution.progress.reporter import Reporter
    from dsindex.options.datasets import RepairConfig


# Find the shards in a build's work folder without a driver: which are intact, and which are lost.

_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundShards:
    """The shards of one dataset in a work folder."""

    parts: tuple[Part, ...]
    """Intact shards, in plan order."""
    lost: tuple[str, ...]
    """Sentences about the others."""


def find_shards(work_dir: str, prefix: str, *, executor: Executor, reporter: Reporter) -> FoundShards:
    """Find the shards of a dataset and compare each with the ledger's digests.

    Raises:
        FormatError: If the folder has no plan of a build with this dataset, or no intact shard.
    """
    plan = read_plan(work_dir)
    if plan is None:
        msg = f"{work_dir}: expected the work folder of a build with its plan.json, got none that can be read"
        raise FormatError(msg)
    key, shard_size = _read_settings(work_dir, plan["settings"], prefix)
    if plan["settings"].get("shuffle-documents") is not None:
        msg = f"{work_dir}: the documents are shuffled, so they are not in the order of the shards; build them again"
        raise FormatError(msg)
    parts = plan.get("parts", {})
    inputs = [
        InputFile(
            path=path,
            absolute_path=path,
            size_bytes=size_bytes,
            version=version,
            parts=InputParts(bounds=tuple(parts[path])) if path in parts else None,
            share=share,
        )
        for (path, size_bytes, version), share in zip(plan["inputs"], _read_shares(plan), strict=True)
    ]
    cuts = read_cuts(ledger_path(work_dir))
    sizes = (
        choose_shard_sizes(inputs, places=measure_places(inputs, cuts))
        if shard_size is None
        else by_input(inputs, shard_size)
    )
    num_shards = count_shards(inputs, sizes)
    most = MAX_SHARDS + len(inputs)  # the limit of choose_shard_size
    if num_shards > most + (8 * FEW_SHARDS if shard_size is None else 0):
        raise FormatError(f"{work_dir}: expected a plan of at most {most} shards, got {num_shards}")
    committed = read_committed_shards(ledger_path(work_dir))
    tasks = list(plan_shards(inputs, sizes, cuts=cuts))
    known = {number: committed[task_key(task)] for number, task in enumerate(tasks) if task_key(task) in committed}
    whole = find_whole_shards(known, work_dir, executor=executor, reporter=reporter)
    parts, lost = [], []
    for number, task in enumerate(tasks):
        part = _part_of(known[number], key, work_dir) if number in whole else None
        if part is not None:
            parts.append(part)
        else:
            lost.append((task, number in known))
    if not parts:
        raise FormatError(f"{work_dir}: expected at least one intact shard, got none of {len(tasks)}")
    return FoundShards(parts=tuple(parts), lost=tuple(_describe_lost(lost, len(tasks))))


def _read_shares(plan: dict[str, Any]) -> list[float | None]:
    """Return the share of each input: of an input that is read 2.5 times, every third one is a half."""
    repeat = plan["settings"].get("repeat")
    times = repeat if isinstance(repeat, dict) else {}
    seen: Counter[str] = Counter()
    shares: list[float | None] = []
    for path, *_ in plan["inputs"]:
        seen[path] += 1
        number = times.get(path, 1)
        rest = Fraction(str(number)) % 1 if isinstance(number, float) and math.isfinite(number) else Fraction(0)
        shares.append(float(rest) if rest and seen[path] % math.ceil(number) == 0 else None)
    return shares


def _read_settings(work_dir: str, settings: dict[str, Any], prefix: str) -> tuple[str, int | None]:
    """Return the key that a dataset was built from, and the shard size in bytes, None if the inputs chose it."""
    keys, output, shard_size = settings.get("json-keys"), settings.get("output-prefix"), settings.get("shard-size")
    is_size = shard_size is None or (isinstance(shard_size, int) and shard_size >= 1)
    if not isinstance(keys, list) or not isinstance(output, str) or not is_size:
        raise FormatError(f"{work_dir}: expected the plan of a build, with json-keys, output-prefix and shard-size")
    names = {f"{os.path.basename(output)}_{key}_document": key for key in keys if isinstance(key, str)}
    if os.path.basename(prefix) not in names:
        raise FormatError(f"{work_dir}: expected a build of {os.path.basename(prefix)}, got one of {', '.join(names)}")
    return names[os.path.basename(prefix)], shard_size


def _part_of(result: ShardResult, key: str, work_dir: str) -> Part | None:
    for part in result.keys:
        stem, suffix = os.path.splitext(part.bin.name)
        if part.key == key and suffix == ".bin" and part.idx.name == f"{stem}.idx":
            return open_part(os.path.join(work_dir, stem))
    return None


def _describe_lost(lost: Sequence[tuple[ShardTask, bool]], num_shards: int) -> list[str]:
    sentences = [
        f"{task.place}: its shard {'is damaged' if known else 'was never finished'}" for task, known in lost[:_SHOWN]
    ]
    if len(lost) > _SHOWN:
        sentences.append(f"and {len(lost) - _SHOWN} more of {num_shards} shards")
    if lost:
        sentences.append("the same build command makes the missing shards again, if the inputs still exist")
    return sentences


REPORT_SUFFIX = "repair.json"


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
        if self._digests and not report.lost:
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
            outputs=(),
            num_documents=counts.num_documents,
            num_sequences=counts.num_sequences,
            num_tokens=counts.num_tokens,
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
        reasons: dict[str, None] = {}  # in order, each once
        for way, attempt in attempts:
            try:
                return attempt()
            except (FormatError, InputError, TokenizerError) as error:
                reasons[f"from {way}: {error}"] = None
        raise FormatError(f"{self._prefix}: cannot be repaired with certainty:", *(f"  {why}" for why in reasons))

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
            raise FormatError(f"{path}: expected {size_bytes} bytes, got {got}; leave out --index-only")
        if "bin" in self._digests:
            require_digest(path, self._digests["bin"])

    def _by_index(self) -> RepairReport:
        """Restore an index that lacks only its pointers, and prove it by the manifest if there is one."""
        found = examine_index(self._prefix, dtype=self._dtype())
        one_each = self._one_sequence_per_document()
        if not found.is_complete and not (one_each and found.lengths_end == found.bin_bytes):
            raise FormatError(
                f"{self._prefix}.idx: expected every length and boundary, and a .bin that fits them, got "
                f"{max(0, found.num_boundaries - 1)} of {found.header.num_documents} documents"
            )
        return repair_by_index(found, self._target, one_sequence_per_document=not found.is_complete)

    def _by_part_of_index(self) -> RepairReport:
        """Save the intact documents, if there is no manifest or its digests cannot be reached any more."""
        found = examine_index(self._prefix, dtype=self._dtype())
        one_each = self._one_sequence_per_document()
        if found.is_complete and self._digests:
            raise FormatError(
                f"{self._prefix}: the .idx fits the .bin, but their digests are not the manifest's, so it is unknown "
                f"what is damaged; restore the files, or remove the manifest if it is another dataset's"
            )
        return repair_by_index(
            found,
            replace(self._target, digests={}),
            one_sequence_per_document=one_each and found.num_lengths > found.num_sequences,
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
            raise FormatError("there is no manifest, so it is unknown whether every document ends with EOD")
        if content.eod_id is None or content.eod_in_text != 0 or not self._one_sequence_per_document():
            empty = content.account.empty_documents if content.account is not None else "an unknown number of"
            raise FormatError(
                f"the .bin alone does not determine the documents: the manifest has append_eod "
                f"{content.options.append_eod}, {content.eod_in_text} EOD from text, {empty} empty documents, "
                f"{content.sequences} sequences of {content.documents} documents"
            )
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
            raise FormatError("the manifest has no digest of the .bin")
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


def describe_packed_repair(path: str, output: str, num_joints: int) -> list[str]:
    """Return the result for a `.pbin` as text."""
    said = f"{num_joints} joints with low offsets repaired, written to {output}" if num_joints else "intact"
    return [f"{path}: {said}"]
