"""Existing files under a job's final names: output of the same plan, of another plan, or of another program.

A job replaces only files that dsindex wrote by proof of a manifest or the ledger. In any case it
replaces only files that existed when the job began: a file that appears meanwhile is someone else's.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsindex.engine.identity import describe_inputs, describe_settings
from dsindex.engine.manifest import (
    MANIFEST_SUFFIX,
    Manifest,
    files_have_recorded_sizes,
    manifest_path,
    read_manifest,
)
from dsindex.engine.partial_files import PBIN_PUBLISHING_ORDER, PUBLISHING_ORDER
from dsindex.errors import InputError, MissingObjectError, OutputError, PlanError
from dsindex.json_text import show_name
from dsindex.store.reading import digest_file, look_at_all, stored_size
from dsindex.store.storage import remove_if_present
from dsindex.store.urls import absolute, local_paths, with_suffix
from dsindex.store.writing import identify, is_tagged

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dsindex.engine.identity import Plan
    from dsindex.engine.ledger import History
    from dsindex.store.writing import FileIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A dataset that a job publishes."""

    prefix: str
    """Path without suffix."""
    suffixes: tuple[str, ...]
    """Suffixes of its files, except the manifest's."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Final paths of all its files, the manifest's last."""
        return (*(with_suffix(self.prefix, f".{suffix}") for suffix in self.suffixes), manifest_path(self.prefix))


MEGATRON_SUFFIXES = ("idx", *(suffix for suffix in PUBLISHING_ORDER if suffix != "idx"))
PBIN_SUFFIXES = tuple(reversed(PBIN_PUBLISHING_ORDER))


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The existing files under the final names of one output."""

    output: Output
    files: Mapping[str, FileIdentity]
    """Path → identity, of existing files only."""


def look_at_output(output: Output) -> Standing:
    """Return the existing files under an output's final names, following symbolic links."""
    found = zip(output.paths, look_at_all(identify, output.paths, places=output.paths), strict=True)
    return Standing(output=output, files={path: identity for path, identity in found if identity is not None})


def require_unchanged(standing: Standing) -> None:
    """Check that no file under a final name changed while the job ran.

    Raises:
        OutputError: If one did, naming the first.
    """
    now = look_at_output(standing.output)
    for path in standing.output.paths:
        if now.files.get(path) != standing.files.get(path):
            raise OutputError(
                f"{path}: expected no change since this job began, got a file that was written, replaced or "
                f"removed meanwhile; nothing was published: find out what writes there, then run the same command again"
            )


def find_finished(
    standings: Sequence[Standing], plan: Plan, *, replaces: bool, read_unfinished: Callable[[], History]
) -> list[Manifest] | None:
    """Return the manifests of existing output if the same plan made all of it; refuse output that must not be replaced.

    Args:
        standings: The existing files of every output of the job.
        plan: The job's plan.
        replaces: Whether output of other inputs may be replaced.
        read_unfinished: Returns the ledger's history of a run that was interrupted, perhaps while it published.

    Returns:
        The manifests of finished output of the same plan; None if there is work to do.

    Raises:
        PlanError: If another plan made the output, naming what differs.
        FormatError: If a manifest cannot be read.
        OutputError: If nothing proves that dsindex wrote the files under final names.
    """
    finished: list[Manifest] = []
    for standing in standings:
        prefix = standing.output.prefix
        manifest = read_manifest(prefix)
        if manifest is None:
            if standing.files:
                _refuse_foreign(standing, read_unfinished().publishing.get(absolute(prefix), frozenset()))
            continue
        stored = manifest.run.plan
        settings, inputs = describe_settings(stored, plan), describe_inputs(stored, plan)
        if settings or (inputs and not replaces):
            raise PlanError(
                f"{prefix}: finished output of another plan is here: {'; '.join(settings + inputs)}; "
                f"choose another place for the output, or replace it with {'--fresh' if settings else '--replace'}"
            )
        is_finished = not inputs and files_have_recorded_sizes(prefix, manifest)
        if not is_finished or local_paths([prefix]):
            _refuse_modified(standing, manifest)
        if is_finished:
            finished.append(manifest)
    return finished if len(finished) == len(standings) else None


def refuse_inputs(outputs: Sequence[Output], inputs: Sequence[str]) -> None:
    """Refuse outputs that are inputs of the same job, under any name or link.

    Args:
        outputs: Every output of the job.
        inputs: Paths of the files that it reads.

    Raises:
        OutputError: If an output is an input, naming both.
    """
    names = [path for output in outputs for path in output.paths]
    local = {identity[:2]: path for path in local_paths(names) if (identity := identify(path)) is not None}
    remote = set(names) - set(local_paths(names))
    for path in dict.fromkeys(inputs) if remote or local else ():
        if path in remote:
            raise _input_as_output(path, path)
        try:
            status = os.stat(path)
        except OSError:
            continue  # reported when it is read
        output_path = local.get((status.st_dev, status.st_ino))
        if output_path is not None:
            raise _input_as_output(output_path, path)


def _input_as_output(output_path: str, path: str) -> OutputError:
    return OutputError(
        f"{output_path}: expected an output that is none of the inputs, got the input "
        f"{show_name(path)}; choose another --output-prefix"
    )


def _refuse_foreign(standing: Standing, published: frozenset[FileIdentity]) -> None:
    """Refuse to replace files, except those that an interrupted run published or was about to replace."""
    for path, identity in standing.files.items():
        if identity in published:
            continue
        raise OutputError(
            f"{path}: exists already, and no manifest says that dsindex made it; "
            f"choose another place for the output, or replace it with --fresh"
        )


def _refuse_modified(standing: Standing, manifest: Manifest) -> None:
    """Refuse to replace files that differ from the manifest: another program wrote them since.

    A file of the recorded size that is not newer than the manifest is accepted; a newer one, such as a copy, must have
    the recorded digest.
    """
    prefix = standing.output.prefix
    published = standing.files.get(manifest_path(prefix))
    for path, identity in standing.files.items():
        _, _, size_bytes, modified = identity
        suffix = path.removeprefix(f"{prefix}.")
        if suffix == MANIFEST_SUFFIX:
            continue
        file = manifest.content.digests.get(suffix)
        is_newer = published is None or modified > published[3]
        has_size = file is not None and (is_tagged(identity) or file.size_bytes == size_bytes)
        if file is not None and has_size and not (is_newer and _digest(path) != file.digest):
            continue
        raise OutputError(
            f"{path}: expected the file that the manifest describes, got another one, which may be someone else's; "
            "move it away and run again, which uses the shards that --keep-shards kept, choose another place for the "
            "output, or replace it with --fresh"
        )


def _digest(path: str) -> str | None:
    try:
        return digest_file(path)
    except InputError:
        return None


def remove_published(output: Output) -> None:
    """Remove a published dataset, as far as its manifest proves that dsindex wrote its files; the manifest last.

    Raises:
        FormatError: If the manifest cannot be read.
        OutputError: If the manifest cannot be removed.
    """
    manifest = read_manifest(output.prefix)
    if manifest is None:
        return
    for suffix in output.suffixes:
        path, file = with_suffix(output.prefix, f".{suffix}"), manifest.content.digests.get(suffix)
        with contextlib.suppress(OSError, MissingObjectError, OutputError):
            if file is not None and stored_size(path) == file.size_bytes:
                remove_if_present(path)
    remove_if_present(manifest_path(output.prefix))
