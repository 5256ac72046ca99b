"""Turn text with trainable spans into tokens and a mask; masking never changes how a text is tokenized.

The whole text is tokenized once, and the tokenizer returns the characters that each token covers (its offsets). **A
token is trainable if and only if at least one of its characters is in a trainable span**, so one that straddles a
boundary is trainable. Pieces of a byte-level tokenizer that share a character all cover it. A token without
characters, which some tokenizers produce, is trainable if the character at its position is.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from dsindex.errors import RecordProblem, TokenizerError
from dsindex.instruction.records import check_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

Span = tuple[int, int]
"""First character, and one past the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedText:
    """The tokens of a text, and the characters that each token covers."""

    ids: NDArray[np.uint32]
    offsets: NDArray[np.int64]
    """First character of each token, and one past the last; shape [tokens, 2]."""


class ChatTokenizer:
    """A tokenizer for instruction data: exact offsets, no post-processor, no truncation. Picklable.

    Args:
        tokenizer_json: The text of a `tokenizer.json`.
        special_tokens: Names such as `bos_token` -> text, for templates.
        chat_templates: Name -> jinja2 text; the main one is called `default`.

    Raises:
        TokenizerError: If the text is not a tokenizer.
    """

    def __init__(
        self,
        tokenizer_json: str,
        *,
        special_tokens: Mapping[str, str] | None = None,
        chat_templates: Mapping[str, str] | None = None,
    ) -> None:
        from tokenizers import Tokenizer

        self._json = tokenizer_json
        self.special_tokens = dict(special_tokens or {})
        self.chat_templates = dict(chat_templates or {})
        try:
            self._tokenizer = Tokenizer.from_str(_with_exact_offsets(tokenizer_json))
        except Exception as error:
            raise TokenizerError(f"expected the text of a tokenizer.json, got something else: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    @classmethod
    def from_path(cls, path: Path) -> ChatTokenizer:
        """Read a `tokenizer.json`, or a folder with one and, optionally, a configuration and chat templates.

        Raises:
            TokenizerError: If a file is missing or invalid.
        """
        from dsindex.instruction.tokenizer_files import read_tokenizer_folder
        from dsindex.text.tokenizer import load_tokenizer

        loaded, files = load_tokenizer(str(path)), read_tokenizer_folder(path)
        return cls(loaded.json.decode(), special_tokens=files.special_tokens, chat_templates=files.chat_templates)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._json, self.special_tokens, self.chat_templates)

    @property
    def vocabulary_size(self) -> int:
        """Number of ids, including added tokens."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> EncodedText:
        """Tokenize a text as a whole, without the tokens that a post-processor would add.

        Raises:
            RecordProblem: If the text contains a lone surrogate.
        """
        check_text(text)
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        return EncodedText(ids=np.array(encoding.ids, dtype=np.uint32), offsets=offsets)

    def encode_ids(self, texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Tokenize texts without lone surrogates, each on its own.

        Returns:
            The tokens, one after the other, and the number of tokens of each text.
        """
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        counts = np.fromiter(map(len, encodings), np.int64, count=len(encodings))
        ids = chain.from_iterable(encoding.ids for encoding in encodings)
        return np.fromiter(ids, np.uint32, count=int(counts.sum())), counts

    def special_id(self, name: str, text: str) -> int:
        """Return the id of a special token.

        Raises:
            TokenizerError: If the text is not exactly one token with its own id.
        """
        ids = self.encode(text).ids.tolist()
        # One id is not enough: it may be the unknown token.
        if len(ids) != 1 or self._tokenizer.token_to_id(text) != ids[0]:
            shown = ", ".join(f"{self.token_text(i)!r} ({i})" for i in ids) or "none"
            raise TokenizerError(
                f"special token {name} = {text!r}: expected exactly one id of its own, got {len(ids)}: {shown}; "
                "add it to the tokenizer's added tokens, or choose one that the tokenizer has"
            )
        return int(ids[0])

    def token_text(self, token_id: int) -> str:
        """Return a token as written in the vocabulary, for display."""
        return str(self._tokenizer.id_to_token(token_id))

    def decode(self, ids: NDArray[np.uint32]) -> str:
        """Return the text of tokens, including special tokens."""
        return str(self._tokenizer.decode(ids.tolist(), skip_special_tokens=False))

    def special_contents(self) -> list[str]:
        """Return the strings of special tokens."""
        return [token.content for token in self._tokenizer.get_added_tokens_decoder().values() if token.special]


