"""The parts of a `.pbin` besides its tokens: the token size, the header before them, the pickled index after them.

Header and index are written to the work folder, on a disk or in an object store, and the output is then assembled from
them by ranges. The index is cut into files of INDEX_FILE_BYTES, as a worker has each of them in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsindex.errors import TokenizerError
from dsindex.formats.pbin import PbinHeader, PbinIndexWriter, token_bytes_for_vocabulary
from dsindex.merging.index import read_lengths
from dsindex.merging.parts import Piece
from dsindex.shards.attempt import Attempt
from dsindex.text.tokenizer import shared_tokenizer
from workflows.state.publishing import PbinEnds, stored_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.formats.pbin import PbinVersion
    from dsindex.formats.raw_index import RunTasks
    from dsindex.merging.parts import Part
    from dsindex.objects.blocks import Bytes
    from dsindex.storage import StoredFile
    from dsindex.text.tokenizer import Tokenizer


INDEX_FILE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PbinIndexTask:
    """Writing the index of a `.pbin` from the lengths in the shards' `.idx` files."""

    parts: tuple[Part, ...]
    """The shards, in output order."""
    header: PbinHeader
    work_dir: str


def choose_token_bytes(tokenizer: Tokenizer, version: PbinVersion) -> int:
    """Return the size of a token by Modalities' rule, which counts the vocabulary without added tokens.

    Raises:
        TokenizerError: If an added token's id does not fit that size.
    """
    loaded = shared_tokenizer(tokenizer)
    vocabulary_size = loaded.get_vocab_size(with_added_tokens=False)
    try:
        token_bytes = token_bytes_for_vocabulary(vocabulary_size) if version.names_token_size else 4
    except ValueError as error:
        raise TokenizerError(f"{tokenizer.name}: {error}; choose another tokenizer") from error
    token, largest = max(loaded.get_vocab(with_added_tokens=True).items(), key=lambda item: (item[1], item[0]))
    if largest >= 1 << 8 * token_bytes:
        msg = (
            f"{tokenizer.name}: expected ids that fit {token_bytes} bytes, the size of a token in Modalities for a "
            f"vocabulary of {vocabulary_size} entries without added tokens, got {largest} for {token!r}; "
            f"`dsindex build` and then `dsindex convert` make a .pbin with larger tokens"
        )
        raise TokenizerError(msg)
    return token_bytes


def make_ends(
    header: PbinHeader, parts: Sequence[Part], *, work_dir: str, identity: str, run_tasks: RunTasks
) -> PbinEnds:
    """Write the header and the index of a `.pbin` to files of their own.

    Args:
        header: The header of the `.pbin`.
        parts: The shards, in output order, with one sequence per document.
        work_dir: The marked work folder.
        identity: Id of the parts, so that ranges merged from other parts are not reused.
        run_tasks: Runs `write_pbin_index`.

    Raises:
        OutputError: If the work folder cannot be written.
    """

    def piece(file: StoredFile, name: str) -> Piece:
        path = stored_path(work_dir, file)
        return Piece(path=path, identity=f"{identity}.{name}", offset=0, size_bytes=file.size_bytes)

    head = _write_file(work_dir, "head", header.to_bytes())
    [index] = run_tasks(write_pbin_index, [PbinIndexTask(parts=tuple(parts), header=header, work_dir=work_dir)])
    return PbinEnds(
        head=piece(head, "head"),
        index=tuple(piece(file, f"index{number}") for number, file in enumerate(index)),
    )


def write_pbin_index(task: PbinIndexTask) -> tuple[StoredFile, ...]:
    """Write the index of a `.pbin` to files of the work folder, under names unique to this attempt.

    Raises:
        InputError: If a shard is missing.
        OutputError: If the work folder cannot be written.
    """
    files: list[StoredFile] = []
    pending = bytearray()

    def write(data: Bytes) -> None:
        pending.extend(data)
        while len(pending) >= INDEX_FILE_BYTES:
            files.append(_write_file(task.work_dir, "index", pending[:INDEX_FILE_BYTES]))
            del pending[:INDEX_FILE_BYTES]

    writer = PbinIndexWriter(write, task.header)
    for lengths in read_lengths(task.parts):
        writer.add(lengths)
    writer.close()
    if pending:
        files.append(_write_file(task.work_dir, "index", pending))
    return tuple(files)


def _write_file(work_dir: str, suffix: str, content: Bytes) -> StoredFile:
    """Write a file of the work folder under a name that is used once."""
    with Attempt(work_dir, folder="shards/ends", name="ends") as attempt:
        with attempt.errors_named():
            file = attempt.open(suffix)
            file.write(memoryview(content))
            stored = file.finish()
        attempt.commit()
    return stored
