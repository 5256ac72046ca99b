"""Encode a record as tokens and mask, which depend only on the record, the configuration and the tokenizer.

A conversation that is too long is refused, truncated or split, according to `too_long`. Splitting cuts between
exchanges, puts as many as fit into each sequence, and repeats the whole prompt in each (text fields, leading system
messages).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import orjson

from dsindex.errors import InputError, RecordProblem, TokenizerError, UnencodableError
from dsindex.instruction.config import SpecialTexts, control_tokens
from dsindex.instruction.construction import MessageConstruction, Segment, group_exchanges
from dsindex.instruction.records import ANY_CONVERSATION, TOOL_ROLES, check_text, parse_record, strings_in, too_deep
from dsindex.instruction.rendered import LINE_TAG, RenderedText, read_answer, spell_text
from dsindex.instruction.splits import fingerprint_content
from dsindex.instruction.tokens import MaskedTokens, cut_at, encode_with_reference, mask_between_markers
from dsindex.text.guarded_process import GuardedWork, LimitReachedError
from dsindex.text.jq import write_record

if TYPE_CHECKING:
    import datetime
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from dsindex.instruction.config import InstructionConfig
    from dsindex.instruction.records import Conversation, ConversationReader, Message
    from dsindex.instruction.tokens import ChatTokenizer, FastTexts, Span
    from dsindex.text.guarded.limits import Limits
    from dsindex.text.jq import PatternAnswers

    Rendered: TypeAlias = tuple[str, list[Span]]


# Render messages with a chat template as the text of a conversation with its trainable spans of characters.
#
# Templates are rendered as in transformers (`rendering.py`), in guarded processes.


class ChatTemplate:
    """A compiled template. Picklable and thread-safe.

    Args:
        source: jinja2 text.
        tool_source: The template for conversations with `tools`, which some tokenizers have; None for the same.
        constants: Variables for all conversations: names of special tokens, `template_variables`.
        date: The date for `strftime_now`; without it, a template that calls it fails on every record.
        join_lines: Remove newlines between `}` and `{` first, as Modalities does.
        assistant_role: Role of the messages that the model generates.
        finds_generation: Find the text of replies by rendering beginnings of a conversation, if the template has no
            marks. Otherwise no text of such a template is trainable.
        reader: Reads the lines of `render_spelt`.
        special_tokens: Strings to look for in the records of lines.
        refuses_special: Whether a line with one of them is a bad record.
        limits: Time and memory limits for one rendering; None for the defaults.

    Raises:
        InputError: If the source is not an allowed template, or replies are to be found and cannot.
    """

    def __init__(
        self,
        source: str,
        *,
        tool_source: str | None = None,
        constants: Mapping[str, Any] | None = None,
        date: datetime.date | None = None,
        join_lines: bool = False,
        assistant_role: str = "assistant",
        finds_generation: bool = False,
        reader: ConversationReader = ANY_CONVERSATION,
        special_tokens: Sequence[str] = (),
        refuses_special: bool = False,
        limits: Limits | None = None,
    ) -> None:
        definition = {
            "source": source.replace("}\n{", "}{") if join_lines else source,
            "tool_source": tool_source,
            # None rather than missing, as in transformers: templates test `tools is not none`.
            "constants": {"tools": None, "documents": None, **(constants or {})},
            "date": date.isoformat() if date is not None else None,
            "assistant": assistant_role,
            "finds_generation": finds_generation,
            "reading": asdict(replace(reader, roles=dict(reader.roles))),
            "special": {"contents": list(special_tokens), "is_refused": refuses_special},
        }
        try:
            self._work = GuardedWork(
                "dsindex.instruction.rendering", definition, subject="the chat template", limits=limits
            )
        except LimitReachedError as error:
            raise InputError(f"{error.reason}; change it") from error
        if "refused" in self._work.facts:
            raise InputError(f"chat template: {self._work.facts['refused']}")
        if self._work.facts["not_found"] is not None:
            raise InputError(
                "chat template: it does not mark the generated text with {% generation %}, and that text cannot be "
                f"found: {self._work.facts['not_found']}"
            )
        self.marks_generation: bool = self._work.facts["marks_generation"]
        """Whether the template has `{% generation %}` blocks."""

    def render(
        self, messages: Sequence[Message], *, learnt: Sequence[int] | None = None, **variables: object
    ) -> Rendered:
        """Render one conversation.

        Args:
            messages: Messages with `role` and `content`.
            learnt: Positions of the replies that are trainable; None for all.
            **variables: Further JSON data, such as `tools`.

        Returns:
            The text, and the spans of its characters that are trainable: those inside `{% generation %}` blocks, or of
            the replies that were found.

        Raises:
            RecordProblem: If the template does not render this conversation, or the replies cannot be found.
            LimitReachedError: If rendering it takes too much time or memory.
        """
        [rendered] = self.render_all([write_conversation(messages, variables, learnt=learnt)])
        if isinstance(rendered, RecordProblem):
            raise rendered
        return rendered

    def render_all(self, conversations: Sequence[bytes]) -> Iterator[Rendered | RecordProblem]:
        """Render conversations in order.

        Args:
            conversations: Results of `write_conversation`; a few MiB together.

        Yields:
            For each conversation, the result of `render` or the problem that it raises.

        Raises:
            LimitReachedError: At the first conversation that takes too much time or memory.
        """
        for rendered in self.render_spelt(conversations):
            yield rendered if isinstance(rendered, RecordProblem) else rendered.in_characters()

    def render_spelt(self, requests: Sequence[bytes]) -> Iterator[RenderedText | RecordProblem]:
        """Render conversations in order, without a Python object for each of their texts.

        Args:
            requests: Results of `write_conversation` and `write_line`; a few MiB together.

        Yields:
            For each conversation, its text, or the problem that `render` raises, or that reading its line raises.

        Raises:
            LimitReachedError: At the first conversation that takes too much time or memory.
        """
        return self._work.run(requests, parse=_parse_answer)


def open_template(config: InstructionConfig, tokenizer: ChatTokenizer, limits: Limits | None) -> ChatTemplate:
    """Return the chat template of a configuration or of its tokenizer.

    Raises:
        InputError: If there is none, or it cannot be used.
        TokenizerError: If it is a named one whose control tokens the tokenizer would split.
    """
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
    if config.control_tokens == "refuse" and (split := tokenizer.split_tokens(control_tokens(config.chat_template))):
        raise TokenizerError(
            f"chat_template: the tokenizer has no single ids for its control tokens {', '.join(split)}, so a model "
            "would learn them in pieces; take a template that fits the tokenizer, add them to its added tokens, or set "
            "`control_tokens: allow`"
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
        reader=config.reader,
        special_tokens=tokenizer.special_contents(),
        refuses_special=config.special_tokens_in_text == "refuse",
        limits=limits,
    )


def write_conversation(
    messages: Sequence[Message], variables: Mapping[str, Any], *, learnt: Sequence[int] | None = None
) -> bytes:
    """Return the request to render one conversation, as JSON.

    Args:
        messages: Messages with `role` and `content`.
        variables: The conversation's own variables of the template.
        learnt: Positions of the replies that are trainable; None for all.

    Raises:
        RecordProblem: If a text contains a lone surrogate.
    """
    request: dict[str, Any] = {"variables": dict(variables), "messages": list(messages)}
    if learnt is not None:
        request["learnt"] = list(learnt)
    spelt = write_plain(request)
    if spelt is not None:
        return spelt
    for text in strings_in(request):
        check_text(text)
    # A blank before it tells the reader that only Python's own parser reads it as it was.
    return b" " + json.dumps(request, ensure_ascii=False, separators=(",", ":")).encode()


def write_line(line: bytes) -> bytes:
    """Return the request to read and render the conversation of a record as stored in a file, without a newline."""
    return LINE_TAG + line


def write_plain(value: object) -> bytes | None:
    """Return JSON data as JSON, fast; None if it has something that orjson does not write, or not as Python reads it.

    These are lone surrogates, integers beyond 64 bits, NaN and infinities, which become null, and deep nesting.
    """
    try:
        spelt = orjson.dumps(value)
    except TypeError:
        return None
    return None if b"null" in spelt else spelt


def _parse_answer(answer: bytes) -> RenderedText | RecordProblem:
    text = read_answer(answer)
    if text is not None:
        return text
    parsed = json.loads(answer)
    if "problem" in parsed:
        return RecordProblem(parsed["kind"], parsed["problem"])
    try:
        check_text(parsed["text"])
    except RecordProblem as problem:
        return problem
    return spell_text(parsed["text"], parsed["spans"])


# Divide a long conversation between exchanges: as many as fit into each sequence, each with the whole prompt.

Encode = Callable[[Iterator[list[int]]], Iterator[MaskedTokens]]
"""Encode the same record with other choices of its messages, given by their positions."""


def num_system(messages: Sequence[Message]) -> int:
    """Return the number of system messages at the beginning."""
    return next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))


def write_chosen(conversation: Conversation, chosen: Sequence[int]) -> bytes:
    """Return the request to render some messages of a conversation after its system messages."""
    messages, learnt = conversation.messages, conversation.learnt
    kept = (*range(num_system(messages)), *chosen)
    places = None if learnt is None else [place for place, number in enumerate(kept) if number in learnt]
    return write_conversation([messages[number] for number in kept], conversation.variables, learnt=places)


def group_messages(messages: Sequence[Message], first: int, assistant: str) -> list[list[int]]:
    """Cut a conversation, from its `first` message on, into exchanges.

    One begins with each message that follows an assistant's and is neither an assistant's nor a tool's.
    """
    groups: list[list[int]] = []
    for number in range(first, len(messages)):
        follows_reply = number > first and messages[number - 1]["role"] == assistant
        if not groups or (follows_reply and messages[number]["role"] not in {assistant, *TOOL_ROLES}):
            groups.append([])
        groups[-1].append(number)
    return groups


def split_exchanges(limit: int, exchanges: Sequence[Sequence[int]], encode: Encode) -> list[MaskedTokens]:
    """Divide the exchanges, in order, into sequences with as many as fit in each."""
    sequences: list[MaskedTokens] = []
    first = 0
    while first < len(exchanges):
        best: MaskedTokens | None = None
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


# Tokenize the sequences of many records at once: rendered texts with spans or markers, and segments.

Source = RenderedText | list[Segment]
"""What one sequence is made of: a text with its trainable spans, or segments."""


class SequenceTokenizer:
    """Tokenizes sequences, and masks their tokens.

    Args:
        tokenizer: The tokenizer.
        fast: Its fast engine; None for the reference.
        special_ids: Name -> id of the special tokens of segments.
        markers: Ids of the tokens that open and close a trainable part of a rendered text; empty to use its spans.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        *,
        fast: FastTexts | None,
        special_ids: Mapping[str, int],
        markers: Sequence[int],
    ) -> None:
        self._tokenizer = tokenizer
        self._fast = fast
        self._special_ids = special_ids
        self._markers = markers

    def tokenize(self, sources: Sequence[Source]) -> Sequence[MaskedTokens | RecordProblem]:
        """Tokenize sequences, which are all texts or all segments.

        Returns:
            For each its tokens and mask, or the problem of its markers or of the tokenizer with it.
        """
        try:
            return self._tokenize(sources)
        except UnencodableError as error:
            if len(sources) == 1:
                return [RecordProblem("not-encodable", next(iter(error.reasons.values())))]
            return [found for source in sources for found in self.tokenize([source])]

    def _tokenize(self, sources: Sequence[Source]) -> Sequence[MaskedTokens | RecordProblem]:
        if not sources:
            return []
        if isinstance(sources[0], list):
            return self._tokenize_segments([source for source in sources if isinstance(source, list)])
        rendered = [source for source in sources if isinstance(source, RenderedText)]
        if self._markers:
            texts = [text.spelt.decode() for text in rendered]
            return [self._mask_between(ids) for ids in cut_at(*self._encode(texts))]
        if self._fast is not None:
            return self._fast.encode_spans(rendered)
        return [encode_with_reference(self._tokenizer, *text.in_characters()) for text in rendered]

    def _tokenize_segments(self, sequences: Sequence[Sequence[Segment]]) -> list[MaskedTokens]:
        segments = list(chain.from_iterable(sequences))
        is_text = np.array([segment.special is None for segment in segments], dtype=bool)
        tokens, counts = self._encode([segment.text for segment in segments if segment.special is None])
        lengths = np.ones(len(segments), np.int64)
        lengths[is_text] = counts
        from_text = np.repeat(is_text, lengths)
        joined = np.empty(len(from_text), np.uint32)
        joined[from_text] = tokens
        joined[~from_text] = [self._special_ids[segment.special] for segment in segments if segment.special is not None]
        mask = np.repeat(np.array([segment.trainable for segment in segments], np.uint8), lengths)
        ends = np.cumsum(lengths)[np.cumsum([len(sequence) for sequence in sequences]) - 1]
        in_sequences = np.diff(ends, prepend=0)
        return [
            MaskedTokens(tokens=own, mask=own_mask)
            for own, own_mask in zip(cut_at(joined, in_sequences), cut_at(mask, in_sequences), strict=True)
        ]

    def _encode(self, texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return the tokens of texts, one after the other, and the number of tokens of each."""
        if self._fast is not None:
            batch = self._fast.encode(texts)
            return batch.tokens, batch.lengths
        return self._tokenizer.encode_ids(texts)

    def _mask_between(self, ids: NDArray[np.uint32]) -> MaskedTokens | RecordProblem:
        begin_id, end_id = self._markers
        try:
            return MaskedTokens(tokens=ids, mask=mask_between_markers(ids, begin_id=begin_id, end_id=end_id))
        except RecordProblem as problem:
            return problem


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
    read_content: Callable[[], object]
    """Returns the messages or fields in use, as JSON data."""
    cut: int
    """Tokens left out: the end of a truncated conversation, and parts of a split one without a reply."""
    special_in_text: bool
    """Whether the record's own text contains a special token's string."""

    @property
    def fingerprint(self) -> bytes:
        """Hash of the content for `split_by_hash`, 16 bytes."""
        return fingerprint_content(self.read_content())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """A record that waits for the result of the template or the patterns."""

    request: bytes
    lay_out: Callable[[Any], _LaidOut]
    """Turns the result into what is to be tokenized."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _LaidOut:
    """A record that waits for its tokens."""

    source: Source
    finish: Callable[[MaskedTokens], EncodedConversation]
    """Takes the tokens of the source."""


class InstructionEncoder:
    """Encodes records by message construction or by a chat template. Picklable and thread-safe.

    Args:
        config: The form of the records, and what is trainable.
        tokenizer: The tokenizer, with its names of special tokens and its chat templates.
        fast: The same tokenizer's fast engine, unless `why_not_fast` says otherwise; None for the reference.
        limits: Time and memory limits of the template or the patterns for one record; None for the defaults.

    Raises:
        TokenizerError: If a special token is not exactly one id.
        InputError: If a pattern or the template cannot be used.
    """

    def __init__(
        self,
        config: InstructionConfig,
        tokenizer: ChatTokenizer,
        *,
        fast: FastTexts | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._config = config
        self._fast = fast
        self._tokenizer = tokenizer
        self._limits = limits
        self.special_ids = {name: tokenizer.special_id(name, text) for name, text in config.special_tokens.items()}
        """Name -> id of the configured special tokens."""
        self._construction = MessageConstruction(config) if config.message_construction else None
        self._reader = config.reader
        is_refused = config.special_tokens_in_text == "refuse"
        self._special = SpecialTexts(tokenizer.special_contents(), is_refused=is_refused)
        self._template = None if self._construction else open_template(config, tokenizer, limits)
        self._markers = {
            text: tokenizer.special_id(name, text)
            for name, text in (
                ("b_include_to_loss_token", config.b_include_to_loss_token),
                ("e_include_to_loss_token", config.e_include_to_loss_token),
            )
            if text is not None
        }

        self._sequences = SequenceTokenizer(
            tokenizer, fast=fast, special_ids=self.special_ids, markers=tuple(self._markers.values())
        )

    def __reduce__(self) -> tuple[Any, ...]:
        make = functools.partial(InstructionEncoder, fast=self._fast, limits=self._limits)
        return make, (self._config, self._tokenizer)

    def why_not_fast(self) -> str | None:
        """Return why the fast engine cannot make the masks of this configuration; None if it can, or is not used."""
        if self._fast is None or self._construction is not None or self._markers:
            return None  # only spans of characters need more than ids
        return self._fast.why_unplaced()

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
        [encoded] = self._encode_all([_attempt(lambda: self._begin(record))])
        return require(encoded)

    def encode_lines(self, lines: Sequence[bytes]) -> Iterator[EncodedConversation | RecordProblem]:
        """Encode records as stored in a file, in order; much faster than one by one.

        Args:
            lines: JSON objects without their newlines, a few MiB together.

        Yields:
            For each record, the result of `encode` or the problem that it raises.

        Raises:
            LimitReachedError: At the first record that takes too much time or memory.
        """
        return self._encode_all([self._begin_line(line) for line in lines])

    def _begin_line(self, line: bytes) -> _Begun | _LaidOut | RecordProblem:
        if self._construction or self._markers or b"\n" in line:
            return _attempt(lambda: self._begin(parse_record(line)))
        # Its conversation is read where it is rendered, and here only if it is needed.
        return self._begin_rendering(write_line(line), lambda: self._reader.read_line(line))

    def _begin(self, record: Mapping[str, Any]) -> _Begun | _LaidOut:
        return self._begin_construction(record) if self._construction else self._begin_chat(record)

    def _encode_all(
        self, begun: Sequence[_Begun | _LaidOut | RecordProblem]
    ) -> Iterator[EncodedConversation | RecordProblem]:
        answers = self._ask([conversation.request for conversation in begun if isinstance(conversation, _Begun)])
        laid_out: list[_LaidOut | RecordProblem] = []
        limit: LimitReachedError | None = None
        for conversation in begun:
            if not isinstance(conversation, _Begun):
                laid_out.append(conversation)
                continue
            try:
                answer = next(answers)
            except LimitReachedError as error:
                limit = error
                break
            laid_out.append(_attempt(functools.partial(conversation.lay_out, answer)))
        sequences = iter(
            self._sequences.tokenize([record.source for record in laid_out if isinstance(record, _LaidOut)])
        )
        for record in laid_out:
            if isinstance(record, RecordProblem):
                yield record
            else:
                tokens = next(sequences)
                yield (
                    tokens if isinstance(tokens, RecordProblem) else _attempt(functools.partial(record.finish, tokens))
                )
        if limit is not None:
            raise limit

    def _ask(self, requests: Sequence[bytes]) -> Iterator[Any]:
        if self._construction is not None:
            return self._construction.read_all(requests)
        return self._chat_template.render_spelt(requests)

    def _begin_construction(self, record: Mapping[str, Any]) -> _Begun | _LaidOut:
        construction = self._construction
        if construction is None:
            raise TypeError("expected message_construction in the configuration")
        _check_object(record)
        for text in strings_in(record):
            check_text(text)  # jq's error would be about JSON escapes

        def lay_out(answers: PatternAnswers) -> _LaidOut:
            fields = construction.read_fields(answers)
            parts = construction.build_parts(fields, answers)
            has_special = self._special.are_in_texts([part.text for part in parts])
            exchanges = functools.partial(group_exchanges, parts)

            def encode(choices: Iterator[list[int]]) -> Iterator[MaskedTokens]:
                for wanted in map(set, choices):
                    kept = [part for number, part in enumerate(parts) if not part.is_message or number in wanted]
                    yield from map(require, self._sequences.tokenize([construction.lay_out(kept)]))

            def finish(whole: MaskedTokens) -> EncodedConversation:
                return self._finish(whole, exchanges, encode, read_content=lambda: fields, special_in_text=has_special)

            return _LaidOut(source=construction.lay_out(parts), finish=finish)

        answers = construction.read_plain(record)
        return _Begun(request=write_record(record), lay_out=lay_out) if answers is None else lay_out(answers)

    def _begin_chat(self, record: Mapping[str, Any]) -> _Begun:
        _check_object(record)
        conversation = self._reader.read(record)
        messages, variables = conversation.messages, conversation.variables
        if self._markers and conversation.learnt is not None:
            raise RecordProblem(
                "bad-field",
                "expected every reply to be learnt: markers leave none out, but {% generation %} can",
            )
        request = write_conversation(messages, variables, learnt=conversation.learnt)
        for marker in self._markers:
            if any(marker in text for text in strings_in([messages, variables])):
                raise RecordProblem(
                    "marker-in-text", f"the marker {marker!r} stands in a text and would change the mask"
                )
        has_special = self._special.are_in(conversation)
        return self._begin_rendering(request, lambda: conversation, has_special=has_special)

    def _begin_rendering(
        self, request: bytes, read: Callable[[], Conversation], *, has_special: bool = False
    ) -> _Begun:
        def encode(choices: Iterator[list[int]]) -> Iterator[MaskedTokens]:
            conversation = read()
            while ahead := [write_chosen(conversation, chosen) for chosen in islice(choices, _RENDERED_AHEAD)]:
                for rendered in self._chat_template.render_spelt(ahead):
                    yield from map(require, self._sequences.tokenize([require(rendered)]))

        def lay_out(rendered: RenderedText | RecordProblem) -> _LaidOut:
            text = require(rendered)
            return _LaidOut(source=text, finish=functools.partial(finish, has_special or text.has_special))

        def exchanges() -> list[list[int]]:
            messages = read().messages
            return group_messages(messages, num_system(messages), self._config.assistant_role)

        def read_content() -> dict[str, Any]:
            conversation = read()
            return {"messages": conversation.messages, **conversation.variables}

        def finish(is_special: bool, whole: MaskedTokens) -> EncodedConversation:
            return self._finish(whole, exchanges, encode, read_content=read_content, special_in_text=is_special)

        return _Begun(request=request, lay_out=lay_out)

    def _finish(
        self,
        whole: MaskedTokens,
        exchanges: Callable[[], Sequence[Sequence[int]]],
        encode: Encode,
        *,
        read_content: Callable[[], object],
        special_in_text: bool,
    ) -> EncodedConversation:
        if not whole.mask.any():
            raise RecordProblem("nothing-learnt", "expected at least one token to learn, got a mask of zeros only")
        sequences, limit, cut = [whole], self._config.max_length, 0
        if limit is not None and len(whole.tokens) > limit:
            sequences, cut = self._shorten(whole, limit, exchanges, encode)
        return EncodedConversation(
            tokens=_join([sequence.tokens for sequence in sequences]),
            mask=_join([sequence.mask for sequence in sequences]),
            lengths=np.array([len(sequence.tokens) for sequence in sequences], dtype=np.int64),
            read_content=read_content,
            cut=cut,
            special_in_text=special_in_text,
        )

    def _shorten(
        self,
        whole: MaskedTokens,
        limit: int,
        exchanges: Callable[[], Sequence[Sequence[int]]],
        encode: Encode,
    ) -> tuple[list[MaskedTokens], int]:
        """Return sequences of at most `limit` tokens, and the number of tokens left out."""
        if self._config.too_long == "refuse":
            raise RecordProblem(
                "too-long",
                f"expected at most {limit} tokens, got {len(whole.tokens)}; see `too_long`, or "
                "--longer-than-pack drop, truncate or split-turns with --seq-length",
            )
        if self._config.too_long == "truncate":
            first = MaskedTokens(tokens=whole.tokens[:limit], mask=whole.mask[:limit])
            if not first.mask.any():
                raise RecordProblem("nothing-learnt", f"nothing is trained on in the first {limit} tokens")
            return [first], len(whole.tokens) - limit
        sequences = split_exchanges(limit, exchanges(), encode)
        kept = [sequence for sequence in sequences if sequence.mask.any()]
        if not kept:
            raise RecordProblem("nothing-learnt", "nothing is trained on in any of the parts")
        return kept, sum(len(sequence.tokens) for sequence in sequences) - sum(len(kept_.tokens) for kept_ in kept)

    @property
    def _chat_template(self) -> ChatTemplate:
        if self._template is None:
            raise TypeError("expected a chat template in the configuration")
        return self._template


def _join(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def require(found: _T | RecordProblem) -> _T:
    """Return what was found; raise the problem that stands in its place."""
    if isinstance(found, RecordProblem):
        raise found
    return found


def _attempt(step: Callable[[], _T]) -> _T | RecordProblem:
    """Return the result of a step, or the problem of its record."""
    try:
        return step()
    except RecordProblem as problem:
        return problem
    except RecursionError:
        return too_deep()


def _check_object(record: object) -> None:
    if not isinstance(record, dict):
        raise RecordProblem("bad-field", f"expected an object, got {type(record).__name__}")
