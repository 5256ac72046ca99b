"""The folder of an export: assembled under another name, and published with its manifest in one rename.

Files are written to `<folder>.<plan id>.partial`, in which a file is complete or absent, and a list of the finished
ones. So an interrupted job goes on with those that are missing. A folder that is replaced is moved aside and removed,
if it holds nothing but files that its manifest names, as they were written. Otherwise the job refuses to touch it.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from dsindex.datasets.exports import EXPORT_MANIFEST, WrittenFile
from dsindex.engine.manifest import LARGEST_MANIFEST_BYTES, Count, Run
from dsindex.engine.output import partial_path
from dsindex.engine.plan import Plan
from dsindex.errors import FormatError, OutputError
from dsindex.json_text import decode_json, encode_json
from dsindex.store.reading import digest_file
from dsindex.store.storage import make_folder, open_own, output_error, read_own, sync_folder, write_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


# The manifest in the folder of an export: what it was made of, its counts, and digests of its files.
#
# It is published with the folder, in one rename. So a folder with a manifest is complete.

EXPORT_FORMAT = "dsindex export 1"

FileName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]*(/[a-z0-9][a-z0-9_.-]*)?$")]
"""Name of a file relative to the folder; it cannot lead out of it."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class ExportedFile(_Part):
    """Size and digest of a file."""

    size_bytes: Count
    xxh3_128: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class ExportedSplit(_Part):
    """The rows of a split and what they hold."""

    rows: Count
    sequences: Count
    tokens: Count
    trainable: Count
    """Tokens that the loss mask says are trainable."""
    targets: Count
    """Trainable tokens that a trainer predicts: all but those at the start of a sequence."""


class ExportContent(_Part):
    """The part that depends on the dataset and the kind of export alone."""

    kind: str
    sequence_length: Count | None = None
    """Slots of a pack."""
    sources: dict[str, dict[str, ExportedFile]]
    """The datasets that it was made of: name after the job's prefix → suffix → file."""
    tokenizer: dict[str, Any] | None = None
    writer: str | None = None
    """The library that encoded the files; another release may write other bytes."""
    splits: dict[str, ExportedSplit]
    digests: dict[FileName, ExportedFile]


class ExportManifest(_Part):
    """A manifest."""

    content: ExportContent
    run: Run

    def encode(self) -> bytes:
        """Return the manifest as indented JSON, without the fields that were not given."""
        dumped = self.model_dump(exclude_none=True)
        return encode_json({"format": EXPORT_FORMAT, **dumped}, indent=True, newline=True)


def read_export_manifest(folder: str) -> ExportManifest | None:
    """Read the manifest in a folder; return None if there is none.

    Raises:
        FormatError: If it cannot be read.
    """
    path = os.path.join(folder, EXPORT_MANIFEST)
    try:
        found = decode_json(read_own(path, most_bytes=LARGEST_MANIFEST_BYTES))
        if not isinstance(found, dict) or found.get("format") != EXPORT_FORMAT:
            raise ValueError(f"expected {EXPORT_FORMAT!r}, got another JSON file")
        return ExportManifest.model_validate(found)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValidationError as error:
        first = error.errors()[0]
        problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except (OSError, ValueError) as error:
        problem = str(error)
    raise FormatError(f"{path}: cannot be read as the manifest of an export ({problem}); move the folder away")


PROGRESS_FILE = "export.progress.jsonl"
"""In a partial folder: the plan, whose id is in the folder's name, so dsindex wrote it; then a line per finished file.
"""
_WRITTEN = TypeAdapter(WrittenFile)
_LEFT = re.compile(r"\.([0-9a-f]{16})\.(partial|replaced)")
_OWN_FILE = re.compile(
    r"((train|validation|test|data)[-.][a-z0-9.-]*|packed_metadata\.json"
    rf"|{re.escape(EXPORT_MANIFEST)}|{re.escape(PROGRESS_FILE)})(\.[0-9a-f]{{32}}\.tmp)?"
)
_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.tmp$")
"""The ending that dsindex.store.storage.atomic_writer adds to a name while it writes the file."""
_REMEDY = "move it away, or choose another --output-prefix"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFolder:
    """The folder of one export."""

    path: str
    """Absolute path."""
    plan: Plan
    """What it is made of: its kind, and the digests of the datasets."""

    @property
    def partial(self) -> str:
        """The folder's path until it is published."""
        return partial_path(self.path, self.plan.plan_id)

    def find_finished(self) -> ExportManifest | None:
        """Return the manifest if the same plan made the folder and its files have the recorded sizes.

        Raises:
            FormatError: If the manifest cannot be read.
        """
        manifest = read_export_manifest(self.path)
        if manifest is None or manifest.run.plan != self.plan.decoded():
            return None
        files = manifest.content.digests.items()
        return (
            manifest if all(_size(os.path.join(self.path, name)) == file.size_bytes for name, file in files) else None
        )

    def begin(self) -> None:
        """Make the partial folder, and remove what interrupted exports of other plans left.

        Raises:
            OutputError: If a folder cannot be written.
        """
        for path in _leftovers(self.path):
            if path != self.partial:
                _remove_leftover(path)
        make_folder(self.partial)
        if not os.path.exists(self._progress):
            write_whole(self._progress, encode_json(self.plan.to_json(), newline=True))

    @property
    def _progress(self) -> str:
        return os.path.join(self.partial, PROGRESS_FILE)

    def record(self, files: Iterable[WrittenFile]) -> None:
        """Record finished files of the partial folder.

        Raises:
            OutputError: If that is refused.
        """
        try:
            descriptor = os.open(self._progress, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(descriptor, "ab") as progress:
                progress.writelines(encode_json(_WRITTEN.dump_python(file), newline=True) for file in files)
        except OSError as error:
            raise output_error(self._progress, error) from error

    def recorded(self) -> dict[str, WrittenFile]:
        """Return the recorded files that are there, by name."""
        found = {}
        with contextlib.suppress(OSError), open_own(self._progress, most_bytes=LARGEST_MANIFEST_BYTES) as progress:
            for line in list(progress)[1:]:
                with contextlib.suppress(ValueError):  # cut off by a crash
                    file = _WRITTEN.validate_python(decode_json(line))
                    if _size(os.path.join(self.partial, file.file.name)) == file.file.size_bytes:
                        found[file.file.name] = file
        return found

    def publish(self, manifest: ExportManifest) -> None:
        """Give the folder its name, in place of an earlier export.

        Raises:
            OutputError: If a file there is not one that dsindex wrote, or a folder cannot be renamed.
        """
        require_own(self.path)
        self._remove_temporary()
        write_whole(os.path.join(self.partial, EXPORT_MANIFEST), manifest.encode())
        replaced = f"{self.path}.{self.plan.plan_id}.replaced"
        try:
            if os.path.isdir(self.path):
                os.rename(self.path, replaced)
            os.rename(self.partial, self.path)
            sync_folder(os.path.dirname(self.path))
            os.unlink(os.path.join(self.path, PROGRESS_FILE))
        except OSError as error:
            raise output_error(self.path, error) from error
        _remove_leftover(replaced)

    def _remove_temporary(self) -> None:
        """Remove the files that killed workers left unfinished."""
        for name in list(_files(self.partial)):
            if _TEMPORARY.search(name):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self.partial, name))


