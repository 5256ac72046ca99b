"""Encode a record as tokens and mask, which depend only on the record, the configuration and the tokenizer.

A conversation that is too long is refused, truncated or split, according to `too_long`. Splitting cuts between
exchanges, puts as many as fit into each sequence, and repeats the whole prompt in each (text fields, leading system
messages).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from dsindex.errors import InputError, RecordProblem
from dsindex.instruction.chat import ChatTemplate, write_conversation
from dsindex.instruction.construction import MessageConstruction, Segment, group_exchanges
from dsindex.instruction.messages import TOOL_ROLES
from dsindex.instruction.records import check_text, parse_record, read_conversation, strings_in
from dsindex.instruction.splits import fingerprint_content
from dsindex.instruction.tokens import ChatTokenizer, mask_between_markers, mask_from_spans
from dsindex.text.jq import write_record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from dsindex.guarded.limits import Limits
    from dsindex.instruction.chat import Rendered
    from dsindex.instruction.config import InstructionConfig
    from dsindex.instruction.messages import Message
    from dsindex.text.jq import PatternAnswers

_T = TypeVar("_T")


_RENDERED_AHEAD = 4
"""Choices of messages rendered at once, since a request alone takes as long as rendering one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedConversation:
    """Tokens and mask of one record: a document of one or more sequences."""

    tokens: NDArray[np.uint32]
    mask: NDArray[np.uint8]
    """1 for trainable, 0 for masked; same shape as tokens."""
    lengths: NDArray[np.int64]
    """Tokens of each sequence; more than one only if a long conversation was split."""
    fingerprint: bytes
    """Hash of the content for `split_by_hash`, 16 bytes."""
    cut: int
    """Tokens left out: the end of a truncated conversation, and parts of a split one without a reply."""
    special_in_text: bool
    """Whether the record's own text contains a special token's string."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sequence:
    tokens: NDArray[np.uint32]
    mask: NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """A record that waits for the result of the template or the patterns."""

    request: bytes
    finish: Callable[[Any], EncodedConversation]
    """Turns the result into tokens."""


_Encode = Callable[[Iterator[list[int]]], Iterator[_Sequence]]
"""Encode the same record with other choices of its messages, given by their positions."""


class InstructionEncoder:
    """Encodes records by message construction or by a chat template. Picklable and thread-safe.

    Args:
        config: The form of the records, and what is trainable.
        tokenizer: The tokenizer, with its names of special tokens and its chat templates.
        limits: Time and memory limits of the template or the patterns for one record; None for the defaults.

    Raises:
        TokenizerError: If a special token is not exactly one id.
        InputError: If a pattern or the template cannot be used.
    """

    def __init__(self, config: InstructionConfig, tokenizer: ChatTokenizer, *, limits: Limits | None = None) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._limits = limits
        self.special_ids = {name: tokenizer.special_id(name, text) for name, text in config.special_tokens.items()}
        """Name -> id of the configured special tokens."""
        self._construction = MessageConstruction(config, limits=limits) if config.message_construction else None
        self._template = None if self._construction else _open_template(config, tokenizer, limits)
        self._markers = {
            text: tokenizer.special_id(name, text)
            for name, text in (
                ("b_include_to_loss_token", config.b_include_to_loss_token),
                ("e_include_to_loss_token", config.e_include_to_loss_token),
            )
            if text is not None
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._config, self._tokenizer, self._limits)

    def encode(self, record: Mapping[str, Any]) -> EncodedConversation:
        """Encode one record.

        Args:
            record: A JSON object, as parsed by `json.loads`.

        Returns:
            Tokens and mask of the same length, at least one trainable token in each sequence.

        Raises:
            RecordProblem: If the record is not a conversation with a trainable token.
            LimitReachedError: If the template or a pattern takes too much time or memory.
        """
        [encoded] = self._encode_all([lambda: record])
        if isinstance(encoded, RecordProblem):
            raise encoded
        return encoded

    def encode_lines(self, lines: Sequence[bytes]) -> Iterator[EncodedConversation | RecordProblem]:
        """Encode records as stored in a file, in order; much faster than one by one.

        Args:
            lines: JSON objects without their newlines, a few MiB together.

        Yields:
            For each record, the result of `encode` or the problem that it raises.

        Raises:
            LimitReachedError: At the first record that takes too much time or memory.
        """
        return self._encode_all([functools.partial(parse_record, line) for line in lines])

    def _encode_all(
        self, readers: Sequence[Callable[[], Mapping[str, Any]]]
    ) -> Iterator[EncodedConversation | RecordProblem]:
        begin = self._begin_construction if self._construction else self._begin_chat
        begun = [_attempt(_then(reader, begin)) for reader in readers]
        answers = self._ask([conversation.request for conversation in begun if isinstance(conversation, _Begun)])
        for conversation in begun:
            if isinstance(conversation, RecordProblem):
                yield conversation
            else:
                yield _attempt(functools.partial(conversation.finish, next(answers)))

    def _ask(self, requests: Sequence[bytes]) -> Iterator[Any]:
        if self._construction is not None:
            return self._construction.read_all(requests)
        return self._chat_template.render_all(requests)

    def _begin_construction(self, record: Mapping[str, Any]) -> _Begun:
        construction = self._construction
        if construction is None:
            raise TypeError("expected message_construction in the configuration")
        _check_object(record)
        for text in strings_in(record):
            check_text(text)  # jq's error would be about JSON escapes

        def finish(answers: PatternAnswers) -> EncodedConversation:
            fields = construction.read_fields(answers)
            parts = construction.build_parts(fields, answers)
            has_special = self._check_texts([part.text for part in parts])

            def encode(choices: Iterator[list[int]]) -> Iterator[_Sequence]:
                for wanted in map(set, choices):
                    kept = [part for number, part in enumerate(parts) if not part.is_message or number in wanted]
                    yield self._encode_segments(construction.lay_out(kept))

            whole = self._encode_segments(construction.lay_out(parts))
            return self._finish(whole, group_exchanges(parts), encode, content=fields, special_in_text=has_special)

        return _Begun(request=write_record(record), finish=finish)

    def _begin_chat(self, record: Mapping[str, Any]) -> _Begun:
        config = self._config
        _check_object(record)
        conversation = read_conversation(
            record,
            record_format=config.record_format,
            roles=config.role_mapping,
            learn=config.learn,
            assistant_role=config.assistant_role,
        )
        messages, variables = conversation.messages, conversation.variables
        if self._markers and conversation.learnt is not None:
            raise RecordProblem(
                "bad-field",
                "expected every reply to be learnt: markers leave none out, but {% generation %} can",
            )
        content = {"messages": messages, **variables}
        texts = list(strings_in(content))
        for text in texts:
            check_text(text)
        has_special = self._check_texts(texts)
        num_system = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
        exchanges = _group_messages(messages, num_system, config.assistant_role)

        def write(chosen: Sequence[int]) -> bytes:
            kept = (*range(num_system), *chosen)
            learnt = conversation.learnt
            places = None if learnt is None else [place for place, number in enumerate(kept) if number in learnt]
            return write_conversation([messages[number] for number in kept], variables, learnt=places)

        def encode(choices: Iterator[list[int]]) -> Iterator[_Sequence]:
            while ahead := [write(chosen) for chosen in islice(choices, _RENDERED_AHEAD)]:
                yield from map(self._tokenize, self._chat_template.render_all(ahead))

        def finish(rendered: Rendered | RecordProblem) -> EncodedConversation:
            whole = self._tokenize(rendered)
            return self._finish(whole, exchanges, encode, content=content, special_in_text=has_special)

        request = write_conversation(messages, variables, learnt=conversation.learnt)
        return _Begun(request=request, finish=finish)

    def _finish(
        self,
        whole: _Sequence,
        exchanges: Sequence[Sequence[int]],
        encode: _Encode,
        *,
        content: object,
        special_in_text: bool,
    ) -> EncodedConversation:
        if not whole.mask.any():
            raise RecordProblem("nothing-learnt", "expected at least one token to learn, got a mask of zeros only")
        sequences, limit, cut = [whole], self._config.max_length, 0
        if limit is not None and len(whole.tokens) > limit:
            sequences, cut = self._shorten(whole, limit, exchanges, encode)
        return EncodedConversation(
            tokens=np.concatenate([sequence.tokens for sequence in sequences]),
            mask=np.concatenate([sequence.mask for sequence in sequences]),
            lengths=np.array([len(sequence.tokens) for sequence in sequences], dtype=np.int64),
            fingerprint=fingerprint_content(content),
            cut=cut,
            special_in_text=special_in_text,
        )

    def _shorten(
        self,
        whole: _Sequence,
        limit: int,
        exchanges: Sequence[Sequence[int]],
        encode: _Encode,
    ) -> tuple[list[_Sequence], int]:
        """Return sequences of at most `limit` tokens, and the number of tokens left out."""
        if self._config.too_long == "refuse":
            raise RecordProblem("too-long", f"expected at most {limit} tokens, got {len(whole.tokens)}; see `too_long`")
        if self._config.too_long == "truncate":
            first = _Sequence(tokens=whole.tokens[:limit], mask=whole.mask[:limit])
            if not first.mask.any():
                raise RecordProblem("nothing-learnt", f"nothing is trained on in the first {limit} tokens")
            return [first], len(whole.tokens) - limit
        sequences = _split_exchanges(limit, exchanges, encode)
        kept = [sequence for sequence in sequences if sequence.mask.any()]
        if not kept:
            raise RecordProblem("nothing-learnt", "nothing is trained on in any of the parts")
        return kept, sum(len(sequence.tokens) for sequence in sequences) - sum(len(kept_.tokens) for kept_ in kept)

    def _encode_segments(self, segments: Sequence[Segment]) -> _Sequence:
        tokens: list[NDArray[np.uint32]] = []
        for segment in segments:
            if segment.special is not None:
                tokens.append(np.array([self.special_ids[segment.special]], dtype=np.uint32))
            else:
                tokens.append(self._tokenizer.encode(segment.text).ids)
        masks = [
            np.full(len(ids), segment.trainable, dtype=np.uint8) for ids, segment in zip(tokens, segments, strict=True)
        ]
        return _Sequence(tokens=np.concatenate(tokens), mask=np.concatenate(masks))

    @property
    def _chat_template(self) -> ChatTemplate:
        if self._template is None:
            raise TypeError("expected a chat template in the configuration")
        return self._template

    def _tokenize(self, rendered: Rendered | RecordProblem) -> _Sequence:
        if isinstance(rendered, RecordProblem):
            raise rendered
        text, spans = rendered
        encoded = self._tokenizer.encode(text)
        if self._markers:
            begin_id, end_id = self._markers.values()
            mask = mask_between_markers(encoded.ids, begin_id=begin_id, end_id=end_id)
        else:
            mask = mask_from_spans(encoded.offsets, spans, num_characters=len(text))
        return _Sequence(tokens=encoded.ids, mask=mask)

    def _check_texts(self, texts: Sequence[str]) -> bool:
        """Tell whether one of the texts contains a special token's string; refuse a marker's string."""
        found = {special for text in texts for special in self._tokenizer.special_tokens_in(text)}
        for marker in self._markers:
            if any(marker in text for text in texts):
                raise RecordProblem(
                    "marker-in-text", f"the marker {marker!r} stands in a text and would change the mask"
                )
        if found and self._config.special_tokens_in_text == "refuse":
            raise RecordProblem("bad-text", f"expected no special token in a text, got {min(found)!r}")
        return bool(found)


def _restore(config: InstructionConfig, tokenizer: ChatTokenizer, limits: Limits | None) -> InstructionEncoder:
    return InstructionEncoder(config, tokenizer, limits=limits)


def _attempt(step: Callable[[], _T]) -> _T | RecordProblem:
    """Return the result of a step, or the problem of its record."""
    try:
        return step()
    except RecordProblem as problem:
        return problem
    except RecursionError:
        return RecordProblem("bad-field", "expected a record of usual depth, got one nested too deep")


def _then(read: Callable[[], Mapping[str, Any]], begin: Callable[[Mapping[str, Any]], _Begun]) -> Callable[[], _Begun]:
    return lambda: begin(read())


def _check_object(record: object) -> None:
    if not isinstance(record, dict):
        raise RecordProblem("bad-field", f"expected an object, got {type(record).__name__}")


def _open_template(config: InstructionConfig, tokenizer: ChatTokenizer, limits: Limits | None) -> ChatTemplate:
    source, tool_source = config.chat_template, None
    if source is None:
        source = tokenizer.chat_templates.get(config.chat_template_name)
        if config.chat_template_name == "default":
            tool_source = tokenizer.chat_templates.get("tool_use")  # as in transformers
    if source is None:
        known = ", ".join(sorted(tokenizer.chat_templates)) or "none"
        raise InputError(
            f"expected message_construction, a chat_template, or a tokenizer with a chat template "
            f"{config.chat_template_name!r}; the tokenizer has {known}"
        )
    return ChatTemplate(
        source,
        tool_source=tool_source,
        constants={
            **tokenizer.special_tokens,
            **config.special_tokens,
            "chat_template_data": config.chat_template_data,
            **config.template_variables,
        },
        date=config.template_date,
        join_lines=config.join_template_lines,
        assistant_role=config.assistant_role,
        finds_generation=config.b_include_to_loss_token is None,
        limits=limits,
    )


def _group_messages(messages: Sequence[Message], num_system: int, assistant: str) -> list[list[int]]:
    """Cut a conversation before each message that follows an assistant's and is neither an assistant's nor a tool's."""
    groups: list[list[int]] = []
    for number in range(num_system, len(messages)):
        follows_reply = number > num_system and messages[number - 1]["role"] == assistant
        if not groups or (follows_reply and messages[number]["role"] not in {assistant, *TOOL_ROLES}):
            groups.append([])
        groups[-1].append(number)
    return groups


def _split_exchanges(limit: int, exchanges: Sequence[Sequence[int]], encode: _Encode) -> list[_Sequence]:
    """Divide the exchanges, in order, into sequences with as many as fit in each."""
    sequences: list[_Sequence] = []
    first = 0
    while first < len(exchanges):
        best: _Sequence | None = None
        last = first
        # One more exchange each time, encoded lazily.
        for tried in encode(list(chain(*exchanges[first:end])) for end in range(first + 1, len(exchanges) + 1)):
            if len(tried.tokens) > limit:
                break
            best, last = tried, last + 1
        if best is None and tried.mask.any():
            raise RecordProblem(
                "too-long",
                f"exchange {first + 1} and its prompt: expected at most {limit} tokens, got {len(tried.tokens)}",
            )
        # A single exchange without trainable tokens may be too long: it is left out in any case.
        sequences.append(tried if best is None else best)
        first = max(last, first + 1)
    if not sequences:
        raise RecordProblem("too-long", f"expected at most {limit} tokens, and there is no exchange to split at")
    return sequences
