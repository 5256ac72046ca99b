"""A dataset's files: assembled under partial names, and published once all are complete.

On a disk, files are assembled beside the output (a rename cannot cross file systems) as `<final>.<plan id>.partial`: a
leftover process of another plan cannot write there, and one of the same plan would write the same bytes. In a bucket,
an object appears complete under its final name; the one that completes a dataset is written last.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dsindex.engine.plan import compare_plans
from dsindex.engine.tasks import Part, PartFile
from dsindex.errors import OutputError, PlanError
from dsindex.formats.manifest import files_have_recorded_sizes, manifest_path, read_manifest
from dsindex.formats.mmididx import IndexHeader
from dsindex.json_text import show_name
from dsindex.store.storage import (
    StoredFile,
    holds_writes,
    sync_folder,
    writing,
)
from dsindex.store.store import find, replace_file, store_of
from dsindex.store.urls import local_paths, with_suffix

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    import numpy as np

    from dsindex.engine.ledger import Ledger
    from dsindex.engine.tasks import ShardResult, ShardRows
    from dsindex.formats.manifest import Manifest, Plan

PROVENANCE_SUFFIX = "provenance.parquet"
QUARANTINE_SUFFIX = "quarantine.jsonl.zst"
MEGATRON_SUFFIXES = ("bin", PROVENANCE_SUFFIX, QUARANTINE_SUFFIX, "idx")
"""In the order of publishing: if the last file exists, the others are complete."""
PBIN_SUFFIXES = (PROVENANCE_SUFFIX, QUARANTINE_SUFFIX, "pbin")


@dataclass(frozen=True, kw_only=True)
class Output:
    """A dataset that a job is going to make, as far as it is known before its parts exist."""

    prefix: str
    """Absolute path or address without suffix."""
    plan_id: str
    """Id of the job's plan."""
    dtype: np.dtype[Any]
    """Token type of its parts."""
    key: str = ""
    """The key of its part in a shard's receipt."""
    is_mask: bool = False
    """Whether it has a value for each token of another output, and shares that one's provenance and bad records."""
    header_bytes: int = 0
    """Size of a `.pbin`'s header; 0 for a `.bin` and an `.idx`."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Suffixes of all files that it may have, except the manifest's, in the order of publishing."""
        return PBIN_SUFFIXES if self.header_bytes else MEGATRON_SUFFIXES

    @property
    def token_suffix(self) -> str:
        """The suffix of the file that is assembled from tokens."""
        return "pbin" if self.header_bytes else "bin"

    @cached_property
    def in_bucket(self) -> bool:
        """Whether its files are objects."""
        return holds_writes(self.prefix)

    @property
    def name(self) -> str:
        """Its name in messages."""
        return os.path.basename(self.prefix)

    @property
    def recorded_name(self) -> str:
        """Its name in the ledger; folders may be moved."""
        return f"{self.name}.{self.plan_id}"

    @property
    def paths(self) -> tuple[str, ...]:
        """Final paths of all its files, the manifest's last."""
        return (*map(self.final, self.suffixes), manifest_path(self.prefix))

    def final(self, suffix: str) -> str:
        """Return a file's published path, or an object's address."""
        return with_suffix(self.prefix, f".{suffix}")

    def partial(self, suffix: str) -> str:
        """Return where a file is written: under its partial name on a disk, its final one in a bucket."""
        final = self.final(suffix)
        return final if self.in_bucket else f"{final}.{self.plan_id}.partial"

    @property
    def token_file(self) -> str:
        """Where the tokens are assembled."""
        return self.partial(self.token_suffix)

    def part_of(self, result: ShardResult, work_dir: str) -> Part:
        """Return its part of a shard."""
        made = result.find_part(self.key)
        num_boundaries = made.num_documents + 1
        return Part(
            bin=PartFile.of(made.bin, work_dir),
            idx=PartFile.of(made.idx, work_dir),
            header=IndexHeader(
                dtype=self.dtype, num_sequences=made.num_sequences, num_boundaries=num_boundaries, has_modes=False
            ),
        )

    def complete_files(self, ledger: Ledger) -> dict[str, StoredFile]:
        """Return the files that an earlier run completed and that are there, published or not yet, by suffix."""
        complete = {}
        for suffix, file in ledger.files[self.recorded_name].items():
            found = find(self.partial(suffix)) or find(self.final(suffix))
            if found is not None and found.size_bytes == file.size_bytes:
                complete[suffix] = file
        return complete


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A dataset that is ready to be assembled: all its parts exist."""

    output: Output
    parts: tuple[Part, ...]
    """The parts, in output order."""
    provenance: tuple[ShardRows, ...] | None = None
    quarantine: tuple[ShardRows, ...] = ()
    """Shards' bad records; if empty, no quarantine file is published."""
    head: tuple[PartFile, ...] = ()
    """The header of a `.pbin`, before its tokens."""
    tail: tuple[PartFile, ...] = ()
    """The index of a `.pbin`, after its tokens."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Suffixes of the files that the dataset has, in the order of publishing."""
        absent = {PROVENANCE_SUFFIX: self.provenance is None, QUARANTINE_SUFFIX: not self.quarantine}
        return tuple(suffix for suffix in self.output.suffixes if not absent.get(suffix))

    @property
    def token_files(self) -> list[PartFile]:
        """What the token file is assembled from, in order."""
        return [*self.head, *(part.bin for part in self.parts), *self.tail]