def remove_export(path: str) -> None:
    """Remove a published export.

    Raises:
        OutputError: If a file there is not one that dsindex wrote, or it cannot be removed.
        FormatError: If its manifest cannot be read.
    """
    require_own(path)
    _remove_files(path)


def require_own(path: str) -> None:
    """Check that a folder holds only files that dsindex wrote, as its manifest says; an absent or empty one is fine.

    Raises:
        OutputError: If it holds another file, naming it.
        FormatError: If the manifest cannot be read.
    """
    if not os.path.lexists(path):
        return
    if os.path.islink(path) or not os.path.isdir(path):
        raise OutputError(f"{path}: expected a folder of an export, got a file or a link; {_REMEDY}")
    manifest = read_export_manifest(path)
    recorded = {} if manifest is None else manifest.content.digests
    for name in _files(path):
        full = os.path.join(path, name)
        file = recorded.get(name)
        if name in {EXPORT_MANIFEST, PROGRESS_FILE} and manifest is not None:
            continue
        if (
            file is None
            or _size(full) != file.size_bytes
            or (_is_newer(full, path) and digest_file(full) != file.xxh3_128)
        ):
            msg = f"{full}: expected only files that dsindex wrote in a folder of its own, got another one; {_REMEDY}"
            raise OutputError(msg)


def _files(path: str) -> Iterator[str]:
    """Yield the files below a folder, relative to it; links are files."""
    for folder, names, files in os.walk(path):
        links = [name for name in names if os.path.islink(os.path.join(folder, name))]
        for name in sorted([*files, *links]):
            yield os.path.relpath(os.path.join(folder, name), path)


def _is_newer(path: str, folder: str) -> bool:
    with contextlib.suppress(OSError):
        return os.stat(path).st_mtime_ns > os.stat(os.path.join(folder, EXPORT_MANIFEST)).st_mtime_ns
    return True


def _size(path: str) -> int | None:
    with contextlib.suppress(OSError):
        status = os.lstat(path)
        return status.st_size if stat.S_ISREG(status.st_mode) else None
    return None


def _leftovers(path: str) -> list[str]:
    """Return the folders beside an export that its interrupted jobs left."""
    parent, base = os.path.split(path)
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        return [
            entry.path
            for entry in entries
            if entry.name.startswith(base)
            and _LEFT.fullmatch(entry.name.removeprefix(base))
            and entry.is_dir(follow_symlinks=False)
        ]
    return []


def _remove_leftover(path: str) -> None:
    """Remove what an interrupted export left, as far as it proves that dsindex wrote it."""
    if path.endswith(".replaced"):
        with contextlib.suppress(OutputError, FormatError):
            remove_export(path)
        return
    found = _LEFT.search(path)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        with open_own(os.path.join(path, PROGRESS_FILE), most_bytes=LARGEST_MANIFEST_BYTES) as file:
            plan = Plan(settings=decode_json(file.readline())["settings"], inputs=())
        if found is not None and plan.plan_id == found.group(1):
            _remove_files(path)


def _remove_files(path: str) -> None:
    """Remove the files of an export, what proves that they are its own last, and the folders that are then empty."""
    names = [name for name in _files(path) if _OWN_FILE.fullmatch(os.path.basename(name))]
    try:
        for name in sorted(names, key=lambda name: name in {EXPORT_MANIFEST, PROGRESS_FILE}):
            os.unlink(os.path.join(path, name))
        for folder, _, _ in os.walk(path, topdown=False):
            with contextlib.suppress(OSError):  # not empty: somebody else's file
                os.rmdir(folder)
    except OSError as error:
        raise output_error(path, error) from error
