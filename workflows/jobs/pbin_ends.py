"""The parts of a `.pbin` besides its tokens: the token size, the header before them, the pickled index after them.

Header and index are written to files in the work folder, from which the output is then assembled by ranges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsindex.errors import TokenizerError
from dsindex.formats.mmididx import CHUNK_ITEMS, read_index
from dsindex.formats.pbin import PbinHeader, PbinIndexWriter, token_bytes_for_vocabulary
from dsindex.merging import Piece
from dsindex.storage import atomic_writer, write_whole
from dsindex.text.tokenizer import shared_tokenizer
from workflows.state.publishing import PbinEnds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.formats.pbin import PbinVersion
    from dsindex.formats.raw_index import RunTasks
    from dsindex.merging import Part
    from dsindex.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class PbinIndexTask:
    """Writing the index of a `.pbin` from the lengths in the shards' `.idx` files."""

    idx_paths: tuple[str, ...]
    """The shards' `.idx` files, in output order."""
    header: PbinHeader
    path: str


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


def make_ends(header: PbinHeader, parts: Sequence[Part], *, stem: str, identity: str, run_tasks: RunTasks) -> PbinEnds:
    """Write the header and the index of a `.pbin` to files of their own.

    Args:
        header: The header of the `.pbin`.
        parts: The shards, in output order, with one sequence per document.
        stem: Path of both files, without suffix.
        identity: Id of the parts, so that ranges merged from other parts are not reused.
        run_tasks: Runs `write_pbin_index`.
    """
    head = header.to_bytes()
    write_whole(f"{stem}.head", head)
    task = PbinIndexTask(idx_paths=tuple(part.idx_path for part in parts), header=header, path=f"{stem}.index")
    [index_bytes] = run_tasks(write_pbin_index, [task])
    return PbinEnds(
        head=Piece(path=f"{stem}.head", identity=f"{identity}.head", offset=0, size_bytes=len(head)),
        index=Piece(path=task.path, identity=f"{identity}.index", offset=0, size_bytes=index_bytes),
    )


def write_pbin_index(task: PbinIndexTask) -> int:
    """Write the index of a `.pbin` to a file atomically; return its size in bytes."""
    with atomic_writer(task.path) as file:
        writer = PbinIndexWriter(file.write, task.header)
        for idx_path in task.idx_paths:
            lengths = read_index(idx_path).sequence_lengths
            for begin in range(0, len(lengths), CHUNK_ITEMS):
                writer.add(lengths[begin : begin + CHUNK_ITEMS])
        writer.close()
    return file.size_bytes