# What is there before a job begins.


def find_finished(outputs: Sequence[Output], plan: Plan, *, replaces: bool) -> list[Manifest]:
    """Return the manifests of existing output if the same plan made all of it; refuse output that must not be replaced.

    Args:
        outputs: Every output of the job.
        plan: The job's plan.
        replaces: Whether output of another plan, or of somebody else, may be replaced, as when an interrupted run of
            the plan has begun to publish.

    Returns:
        The manifests of finished output of the same plan; nothing if there is work to do.

    Raises:
        PlanError: If another plan made the output, naming what differs.
        FormatError: If a manifest cannot be read.
        OutputError: If no manifest describes the files under final names.
    """
    finished: list[Manifest] = []
    for output in outputs:
        manifest = read_manifest(output.prefix)
        settings, inputs = ([], []) if manifest is None else compare_plans(manifest.run.plan, plan)
        if (settings or inputs) and not replaces:
            raise PlanError(
                f"{output.prefix}: finished output of another plan is here: {'; '.join([*settings, *inputs])}; choose "
                f"another place for the output, or replace it with --replace"
            )
        for path in map(output.final, output.suffixes):
            if manifest is None and not replaces and find(path):
                raise OutputError(
                    f"{path}: exists already, and no manifest says that dsindex made it; choose another place for the "
                    f"output, or replace it with --replace"
                )
        if manifest and not (settings or inputs) and files_have_recorded_sizes(output.prefix, manifest):
            finished.append(manifest)
    return finished if len(finished) == len(outputs) else []


def refuse_inputs(outputs: Sequence[Output], inputs: Sequence[str]) -> None:
    """Refuse outputs that are inputs of the same job, also through links to folders or files.

    Raises:
        OutputError: If an output is an input, naming both.
    """
    names = [path for output in outputs for path in output.paths]
    gone = {path for path in local_paths(names) if not os.path.exists(path)}
    existing = {os.path.realpath(path): path for path in names if path not in gone}
    for path in inputs if existing else ():
        if found := existing.get(os.path.realpath(path)):
            raise OutputError(
                f"{found}: expected an output that is none of the inputs, got the input {show_name(path)}; choose "
                f"another --output-prefix"
            )


_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.tmp$")
"""The ending of a name under which a store writes a file."""


def remove_partials(outputs: Sequence[Output], plan_id: str) -> None:
    """Remove the partial files of a plan, and what killed drivers and workers left of files that they wrote.

    What cannot be removed stays, since it is not an output.
    """
    own = [replace(output, plan_id=plan_id) for output in outputs if not output.in_bucket]
    partials = {output.partial(suffix) for output in own for suffix in output.suffixes}
    names = partials.union(*(output.paths for output in own))
    for folder in {os.path.dirname(output.prefix) for output in own}:
        found = [each.path for each in store_of(folder).list(folder, recursive=False)]
        left = (path for path in found if path in partials or _TEMPORARY.sub("", path) in names - {path})
        store_of(folder).delete(left)


# Publish.


def publish(outputs: Sequence[Output], manifests: Sequence[Manifest]) -> None:
    """Give the files of datasets their final names, in reverse order. Called again after a crash, it finishes.

    To a reader, an `.idx` means that its `.bin` is complete. So an earlier dataset of these names is removed first,
    beginning with its manifest and its `.idx` or `.pbin`; and a new one's manifest comes last.

    Raises:
        OutputError: If a file cannot be renamed or written.
    """
    pairs = list(zip(outputs, manifests, strict=True))
    # What completes a dataset is the last of its files; in a bucket, all have final names.
    waiting = [each for each in outputs if not each.in_bucket and os.path.exists(each.partial(each.suffixes[-1]))]
    for output, manifest in pairs:
        if output in waiting:
            withdraw(output, manifest.content.digests)
    for output, manifest in reversed(pairs):
        if output in waiting:
            _rename_all(output, manifest.content.digests)
        replace_file(manifest_path(output.prefix), manifest.encode())


def withdraw(output: Output, suffixes: Container[str]) -> None:
    """Remove an earlier dataset's manifest and its `.idx` or `.pbin`, and files that the new one does not have.

    Args:
        output: The output.
        suffixes: Suffixes of the new files.

    Raises:
        OutputError: If the former cannot be removed.
    """
    store = store_of(output.prefix)
    left = store.delete([manifest_path(output.prefix), output.final(output.suffixes[-1])])
    if left:
        raise OutputError(f"{left[0]}: cannot be removed, and a new file is to take its place; remove it and run again")
    store.delete([output.final(suffix) for suffix in output.suffixes if suffix not in suffixes])


def _rename_all(output: Output, suffixes: Container[str]) -> None:
    *others, last = (suffix for suffix in output.suffixes if suffix in suffixes)
    folder = os.path.dirname(output.prefix)
    with writing(output.prefix):
        for suffix in others:
            with contextlib.suppress(FileNotFoundError):  # published before a crash
                os.replace(output.partial(suffix), output.final(suffix))
        sync_folder(folder)
        os.replace(output.partial(last), output.final(last))
        sync_folder(folder)
