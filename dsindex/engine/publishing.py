"""A dataset's files and their names: partial until all are complete, then published.

Files are assembled beside the output (a rename cannot cross file systems) as `<final>.<plan id>.partial`: a leftover
process of another plan cannot write there, and one of the same plan would write the same bytes.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import xxhash

from dsindex.datasets.provenance import ShardProvenance
from dsindex.engine.ledger import output_key
from dsindex.engine.manifest import MANIFEST_SUFFIX, manifest_path
from dsindex.engine.merge import Part, Piece, merged_header
from dsindex.engine.partial_files import (
    PBIN_PUBLISHING_ORDER,
    PROVENANCE_SUFFIX,
    PUBLISHING_ORDER,
    QUARANTINE_SUFFIX,
    partial_path,
)
from dsindex.engine.shards.tokenize import ShardQuarantine
from dsindex.errors import InputError, OutputError
from dsindex.formats.mmididx import IndexHeader
from dsindex.json_text import name_bytes
from dsindex.store.reading import digest_file
from dsindex.store.storage import StoredSection, output_error, remove_if_present, replace_file, sync_folder
from dsindex.store.uploads import (
    Upload,
    abort_upload,
    begin_upload,
    complete_upload,
    find_parts,
    is_completed,
    list_uploads,
)
from dsindex.store.urls import ObjectUrl, joined, parse_url, pin_object, with_suffix
from dsindex.store.writing import find_object, identify, identify_tag, new_tag, put_object

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from dsindex.engine.ledger import History, Ledger
    from dsindex.engine.shards.tokenize import KeyResult, ShardResult, ShardTask
    from dsindex.store.storage import StoredFile
    from dsindex.store.urls import Access
    from dsindex.store.writing import FileIdentity


# The uploads of a job to final names in object stores: recorded in the ledger, found again, given up.
#
# The ledger says that uploads to a final name are about to be begun, and which others there are already. So a later run
# also finds an upload whose id was never recorded, and never gives up one of somebody else.


def current_upload(url: str, partial: str, ledger: Ledger) -> Upload | None:
    """Return the upload that was recorded last for a plan's file; None if there is none.

    Args:
        url: The final address.
        partial: The file's name until it is published, which contains the plan's id.
        ledger: The job's ledger.
    """
    for recorded in reversed(ledger.history.uploads):
        if recorded.url == url and recorded.partial == output_key(partial):
            found = parse_url(url)
            return Upload(url=found, upload_id=recorded.upload_id, tag=recorded.tag, checksum=recorded.checksum)
    return None


def require_upload(url: str, partial: str, ledger: Ledger) -> Upload:
    """Return the upload of a plan's file, which was begun before.

    Raises:
        ValueError: If it was not.
    """
    upload = current_upload(url, partial, ledger)
    if upload is None:
        raise ValueError(f"{url}: expected an upload that was begun")
    return upload


def new_upload(address: str, partial: str, ledger: Ledger) -> Upload:
    """Begin an upload in place of those that runs of the job began to the same address, which are given up.

    Raises:
        OutputError: If the store refuses.
    """
    url = parse_url(address)
    others = ledger.history.uploading.get(url)
    if others is None:
        ledger.record_uploading(url, list_uploads(url))
    else:
        _give_up(url, others)
    upload = begin_upload(url)
    ledger.record_upload(upload, partial)
    return upload


def live_upload(url: str, partial: str, ledger: Ledger) -> Upload:
    """Return the upload of a plan's file, begun now unless it goes on.

    Raises:
        OutputError: If the store refuses.
    """
    upload = current_upload(url, partial, ledger)
    return upload if upload is not None and find_parts(upload) is not None else new_upload(url, partial, ledger)


def stored_bytes(upload: Upload) -> int | None:
    """Return the size of what an upload has, or made; None if it is gone.

    Raises:
        OutputError: If the store refuses.
    """
    parts = find_parts(upload)
    if parts is not None:
        return sum(part.size_bytes for part in parts.values())
    found = find_object(upload.url)
    return found.size_bytes if found is not None and found.tag == upload.tag else None


def give_up_uploads(history: History, access: Access) -> None:
    """Give up all uploads that the runs of a job began and did not complete.

    Raises:
        OutputError: If the store refuses.
    """
    for url, others in history.uploading.items():
        _give_up(ObjectUrl(url, access=access), others)


def _give_up(url: ObjectUrl, others: frozenset[str]) -> None:
    for upload_id in list_uploads(url):
        if upload_id not in others:
            abort_upload(Upload(url=url, upload_id=upload_id, tag=""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A dataset that a job is going to make, as far as it is known before its parts exist."""

    prefix: str
    """Final path without suffix."""
    plan_id: str
    """Id of the job's plan."""
    bound_bytes: int
    """Approximate upper bound on the token file's size by the plan alone; the ranges are derived from it."""
    header_bytes: int = 0
    """Size of a `.pbin`'s header; 0 for a `.bin` and an `.idx`."""
    swapped_bytes: int = 1
    """Size of a token if its byte order is reversed; 1 if tokens are copied as they are."""

    @property
    def publishing_order(self) -> tuple[str, ...]:
        """Suffixes of all files that it may have; if the last one exists, the others are complete."""
        return PBIN_PUBLISHING_ORDER if self.header_bytes else PUBLISHING_ORDER

    @property
    def token_suffix(self) -> str:
        """The suffix of the file that is assembled by ranges."""
        return "pbin" if self.header_bytes else "bin"

    @property
    def token_file(self) -> str:
        """The partial path of the file that is assembled by ranges."""
        return self.partial(self.token_suffix)

    @property
    def is_remote(self) -> bool:
        """Whether its files are objects in a store, which are uploads until they are published."""
        return isinstance(self.prefix, ObjectUrl)

    def final(self, suffix: str) -> str:
        """Return a file's published path, or an object's address."""
        return with_suffix(self.prefix, f".{suffix}")

    def partial(self, suffix: str) -> str:
        """Return a file's path until it is published; for an object only a name of what is uploaded."""
        return partial_path(self.final(suffix), self.plan_id)

    @property
    def partials(self) -> list[str]:
        """Partial paths of all files that it may have."""
        return list(map(self.partial, self.publishing_order))

    def identify_partials(self, ledger: Ledger) -> list[FileIdentity]:
        """Return the identities of its existing partial files, which they keep under their final names."""
        if self.is_remote:
            suffixes = self.publishing_order
            uploads = [current_upload(self.final(suffix), self.partial(suffix), ledger) for suffix in suffixes]
            return [identify_tag(upload.tag) for upload in uploads if upload is not None]
        return [identity for path in self.partials if (identity := identify(path)) is not None]

    def piece(self, part: Part) -> Piece:
        """Return the piece that a part adds to the token file."""
        return replace(part.piece, swapped_bytes=self.swapped_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PbinEnds:
    """The header and the index of a `.pbin`, before and after its tokens."""

    head: Piece
    index: tuple[Piece, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A dataset that is ready to be assembled: all its parts exist."""

    target: Target
    parts: tuple[Part, ...]
    """The parts, in output order."""
    provenance: tuple[ShardProvenance, ...] | None
    quarantine: tuple[ShardQuarantine, ...] = ()
    """Shards' bad records; if empty, no quarantine file is published."""
    pbin: PbinEnds | None = None
    """Header and index of a `.pbin`; None for a `.bin` and an `.idx`."""

    @property
    def header(self) -> IndexHeader:
        """The header of the merged dataset's `.idx`, with its counts."""
        return merged_header(self.parts)

    @property
    def suffixes(self) -> frozenset[str]:
        """Suffixes of the files that the dataset has."""
        absent = set() if self.provenance is not None else {PROVENANCE_SUFFIX}
        absent |= set() if self.quarantine else {QUARANTINE_SUFFIX}
        return frozenset(self.target.publishing_order) - absent

    @property
    def pieces(self) -> list[Piece]:
        """The pieces of the token file, in order."""
        tokens = [self.target.piece(part) for part in self.parts]
        return tokens if self.pbin is None else [self.pbin.head, *tokens, *self.pbin.index]

    @property
    def bin_bytes(self) -> int:
        """Size of the merged token file."""
        return sum(piece.size_bytes for piece in self.pieces)


def identify_parts(parts: Sequence[Part]) -> str:
    """Return a short id for parts in their order."""
    return xxhash.xxh3_64_hexdigest(name_bytes("\n".join(part.identity for part in parts)))


def shard_part(shard: KeyResult, work_dir: str, dtype: np.dtype[Any]) -> Part:
    """Return one key's part of a shard, for merging."""
    placed = shard.bin if isinstance(shard.bin, StoredSection) else None
    return Part(
        bin_path=stored_path(work_dir, shard.bin),
        idx_path=stored_path(work_dir, shard.idx),
        # Unique per attempt, so a shard that was made again has another one, also at the same place.
        identity=shard.bin.name if placed is None else shard.idx.name,
        bin_bytes=shard.num_tokens * dtype.itemsize,
        bin_offset=0 if placed is None else placed.begin,
        section=placed,
        header=IndexHeader(
            dtype=dtype,
            num_sequences=shard.num_sequences,
            num_boundaries=shard.num_documents + 1,
            has_modes=False,
        ),
    )


def stored_path(work_dir: str, file: StoredFile) -> str:
    """Return the path of a file of an attempt, or its address with its size."""
    return pin_object(joined(work_dir, file.name), file.size_bytes)


def publish(dataset: Dataset, files: Mapping[str, StoredFile], manifest: bytes, ledger: Ledger) -> None:
    """Give a dataset's files their final names, the manifest last. Called again after a crash, it finishes.

    To a reader, an `.idx` means that its `.bin` is complete. So an earlier dataset of these names is removed first,
    beginning with its manifest and its `.idx` or `.pbin`.

    Args:
        dataset: The dataset, assembled under partial names.
        files: Its files by suffix.
        manifest: The content of its manifest.
        ledger: The job's ledger.

    Raises:
        OutputError: If a file cannot be renamed or written.
    """
    target = dataset.target
    *others, last = target.publishing_order
    if not target.is_remote:
        _publish_files(dataset, others, last)
        replace_file(manifest_path(target.prefix), manifest, temporary=target.partial(MANIFEST_SUFFIX))
        return
    if not _is_object_published(target, ledger):
        withdraw(target, ledger)
        for suffix in (*others, last):
            if suffix in dataset.suffixes:
                upload = require_upload(target.final(suffix), target.partial(suffix), ledger)
                complete_upload(upload, size_bytes=files[suffix].size_bytes)
            else:
                remove_if_present(target.final(suffix))
    put_object(parse_url(manifest_path(target.prefix)), manifest, tag=new_tag())


def require_assembled(target: Target, files: Mapping[str, StoredFile]) -> None:
    """Check that files on a disk are still there, before those are removed that they replace.

    Raises:
        OutputError: If one is not, or has another size.
    """
    for suffix, file in files.items() if not target.is_remote else ():
        path, final = target.partial(suffix), target.final(suffix)
        try:
            if os.path.lexists(path):
                status = os.lstat(path)
                is_whole = stat.S_ISREG(status.st_mode) and status.st_size == file.size_bytes
            else:
                is_whole = digest_file(final) == file.digest  # published before a crash
        except (OSError, InputError):
            is_whole = False
        if not is_whole:
            raise OutputError(
                f"{path}: expected the {file.size_bytes:,} bytes that were completed there, got another file or none; "
                f"something else has changed it; run the same command again: it makes what was lost"
            )


def _publish_files(dataset: Dataset, others: Sequence[str], last: str) -> None:
    target = dataset.target
    folder = os.path.dirname(target.prefix)
    try:
        if os.path.exists(target.partial(last)):  # otherwise it is published, as are all before it
            _withdraw_files(target, last)
            for suffix in others:
                if suffix in dataset.suffixes:
                    _rename(target, suffix)
                else:
                    remove_if_present(target.final(suffix))
            sync_folder(folder)
            _rename(target, last)
            sync_folder(folder)
    except OSError as error:
        raise output_error(target.prefix, error) from error


def withdraw(target: Target, ledger: Ledger) -> None:
    """Remove an earlier dataset's manifest and `.idx` or `.pbin`, if a new one is about to be published.

    Raises:
        OutputError: If they cannot be removed.
    """
    last = target.publishing_order[-1]
    if not target.is_remote:
        try:
            _withdraw_files(target, last)
        except OSError as error:
            raise output_error(target.prefix, error) from error
    elif not _is_object_published(target, ledger):
        remove_if_present(manifest_path(target.prefix))
        remove_if_present(target.final(last))


def _withdraw_files(target: Target, last: str) -> None:
    if os.path.exists(target.partial(last)):
        remove_if_present(manifest_path(target.prefix))
        remove_if_present(target.final(last))


def _is_object_published(target: Target, ledger: Ledger) -> bool:
    """Tell whether the last object of a dataset is published, and so all before it: it carries its upload's tag."""
    last = target.publishing_order[-1]
    return is_completed(require_upload(target.final(last), target.partial(last), ledger))


def _rename(target: Target, suffix: str) -> None:
    with contextlib.suppress(FileNotFoundError):  # published before a crash
        os.replace(target.partial(suffix), target.final(suffix))


def shard_provenance(
    results: Sequence[tuple[ShardTask, ShardResult]], work_dir: str, parts: Sequence[KeyResult | None]
) -> tuple[ShardProvenance, ...]:
    """Return the provenance of a part of each shard, None for one without, with the shard's first line in its input."""
    provenance = []
    for (task, result), part, (first_line, first_offset) in zip(results, parts, first_places(results), strict=True):
        file = result.provenance if part is None or part.provenance is None else part.provenance
        if file is None:
            continue
        provenance.append(
            ShardProvenance(
                path=stored_path(work_dir, file),
                input=None if task.files else task.input,
                first_input=task.input,
                first_line=first_line,
                first_offset=first_offset,
            )
        )
    return tuple(provenance)


def shard_quarantine(
    results: Sequence[tuple[ShardTask, ShardResult]], work_dir: str, inputs: Sequence[str] | Mapping[int, str]
) -> tuple[ShardQuarantine, ...]:
    """Return each shard's bad records, with the number of its first line; `inputs` are the paths as given."""
    return tuple(
        ShardQuarantine(
            path=stored_path(work_dir, result.quarantine),
            files=[inputs[number] for number in task.inputs],
            first_line=first_line,
            first_offset=first_offset,
        )
        for (task, result), (first_line, first_offset) in zip(results, first_places(results), strict=True)
        if result.quarantine is not None
    )


def first_places(results: Sequence[tuple[ShardTask, ShardResult]]) -> list[tuple[int, int]]:
    """Return for each shard the 1-based number of its first line in its input, and what its offsets count from."""
    places: list[tuple[int, int]] = []
    for _, group in groupby(results, key=lambda pair: pair[0].input):
        line, offset = 1, 0
        for task, result in group:
            places.append((line, 0 if task.form.has_absolute_offsets else offset))
            line, offset = line + result.num_lines, offset + result.text_bytes
    return places