def mask_from_spans(offsets: NDArray[np.int64], spans: Sequence[Span], *, num_characters: int) -> NDArray[np.uint8]:
    """Return a mask of the tokens that cover at least one trainable character.

    Args:
        offsets: Shape [tokens, 2], characters covered by each token, end exclusive; tokens may overlap.
        spans: Trainable characters, end exclusive, in any order.
        num_characters: Length of the text.

    Returns:
        1 for trainable, 0 for masked; shape [tokens].

    >>> mask_from_spans(np.array([[0, 2], [2, 5], [5, 6]]), [(3, 5)], num_characters=6)
    array([0, 1, 0], dtype=uint8)
    """
    trainable = np.zeros(num_characters + 1, dtype=bool)
    for begin, end in spans:
        trainable[begin:end] = True
    # Trainable characters before each position.
    before = np.zeros(num_characters + 2, dtype=np.int64)
    np.cumsum(trainable, out=before[1:])
    begins, ends = offsets[:, 0], offsets[:, 1]
    # A token without characters counts as covering the one at its position; the end of the text is never trainable.
    mask: NDArray[np.uint8] = (before[np.maximum(ends, begins + 1)] > before[begins]).astype(np.uint8)
    return mask


def mask_between_markers(ids: NDArray[np.uint32], *, begin_id: int, end_id: int) -> NDArray[np.uint8]:
    """Return a mask of the tokens strictly between begin and end markers, as in Modalities.

    Args:
        ids: The tokens of one whole conversation.
        begin_id: Opens a trainable part; not itself trainable.
        end_id: Closes a trainable part; not itself trainable.

    Returns:
        1 for trainable, 0 for masked; shape [tokens].

    Raises:
        RecordProblem: If the markers do not alternate, beginning with `begin_id` and ending with `end_id`.

    Source: Modalities, LossMaskingCollateFnWrapper, which runs on blocks cut from a stream, where a part may lack its
    end. Here conversations are complete, and every part has both.

    >>> mask_between_markers(np.array([5, 0, 7, 8, 1, 5], dtype=np.uint32), begin_id=0, end_id=1)
    array([0, 0, 1, 1, 0, 0], dtype=uint8)
    """
    opens, closes = ids == begin_id, ids == end_id
    depth = np.cumsum(opens.astype(np.int64) - closes)
    if ids.size and (depth.min() < 0 or depth.max() > 1 or depth[-1] != 0):
        raise RecordProblem(
            "unbalanced-markers",
            f"expected begin and end markers in turn, got {int(opens.sum())} begins and {int(closes.sum())} ends; "
            "the template must close every trainable part",
        )
    mask: NDArray[np.uint8] = ((depth == 1) & ~opens).astype(np.uint8)
    return mask


def show_masks(ids: NDArray[np.uint32], mask: NDArray[np.uint8], tokenizer: ChatTokenizer) -> str:
    """Return tokens for display, one line per run of equal mask: whether it is trainable, its text, pieces and ids.

    Args:
        ids: Tokens of one conversation.
        mask: 1 for trainable; same shape.
        tokenizer: The tokenizer that made the tokens.
    """
    borders = np.flatnonzero(np.diff(mask)) + 1
    lines = []
    for run, trainable in zip(
        np.split(ids, borders), mask[np.concatenate(([0], borders))] if ids.size else [], strict=False
    ):
        pieces = " ".join(tokenizer.token_text(int(token)) for token in run)
        shown = " ".join(map(str, run.tolist()))
        lines.append(f"{'learn' if trainable else '  -  '} | {tokenizer.decode(run)!r} | {pieces} | {shown}")
    return "\n".join(lines)


def _with_exact_offsets(tokenizer_json: str) -> str:
    """Return the tokenizer without `trim_offsets`, which removes blanks from offsets and never affects ids."""
    if "trim_offsets" not in tokenizer_json:
        return tokenizer_json
    described = orjson.loads(tokenizer_json)
    stack = [described.get("post_processor")]
    while stack:
        processor = stack.pop()
        if isinstance(processor, dict):
            if "trim_offsets" in processor:
                processor["trim_offsets"] = False
            stack.extend(processor.get("processors") or [])
    return orjson.dumps(described).decode()


def _restore(tokenizer_json: str, special_tokens: dict[str, str], chat_templates: dict[str, str]) -> ChatTokenizer:
    return ChatTokenizer(tokenizer_json, special_tokens=special_tokens, chat_templates=chat_templates)
