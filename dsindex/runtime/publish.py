"""Publish files: the only way in which files of dsindex get their final names.

A job locks its outputs, writes every file next to its final name as `<final>.<plan id>.partial` (a rename cannot cross
file systems), and publishes all of them at once:

    1. compare the sizes of the partial files with the sizes that were written
    2. write the commit, `<first final>.<plan id>.commit`: from here on the job is as good as published
    3. withdraw old files: those that complete an earlier artifact, and those that the new one does not have
    4. rename each file; a file that completes an artifact (`.idx`, description, manifest) follows all it depends on
    5. remove the commit

The next job that locks the same outputs finishes a commit that a killed driver left. So a reader never sees an
incomplete artifact, and a published file is never lost. In a bucket, each object appears complete under its final name:
there the commit only records which plan owns the names, and is written before the first object.

Every temporary name begins with a final name, so the leftovers of a killed run are found without a list, and no other
file is touched.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
import xxhash

from dsindex.errors import OutputError
from dsindex.messages import show_name
from dsindex.store.json_text import decode_json, encode_json
from dsindex.store.local import LOCAL, StoredFile, identify_file, path_exists, require_path, sync_folder, writing
from dsindex.store.lock import hold_lock
from dsindex.store.protocol import find, open_output, replace_file, store_of
from dsindex.store.read import is_as_written
from dsindex.store.urls import absolute, folder_of, join_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from dsindex.formats.manifest import Plan
    from dsindex.store.local import DigestingWriter
    from dsindex.store.lock import Lock

LOCK_SUFFIX = ".dsindex-lock"
_UNPUBLISHED = re.compile(r"(\.[0-9a-f]{16}\.(partial|commit|withdrawn))?(\.[0-9a-f]{32}\.tmp)?")
"""What may follow a final name in the name of an unpublished file."""


class _Commit(msgspec.Struct, frozen=True):
    """The files to publish. Names are relative to the commit's folder, which may have been moved."""

    withdrawn: list[str]
    """Files to remove before the first rename, in this order."""
    files: list[tuple[str, StoredFile | None]]
    """Final names in the order of the renames, each with the written file, or None for a folder."""


msgspec.json.Decoder(_Commit)  # prepares the type: threads that first decode one at the same time can crash


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """Files that readers use together."""

    finals: tuple[str, ...]
    """All absolute final paths that it may have, in the order of publishing. The file that completes it for a reader
    comes last, or last before the manifest."""
    plan_id: str
    num_completing: int = 2
    """How many of the last files tell a reader that the artifact is complete; they are withdrawn first."""

    @property
    def is_in_place(self) -> bool:
        """Whether its files are written under their final names, as objects are."""
        return self.partial(self.finals[0]) == self.finals[0]

    @property
    def commit_path(self) -> str:
        """Path of the commit, if this is the first artifact of a job."""
        return f"{self.finals[0]}.{self.plan_id}.commit"

    def partial(self, final: str) -> str:
        """Return where a file is written: under its partial name on a disk, under its final name in a bucket."""
        return store_of(final).unfinished_path(final, f"{self.plan_id}.partial")


def hold_output(path: str, *, waits: bool = False) -> contextlib.AbstractContextManager[Lock]:
    """Hold the lock of an output, named by its prefix, file or folder.

    Args:
        path: The prefix, file or folder.
        waits: Whether to wait for another driver instead of refusing.

    Raises:
        PlanError: If another driver holds it.
        OutputError: If the lock cannot be written.
    """
    return hold_lock(f"{absolute(path)}{LOCK_SUFFIX}", resource=f"the output {path}", waits=waits)


def refuse_inputs(artifacts: Sequence[Artifact], inputs: Sequence[str]) -> None:
    """Refuse outputs that are also inputs of the same job, even through links to folders or files.

    Raises:
        OutputError: If an output is an input, naming both.
    """
    finals_by_identity: dict[object, str] = {}
    for final in (final for artifact in artifacts for final in artifact.finals):
        if (identity := identify_file(final)) is not None:
            finals_by_identity[identity] = final
    for path in inputs if finals_by_identity else ():
        if output := finals_by_identity.get(identify_file(path)):
            other_name, hint = "" if output == path else f", as {show_name(path)}", "choose another name for the output"
            raise OutputError(f"{output} is both an input and an output{other_name}", hint=hint)


@contextlib.contextmanager
def hold_artifacts(names: Sequence[str], artifacts: Sequence[Artifact], *, waits: bool = False) -> Iterator[bool]:
    """Lock the artifacts of one task while the block writes and publishes them; remove leftovers before and after.

    Yields whether artifacts of a killed run have just been published.

    Args:
        names: The prefix, file or folder that names each lock.
        artifacts: The artifacts.
        waits: Whether to wait for another driver.
    """
    with contextlib.ExitStack() as locks:
        for name in sorted(names):
            locks.enter_context(hold_output(name, waits=waits))
        has_published = finish_publishing(artifacts)
        remove_leftovers(artifacts, with_commits=False)
        try:
            yield has_published
        except BaseException:
            remove_leftovers(artifacts, with_commits=False)
            raise
        if artifacts[0].is_in_place:  # on a disk, publishing leaves nothing
            remove_leftovers(artifacts)


