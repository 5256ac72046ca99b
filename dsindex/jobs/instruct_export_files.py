"""Write the files of one export on any executor; those that an interrupted job finished are kept."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsindex.datasets.exports import FACTS_PREFIX
from dsindex.execution.calls import Call
from dsindex.execution.dispatch import run_in_order
from dsindex.jobs.exports import bridge, hugging_face, megatron_sft
from dsindex.store.storage import BlockDigester, StoredFile, make_folder, write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from dsindex.datasets.exports import ExportedSequences, WrittenFile
    from dsindex.engine.export_folder import ExportFolder
    from dsindex.execution.calls import Executor
    from dsindex.execution.dispatch import DispatchStatistics, RetryPolicy
    from dsindex.execution.progress.reporter import Reporter
    from dsindex.options.instruct import ExportKind


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFiles:
    """The files of one export that is being made."""

    kind: ExportKind
    folder: ExportFolder
    splits: tuple[ExportedSequences, ...]
    has_splits: bool
    """Whether the job has --split; otherwise all is `train`."""
    sequence_length: int | None
    """Places of a pack, for `bridge`."""
    messages: megatron_sft.MessagesTask | None
    """For `sft`."""
    executor: Executor
    policy: RetryPolicy
    statistics: DispatchStatistics
    reporter: Reporter

    def write(self) -> tuple[list[WrittenFile], list[StoredFile]]:
        """Write all files into the partial folder.

        Returns:
            The files with rows, and the small ones beside them.

        Raises:
            DsindexError: If one cannot be written.
        """
        folder = self.folder.partial
        facts = ((f"{FACTS_PREFIX}export", self.kind),)
        if self.messages is not None:
            return self._write_messages(self.messages), []
        if self.kind == "bridge":
            length = self.sequence_length or 0
            calls = self._calls(bridge.pack_sequences, [(split.source, length) for split in self.splits], "pack")
            packs: list[bridge.Packs] = list(self._run(calls))
            tasks = bridge.plan_bridge_files(self.splits, packs, sequence_length=length, folder=folder, facts=facts)
            written = self._write_files(bridge.write_bridge_file, tasks)
            return written, self._write_small({bridge.METADATA_FILE: bridge.encode_metadata(packs)})
        if self.kind == "hf-disk":
            saved = hugging_face.plan_saved_dataset(self.splits, folder=folder, has_splits=self.has_splits)
            written = self._write_files(hugging_face.write_hugging_face_file, saved)
            names = {file.file.name: file for file in written}
            small = hugging_face.describe_saved_dataset(self.splits, names, has_splits=self.has_splits)
            return written, self._write_small(small)
        parquet = hugging_face.plan_parquet_files(self.splits, folder=folder, facts=facts)
        return self._write_files(hugging_face.write_hugging_face_file, parquet), []

    def _write_files(self, function: Callable[[Any], WrittenFile], tasks: Sequence[Any]) -> list[WrittenFile]:
        """Write the files that are not there yet; return all, in the order of the tasks."""
        kept = self.folder.recorded()
        missing = [task for task in tasks if task.name not in kept]
        for folder in {os.path.dirname(task.name) for task in missing}:
            make_folder(os.path.join(self.folder.partial, folder))
        self.reporter.stage("export", total=len(tasks), unit="files")
        if kept:
            self.reporter.advance(len(kept), tasks=len(kept), fresh=False)
        found = dict(kept)
        for file in self._run(self._calls(function, [(task,) for task in missing], "export")):
            self.folder.record([file])
            found[file.file.name] = file
            self.reporter.advance(1)
        return [found[task.name] for task in tasks]

    def _write_messages(self, task: megatron_sft.MessagesTask) -> list[WrittenFile]:
        self.reporter.stage("export", total=len(task.splits), unit="files")
        [files] = self._run(self._calls(megatron_sft.write_messages, [(task,)], "export"))
        self.reporter.advance(len(task.splits))
        return list(files)

    def _calls(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], name: str) -> Iterator[Call]:
        base = os.path.basename(self.folder.path)
        for number, own in enumerate(arguments):
            yield Call(name=f"{name}[{base}/{number}]", place=self.folder.path, function=function, arguments=own)

    def _run(self, calls: Iterator[Call]) -> Iterator[Any]:
        return run_in_order(
            self.executor, calls, policy=self.policy, statistics=self.statistics, on_idle=self.reporter.tick
        )

    def _write_small(self, files: Mapping[str, bytes]) -> list[StoredFile]:
        stored = []
        for name, data in sorted(files.items()):
            path = os.path.join(self.folder.partial, name)
            make_folder(os.path.dirname(path))
            write_whole(path, data)
            digester = BlockDigester()
            digester.update(data)
            stored.append(StoredFile(name=name, size_bytes=len(data), digest=digester.hexdigest()))
        return stored
