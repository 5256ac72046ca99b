"""Turn text with trainable spans into tokens and a mask; masking never changes how the text is tokenized.

The whole text is tokenized once, and the tokenizer returns the characters that each token covers (its offsets). **A
token is trainable if and only if at least one of its characters is in a trainable span**, so a token that straddles a
boundary is trainable. If a byte-level tokenizer splits a character, every piece counts as covering it. A token that
covers no characters, which some tokenizers produce, is trainable if the character at its position is trainable.
"""

from __future__ import annotations

import functools
import json
import unicodedata
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import xxhash

from dsindex.chat.conversations import check_text
from dsindex.errors import RecordProblem, TokenizerError
from dsindex.formats.dtypes import starts_of
from dsindex.store.read import is_stored
from dsindex.text.encoders import TokenBatch, encode_all, encode_by_reference, make_encoder
from dsindex.text.engines import adds_prefix_space, difference_error
from dsindex.text.tokenizer import (
    Tokenizer,
    load_tokenizer,
    read_folder_config,
    read_tokenizer_bytes,
    shared_tokenizer,
    token_text,
    wrap_errors,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from dsindex.chat.thoughts import CharacterSpan
    from dsindex.text.engines import Engine


class MarkedText(NamedTuple):
    """A text and its trainable spans of characters."""

    text: str
    spans: tuple[CharacterSpan, ...]
    encoded: bytes
    """The text in UTF-8."""
    ends: tuple[int, ...]
    """For each span, the offset of its first byte and of the byte after its last; shape [2 * spans]."""

    @classmethod
    def of(cls, text: str, spans: Iterable[CharacterSpan]) -> MarkedText:
        """Encode a text, and convert its spans from characters to bytes.

        Raises:
            RecordProblem: If the text has a lone surrogate.
        """
        encoded, all_spans = check_text(text), tuple(spans)
        ends = tuple(chain.from_iterable(all_spans))
        if len(text) != len(encoded):
            byte_offsets = {0: 0}
            for previous, index in pairwise(sorted({0, *ends})):
                byte_offsets[index] = byte_offsets[previous] + len(text[previous:index].encode())
            ends = tuple(byte_offsets[end] for end in ends)
        return cls(text, all_spans, encoded, ends)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedTokens:
    """The tokens of a text, and their mask."""

    tokens: NDArray[np.uint32]
    mask: NDArray[np.uint8]
    """1 for trainable, 0 for masked; same shape as tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedText:
    """The tokens of a text, and the characters that each token covers."""

    ids: NDArray[np.uint32]
    offsets: NDArray[np.int64]
    """For each token, the index of its first character and of the character after its last; shape [tokens, 2]."""


class ChatTokenizer:
    """A tokenizer for instruction data: exact offsets, no post-processor, no truncation. Picklable.

    Args:
        tokenizer_json: The text of a `tokenizer.json`.
        special_tokens: Name, such as `bos_token` -> text of the token; templates read them as variables.
        chat_templates: Name -> jinja2 source; the main template is called `default`.

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
        self._json = tokenizer_json
        self.special_tokens = dict(special_tokens or {})
        self.chat_templates = dict(chat_templates or {})
        with wrap_errors("not the text of a tokenizer.json"):
            # Without special tokens, a post-processor only changes offsets: it may exclude the blanks of a token.
            parts = msgspec.json.decode(tokenizer_json, type=dict[str, msgspec.Raw])
            content = msgspec.json.encode(parts | {"post_processor": msgspec.Raw(b"null")})
            self._data = Tokenizer(
                name="the tokenizer", content=content, sha256="", vocabulary_size=0, special_tokens=()
            )
            self._tokenizer = shared_tokenizer(self._data)

    @classmethod
    def from_path(cls, path: Path) -> ChatTokenizer:
        """Read a `tokenizer.json`, or a folder with one and, optionally, a configuration and chat templates.

        Raises:
            TokenizerError: If a file is missing or invalid.
        """
        special_tokens, chat_templates = read_chat_files(path)
        tokenizer = load_tokenizer(str(path))
        return cls(tokenizer.content.decode(), special_tokens=special_tokens, chat_templates=chat_templates)

    def __reduce__(self) -> tuple[Any, ...]:
        make = functools.partial(ChatTokenizer, special_tokens=self.special_tokens, chat_templates=self.chat_templates)
        return make, (self._json,)

    def encode(self, text: str) -> EncodedText:
        """Tokenize a text, without the tokens that a post-processor would add.

        Raises:
            RecordProblem: If the text contains a lone surrogate.
            UnencodableError: If the library fails on the text.
        """
        check_text(text)
        call = functools.partial(self._tokenizer.encode, add_special_tokens=False)
        encoding = encode_all(lambda texts: call(texts[0]), [text], self._data)
        offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        return EncodedText(ids=np.array(encoding.ids, dtype=np.uint32), offsets=offsets)

    def encode_ids(self, texts: Sequence[str]) -> TokenBatch:
        """Tokenize each text separately; the texts must not contain lone surrogates.

        Raises:
            UnencodableError: If the library fails on some of the texts.
        """
        return TokenBatch.of_rows(encode_by_reference(self._data, texts, add_special_tokens=False))

    def encode_spans(self, texts: Sequence[MarkedText]) -> list[MaskedTokens]:
        """Tokenize each text separately, and mask the tokens without a trainable character.

        Raises:
            UnencodableError: If the library fails on one of the texts.
        """
        masked_tokens = []
        for text in texts:
            encoded = self.encode(text.text)
            spans = np.array([span for span in text.spans if span[0] < span[1]], np.int64).reshape(-1, 2)
            begins, ends = encoded.offsets.T
            masked_tokens.append(MaskedTokens(tokens=encoded.ids, mask=mask_from_spans(begins, ends, spans)))
        return masked_tokens

    def special_id(self, name: str, text: str) -> int:
        """Return the id of a special token.

        Raises:
            TokenizerError: If the text is not exactly one token with its own id.
        """
        ids = self.encode(text).ids.tolist()
        # A single id is not enough: it may be the id of the unknown token.
        if len(ids) != 1 or self._tokenizer.token_to_id(text) != ids[0]:
            shown = ", ".join(f"{self.token_text(i)!r} ({i})" for i in ids) or "none"
            raise TokenizerError(
                f"special token {name} = {text!r} is not a single id of its own, but {len(ids)} ids: {shown}",
                hint="make it one of the tokenizer's added tokens, or choose one that the tokenizer has",
            )
        return int(ids[0])

    def split_tokens(self, texts: Iterable[str]) -> list[str]:
        """Return the texts that the tokenizer does not encode as one token with its own id."""
        return [text for text in texts if self.encode(text).ids.tolist() != [self._tokenizer.token_to_id(text)]]

    def token_text(self, token_id: int) -> str:
        """Return a token as the vocabulary spells it, for messages."""
        return str(self._tokenizer.id_to_token(token_id))

    def decode(self, ids: NDArray[np.uint32]) -> str:
        """Return the text of tokens, including special tokens."""
        return str(self._tokenizer.decode(ids.tolist(), skip_special_tokens=False))

    def special_contents(self) -> list[str]:
        """Return the strings of the special tokens among the added tokens."""
        return [token.content for token in self._tokenizer.get_added_tokens_decoder().values() if token.special]


def read_chat_files(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Read the special tokens and the chat templates of a tokenizer's folder, each as name -> text.

    The layout is Hugging Face's: `chat_template` in `tokenizer_config.json` is one template, called `default`, or a
    list of named templates. The files `chat_template.jinja` and `additional_chat_templates/*.jinja`, which newer
    folders have, override it. If the path is a `tokenizer.json`, both mappings are empty.

    Raises:
        TokenizerError: If a file is unreadable or invalid.
    """
    if not folder.is_dir():
        return {}, {}
    config = read_folder_config(str(folder))
    tokens = {name: token_text(value) for name, value in config.items() if name.endswith("_token")}
    chat_template = config.get("chat_template") or []
    entries = [{"name": "default", "template": chat_template}] if isinstance(chat_template, str) else chat_template
    try:
        templates = {entry["name"]: entry["template"] for entry in entries}
    except (TypeError, KeyError):
        templates = {"": None}
    if not all(isinstance(text, str) for text in templates.values()):
        raise TokenizerError(f"{folder}: chat_template is neither a text nor a list of names and templates")
    template_files = [("default", folder / "chat_template.jinja")]
    template_files += [(file.stem, file) for file in sorted((folder / "additional_chat_templates").glob("*.jinja"))]
    for name, file in template_files:
        if is_stored(str(file)):
            try:
                templates[name] = read_tokenizer_bytes(str(file)).decode()
            except UnicodeDecodeError as error:
                problem = f"{file}: the chat template is not UTF-8 (byte {error.start})"
                raise TokenizerError(problem) from error
    return {name: text for name, text in tokens.items() if text is not None}, templates


def mask_from_spans(begins: NDArray[np.int64], ends: NDArray[np.int64], spans: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return a mask that is 1 for the tokens that cover at least one trainable position.

    Positions are characters, or bytes, in all arguments.

    Args:
        begins: First position of each token, ascending; tokens may overlap.
        ends: Position after the last of each token, ascending; same shape. A token that covers nothing counts as
            covering the position where it begins.
        spans: Begin and end (exclusive) of the trainable spans, none of them empty; shape [spans, 2].

    Returns:
        1 for trainable, 0 for masked; shape [tokens].

    >>> mask_from_spans(np.array([0, 2, 5]), np.array([2, 5, 6]), np.array([[3, 5]]))
    array([0, 1, 0], dtype=uint8)
    """
    first = np.minimum(np.searchsorted(ends, spans[:, 0], side="right"), np.searchsorted(begins, spans[:, 0]))
    after = np.searchsorted(begins, spans[:, 1])
    mask = np.zeros(len(ends), np.uint8)
    for begin, end in zip(first.tolist(), after.tolist(), strict=True):
        mask[begin:end] = 1
    return mask


def mask_between_markers(ids: NDArray[np.uint32], *, begin_id: int, end_id: int) -> MaskedTokens | RecordProblem:
    """Mask all tokens except those strictly between a begin marker and an end marker, as in Modalities.

    Args:
        ids: The tokens of one whole conversation.
        begin_id: The token that opens a trainable part; it is masked.
        end_id: The token that closes a trainable part; it is masked.

    Returns:
        The tokens and their mask; or a problem if the markers do not alternate, starting with `begin_id` and ending
        with `end_id`.

    Source: Modalities, LossMaskingCollateFnWrapper. It runs on blocks cut from a stream, so it accepts a part without
    its end marker; a conversation is complete, so here every part must have both markers.

    >>> mask_between_markers(np.array([5, 0, 7, 8, 1, 5], dtype=np.uint32), begin_id=0, end_id=1).mask
    array([0, 0, 1, 1, 0, 0], dtype=uint8)
    """
    opens, closes = ids == begin_id, ids == end_id
    depth = np.cumsum(opens.astype(np.int64) - closes)
    if ids.size and (depth.min() < 0 or depth.max() > 1 or depth[-1] != 0):
        return RecordProblem(
            "unbalanced-markers",
            f"{int(opens.sum())} begin markers and {int(closes.sum())} end markers do not alternate; "
            "the template must close every trainable part",
        )
    return MaskedTokens(tokens=ids, mask=((depth == 1) & ~opens).astype(np.uint8))


# Tokenize many texts at once with the fast engine, and derive from the ids which bytes each token covers.
#
# The fast engine returns only ids, no offsets. **A token of byte-level BPE is a run of the text's bytes**, so the
# cumulative byte lengths of the tokens are their positions in the text. This holds if the vocabulary is written in byte
# characters, the tokenizer does not prepend a space, and the normalizer does not change the text. There are three
# checks. `why_unplaced` checks the tokenizer's configuration. Each text must be unchanged by the normalizer and have as
# many bytes as its tokens (it has more if, for example, an added token swallows blanks); the reference tokenizes texts
# that fail this check. An audit compares some texts with the reference; a difference is an error.

AUDITED_SHARE = 512
"""One text in this many, chosen by a hash of the text, is also tokenized with the reference and compared."""
AUDITED_BYTES = 64 << 10
"""Longest text that is audited, because the reference takes seconds for a few MB."""


class FastTexts:
    """The fast engine for instruction data. Thread-safe.

    Args:
        tokenizer: The tokenizer.
        engine: A fast engine for the tokenizer, without the post-processor.
        reference: The same tokenizer in the reference implementation, which returns offsets.
    """

    def __init__(self, tokenizer: Tokenizer, engine: Engine, reference: ChatTokenizer) -> None:
        self._tokenizer, self._engine, self._reference = tokenizer, engine, reference
        self._encoder = make_encoder(tokenizer, engine)

    def encode_ids(self, texts: Sequence[str]) -> TokenBatch:
        """Tokenize each text separately.

        Raises:
            TokenizerError: If the engine and the reference return different tokens for an audited text.
        """
        batch = self._encoder.encode(texts)
        for text, tokens in zip(texts, batch.split(), strict=True):
            if _is_audited(text.encode()) and not np.array_equal(tokens, self._reference.encode(text).ids):
                raise difference_error(self._tokenizer, self._engine, text)
        return batch

    def encode_spans(self, texts: Sequence[MarkedText]) -> list[MaskedTokens]:
        """Tokenize each text separately, and mask the tokens without a trainable byte.

        Args:
            texts: Texts with their trainable spans.

        Raises:
            TokenizerError: If the engine and the reference return different tokens or masks for an audited text.
        """
        batch = self._encoder.encode([text.text for text in texts])
        offsets = starts_of(self._token_bytes.take(batch.tokens))
        # The byte offset, counted over the tokens of all texts, at which each text's tokens begin.
        bases = offsets[starts_of(batch.lengths)]
        mask = mask_from_spans(offsets[:-1], offsets[1:], _byte_spans(texts, bases))
        masked_tokens = [
            MaskedTokens(tokens=tokens, mask=mask[begin:end])
            for tokens, (begin, end) in zip(batch.split(), pairwise(starts_of(batch.lengths).tolist()), strict=True)
        ]
        are_placed = (np.diff(bases) == [len(text.encoded) for text in texts]).tolist()
        for number, rendered in enumerate(texts):
            has_positions = are_placed[number] and self._is_unchanged(rendered.encoded)
            if has_positions and not _is_audited(rendered.encoded):
                continue
            [reference] = self._reference.encode_spans([rendered])
            if has_positions and not _are_equal(masked_tokens[number], reference):
                raise difference_error(self._tokenizer, self._engine, rendered.text)
            masked_tokens[number] = reference
        return masked_tokens

    def why_unplaced(self) -> str | None:
        """Return why the byte lengths of tokens do not give their positions in the text; None if they do."""
        document = self._tokenizer_json
        if document["model"].get("byte_fallback"):
            return "masks need the characters of each token, which it tells for byte-level BPE alone"
        if adds_prefix_space(document):
            return "masks need the characters of each token, and the tokenizer puts a space before each text"
        for content in (token["content"] for token in document.get("added_tokens") or []):
            if not content.isascii() and content in document["model"]["vocab"]:
                return f"masks need the characters of each token, and {content!r} stands for itself and for other bytes"
        return None

    def _is_unchanged(self, encoded: bytes) -> bool:
        """Tell whether the normalizer leaves a text unchanged; for byte-level BPE, the fast engine accepts only NFC."""
        has_normalizer = self._tokenizer_json.get("normalizer") is not None
        return not has_normalizer or encoded.isascii() or unicodedata.is_normalized("NFC", encoded.decode())

    @functools.cached_property
    def _tokenizer_json(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self._tokenizer.content)
        return document

    @functools.cached_property
    def _token_bytes(self) -> NDArray[np.int32]:
        """Byte length of each token, indexed by id; 0 for an unused id."""
        vocabulary: dict[str, int] = self._tokenizer_json["model"]["vocab"]
        added_tokens = self._tokenizer_json.get("added_tokens") or []
        size = 1 + max(chain(vocabulary.values(), (token["id"] for token in added_tokens)), default=0)
        lengths = np.zeros(size, np.int32)
        # In the vocabulary, each character stands for one byte. Added tokens are plain text, so they are set below.
        lengths[list(vocabulary.values())] = list(map(len, vocabulary))
        for token in added_tokens:
            lengths[token["id"]] = len(token["content"].encode())
        return lengths


def _byte_spans(texts: Sequence[MarkedText], bases: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return begin and end (exclusive) of all non-empty spans, as byte offsets over all texts; shape [spans, 2].

    If a text's tokens have fewer bytes than the text, its spans are cut at the end of its tokens, so that they do not
    mark tokens of the next text.
    """
    counts = [len(text.ends) for text in texts]
    ends = np.fromiter(chain.from_iterable(text.ends for text in texts), np.int64, count=sum(counts))
    spans = (ends + np.repeat(bases[:-1], counts)).reshape(-1, 2)
    after = np.repeat(bases[1:], counts)[::2]
    spans[:, 1] = np.minimum(spans[:, 1], after)
    return spans[spans[:, 0] < spans[:, 1]]


def _is_audited(encoded: bytes) -> bool:
    return len(encoded) <= AUDITED_BYTES and xxhash.xxh3_64_intdigest(encoded) % AUDITED_SHARE == 0


def _are_equal(first: MaskedTokens, second: MaskedTokens) -> bool:
    return np.array_equal(first.tokens, second.tokens) and np.array_equal(first.mask, second.mask)