class NewFiles:
    """Collects the files that one task writes under their partial names."""

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact
        self.written: dict[str, StoredFile] = {}
        """The complete files by final path."""

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[DigestingWriter]:
        """Open a file for writing, by its final path."""
        final = absolute(path)
        with open_output(self._artifact.partial(final)) as file:
            yield file
        self.written[final] = file.stored_file(os.path.basename(final))


@contextlib.contextmanager
def write_new_files(name: str, paths: Sequence[str], plan: Plan) -> Iterator[NewFiles]:
    """Write files that appear together when the block ends, or not at all; existing files are never replaced.

    Args:
        name: Names the lock.
        paths: All final paths, in the order of publishing, in one folder of this machine.
        plan: The settings and inputs that the files depend on.

    Raises:
        OutputError: If a file exists with other content, or cannot be written.
        PlanError: If another driver writes them.
    """
    for path in paths:
        require_path(path)
        if path_exists(path) and not os.path.isfile(path):
            raise OutputError(f"{path}: exists already", hint="choose another name")
    artifact = Artifact(finals=tuple(map(absolute, paths)), plan_id=plan.plan_id)
    refuse_inputs([artifact], [path for path, *_ in plan.inputs])
    with hold_artifacts([name], [artifact]):
        files = NewFiles(artifact)
        yield files
        missing_files: dict[str, StoredFile | None] = {}
        for final, file in files.written.items():
            if not path_exists(final):
                missing_files[final] = file
            elif not _is_as_written(final, file):
                hint = "choose another name, or remove it"
                raise OutputError(f"{final}: exists already, with other content", hint=hint)
        LOCAL.delete(artifact.partial(final) for final in files.written.keys() - missing_files.keys())
        if missing_files:
            publish([replace(artifact, finals=tuple(missing_files))], missing_files)


def publish(artifacts: Sequence[Artifact], written: Mapping[str, StoredFile | None]) -> None:
    """Give the files of artifacts their final names, the last artifact first.

    Args:
        artifacts: The artifacts; on a disk, all in one folder.
        written: The written files by final path; None for a folder.

    Raises:
        OutputError: If a partial file is missing or has another size, or cannot be renamed.
    """
    commit, first = _Commit(withdrawn=[], files=[]), artifacts[0]
    for artifact in artifacts:
        present_finals = [final for final in artifact.finals if final in written]
        completing_finals = reversed(present_finals[-artifact.num_completing :] if len(present_finals) > 1 else ())
        absent_finals = (final for final in artifact.finals if final not in written)
        commit.withdrawn.extend(map(os.path.basename, (*completing_finals, *absent_finals)))
    for artifact in reversed(artifacts):
        for final in (final for final in artifact.finals if final in written):
            partial, file = artifact.partial(final), written[final]
            if file is not None and ((status := find(partial)) is None or status.size_bytes != file.size_bytes):
                reason = "is missing" if status is None else f"has {status.size_bytes:,} bytes, not {file.size_bytes:,}"
                raise OutputError(f"{partial}: {reason}", hint="run the same command again, and check the disk")
            commit.files.append((os.path.basename(final), file))
    if first.is_in_place:
        store_of(first.commit_path).delete([first.commit_path])
    elif len(commit.files) + len(commit.withdrawn) == 1 and None not in written.values():  # a rename needs no commit
        [final] = written
        _rename(first.partial(final), final)
        sync_folder(folder_of(final))
    else:
        replace_file(first.commit_path, _encode_commit(commit))
        _carry_out(first.commit_path, first.plan_id, commit, waiting_names={name for name, _ in commit.files})


def claim_names(first: Artifact, artifacts: Sequence[Artifact], present: Iterable[str]) -> None:
    """Record that this plan owns the final names from now on, and withdraw earlier objects with these names.

    Does nothing on a disk, where files are renamed in the end.

    Args:
        first: The first artifact of the job.
        artifacts: The artifacts that are not complete.
        present: The final paths that the job's artifacts will have.
    """
    if not first.is_in_place:
        return
    present = {*present}
    replace_file(first.commit_path, _encode_commit(_Commit(withdrawn=[], files=[])))
    for artifact in artifacts:
        last = artifact.finals[-artifact.num_completing :]
        _withdraw([*reversed(last), *(final for final in artifact.finals if final not in present)])


def is_publishing(artifacts: Sequence[Artifact]) -> bool:
    """Tell whether a run was stopped while it wrote under these final names, as it does only in a bucket.

    Args:
        artifacts: The artifacts; if they have a plan, only a run of that plan counts.
    """
    ending = f"{artifacts[0].plan_id}.commit"
    return artifacts[0].is_in_place and any(path.endswith(ending) for path in _find_unpublished_files(artifacts))


def finish_publishing(artifacts: Sequence[Artifact]) -> bool:
    """Finish what a killed driver had committed for any of these names, under any plan; requires the lock.

    If a file was damaged since, the commit is undone: renamed files get their partial names back.

    Returns:
        Whether anything was published.

    Raises:
        OutputError: If a file cannot be renamed.
    """
    has_published = False
    for path in _find_unpublished_files(artifacts):
        if not path.endswith(".commit") or artifacts[0].is_in_place:
            continue
        folder, plan_id = folder_of(path), path.removesuffix(".commit").rpartition(".")[2]
        commit = _decode_commit((store_of(path).read(path) or (b"", ""))[0])
        paths = {name: _current_path(folder, name, plan_id) for name, _ in commit.files} if commit is not None else {}
        if commit is not None and all(_is_as_written(paths[name], file) for name, file in commit.files):
            waiting_names = {name for name, current_path in paths.items() if current_path.endswith(".partial")}
            _carry_out(path, plan_id, commit, waiting_names=waiting_names)
            has_published = True
            continue
        # An artifact that was renamed, in part or as a whole, is taken back, its last file first.
        for artifact in artifacts:
            last = artifact.finals[-1]
            is_renamed = os.path.basename(last) in paths and not path_exists(f"{last}.{plan_id}.partial")
            for final in reversed(artifact.finals) if is_renamed or not path_exists(last) else ():
                partial = f"{final}.{plan_id}.partial"
                if path_exists(final) and not path_exists(partial):
                    _rename(final, partial)
        store_of(path).delete([path])
    return has_published


def _encode_commit(commit: _Commit) -> bytes:
    content = encode_json(msgspec.to_builtins(commit))  # names may not be UTF-8
    return b"%s %s" % (xxhash.xxh3_64_hexdigest(content).encode(), content)


def _decode_commit(stored: bytes) -> _Commit | None:
    digest, _, content = stored.partition(b" ")
    return (
        msgspec.convert(decode_json(content), _Commit) if xxhash.xxh3_64_hexdigest(content).encode() == digest else None
    )


def _current_path(folder: str, name: str, plan_id: str) -> str:
    """Return where a file of a commit is: at its partial name if that exists, otherwise at its final name."""
    partial = join_path(folder, f"{name}.{plan_id}.partial")
    return partial if path_exists(partial) else join_path(folder, name)


def _carry_out(path: str, plan_id: str, commit: _Commit, *, waiting_names: set[str]) -> None:
    """Carry out a commit, from the step at which a killed driver stopped; some files still wait to be renamed."""
    folder = folder_of(path)
    if len(waiting_names) == len(commit.files):  # after the first rename, these names may belong to new files
        _withdraw(join_path(folder, name) for name in commit.withdrawn)
    for name, _ in commit.files:
        if name in commit.withdrawn:  # after a power cut, the file that completes an artifact must not be there alone
            sync_folder(folder)
        if name in waiting_names:
            _rename(join_path(folder, f"{name}.{plan_id}.partial"), join_path(folder, name))
    sync_folder(folder)
    store_of(path).delete([path])


def _is_as_written(path: str, file: StoredFile | None) -> bool:
    return os.path.isdir(path) if file is None else is_as_written(path, file)


def _withdraw(paths: Iterable[str]) -> None:
    for path in paths:
        if remaining := store_of(path).delete([path]):
            hint = "remove it, and run again"
            raise OutputError(f"{remaining[0]}: cannot be removed to make room for a new file", hint=hint)


def _rename(partial: str, final: str) -> None:
    """Rename a file over an earlier one, or a folder after an earlier one was moved away."""
    with writing(final):
        if os.path.isdir(partial) and path_exists(final):
            withdrawn = f"{partial.removesuffix('.partial')}.withdrawn"
            os.rename(final, withdrawn)
            os.rename(partial, final)
            shutil.rmtree(withdrawn, ignore_errors=True)
        else:
            os.replace(partial, final)


def remove_leftovers(artifacts: Iterable[Artifact], *, keeps: str | None = None, with_commits: bool = True) -> None:
    """Remove partial files, temporary files and commits of these artifacts, under any plan.

    Args:
        artifacts: The artifacts.
        keeps: Id of the plan whose partial files the next run uses; None to keep none.
        with_commits: Whether to remove commits too, because nothing is being published any more.
    """
    for path in _find_unpublished_files(artifacts):
        is_kept = path.endswith(".commit") and not with_commits
        if not is_kept and (keeps is None or not path.endswith(f".{keeps}.partial")):
            if os.path.isdir(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                store_of(path).delete([path])


def _find_unpublished_files(artifacts: Iterable[Artifact]) -> list[str]:
    """Return the paths of all unpublished files of artifacts, commits first."""
    finals = {final for artifact in artifacts for final in artifact.finals}
    unpublished = []
    for folder in sorted({folder_of(final) for final in finals}):
        beginnings = tuple(os.path.basename(final) for final in finals)
        for path in store_of(folder).paths_in(folder):
            name = os.path.basename(path)
            if not name.startswith(beginnings):
                continue
            dots = (dot for dot in re.finditer(r"\.", name) if join_path(folder, name[: dot.start()]) in finals)
            if any(_UNPUBLISHED.fullmatch(name, dot.start()) for dot in dots):
                unpublished.append(path)
    return sorted(unpublished, key=lambda path: (not path.endswith(".commit"), path))
