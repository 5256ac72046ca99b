"""Encode a record as tokens and a mask, which depend only on the record, the configuration and the tokenizer.

`InstructionEncoder.encode_lines` reads, renders, tokenizes and masks the lines of a block; it tokenizes all texts of
the block in one call, which is much faster than one call per record.

A conversation that is too long is refused, truncated or split, according to `too_long`. Splitting cuts between
exchanges, puts as many exchanges as fit into each sequence, and repeats the whole prompt in each sequence. The prompt
consists of the text fields, or of the leading system messages.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np

from dsindex.chat.config import InstructionConfig, control_tokens
from dsindex.chat.construction import MessageConstruction
from dsindex.chat.conversations import (
    MESSAGE_KEYS,
    OTHER_THOUGHTS,
    QUOTED_ARGUMENTS,
    REASONING_KEYS,
    TOOL_ROLES,
    UNTRAINED_END,
    ConversationReader,
    check_texts,
    content_text,
    function_of,
    strings_in,
)
from dsindex.chat.rendering import ChatTemplate, SearchedText, find_unwritten
from dsindex.chat.statistics import explain_note, fingerprint_content
from dsindex.chat.thoughts import add_first_pair, find_tag_pairs, find_thoughts, has_other_tags, skip_blanks
from dsindex.chat.tokens import (
    ChatTokenizer,
    FastTexts,
    MarkedText,
    MaskedTokens,
    mask_between_markers,
    read_chat_files,
)
from dsindex.errors import InputError, RecordProblem, TokenizerError, UnencodableError
from dsindex.text.fields import parse_record
from dsindex.text.tokenizer import find_tokenizer, shared_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    from numpy.typing import NDArray

    from dsindex.chat.construction import PromptPart, Segment
    from dsindex.chat.conversations import Conversation, Message
    from dsindex.chat.replies import Rendered
    from dsindex.chat.thoughts import CharacterSpan
    from dsindex.text.engines import Engine
    from dsindex.text.jq import PatternAnswers
    from dsindex.text.tokenizer import Tokenizer

    Source = MarkedText | list[Segment]
    """The untokenized form of one sequence: a text with its trainable spans, or segments."""
    Prompt: TypeAlias = "_ChatPrompt | _ConstructedPrompt"
    """A record that was read and can be laid out, as a whole or some of its messages."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedConversation:
    """Tokens and mask of one record, which becomes a document of one or more sequences."""

    tokens: NDArray[np.uint32]
    mask: NDArray[np.uint8]
    """1 for trainable, 0 for masked; same shape as tokens."""
    lengths: NDArray[np.int64]
    """Number of tokens of each sequence; there are several only if a long conversation was split."""
    content: object
    """The messages or fields that were encoded, as JSON data."""
    cut: int
    """Number of tokens left out: the end of a truncated conversation, or the sequences of a split one that have no
    trainable token."""
    special_in_text: bool
    """Whether the record's text contains the string of a special token."""
    notes: tuple[str, ...]
    """Notes to count, such as keys of the record that the template does not write."""

    @property
    def fingerprint(self) -> bytes:
        """16-byte hash of the content, for `split_by_hash`."""
        return fingerprint_content(self.content)


class InstructionEncoder:
    """Encodes records by message construction or by a chat template. Thread-safe.

    Args:
        config: The options for reading and masking records.
        tokenizer: The tokenizer, with the names of its special tokens and its chat templates.
        fast: The fast engine of the same tokenizer; None to use the reference. If `why_not_fast` returns a reason,
            build the encoder again without it.

    Raises:
        TokenizerError: If a special token is not exactly one id.
        InputError: If a pattern or the template cannot be used.
    """

    def __init__(self, config: InstructionConfig, tokenizer: ChatTokenizer, *, fast: FastTexts | None = None) -> None:
        self.config = config
        self._tokenizer = tokenizer
        self._fast = fast
        self.special_ids = {name: tokenizer.special_id(name, text) for name, text in config.special_tokens.items()}
        """Name -> id of each configured special token."""
        self._construction = MessageConstruction(config)
        self._markers = {text: tokenizer.special_id(name, text) for name, text in config.markers.items()}
        specials = sorted({*tokenizer.special_contents(), *self._markers}, key=len, reverse=True)
        self.special_pattern = re.compile("|".join(map(re.escape, specials))) if specials else None
        self._template = None if config.message_construction else open_template(config, tokenizer)
        sources = self._template.sources if self._template else ()
        texts_with_tags = "\n".join([*sources, *tokenizer.special_contents()])
        self.tag_pairs = find_tag_pairs(texts_with_tags)
        """Tags that may surround thoughts in replies."""
        keys = () if self._template is None else MESSAGE_KEYS
        self.unread_keys = {key for key in keys if not re.search(rf"\.{key}\b|['\"]{key}['\"]", "\n".join(sources))}
        """Keys of messages that the template never mentions, so their values are not written."""
        pairs = [pair for pair in self.tag_pairs if pair[0] in texts_with_tags]
        blocks = [rf"{re.escape(opening)}\s*{re.escape(closing)}\s*" for opening, closing in pairs]
        self.empty_thought = re.compile("|".join(blocks)) if blocks else None
        """Matches an empty thought; None if the template cannot write one."""
        self._reader = ConversationReader(config, self.tag_pairs)

    def why_not_fast(self) -> str | None:
        """Return why the fast engine cannot make this configuration's masks; None if it can, or is not used."""
        # Masks of constructions and between markers need only token ids, not the characters that each token covers.
        return None if self._fast is None or self._template is None or self._markers else self._fast.why_unplaced()

    def encode(self, record: Mapping[str, Any]) -> EncodedConversation:
        """Encode one record.

        Args:
            record: A JSON object, as parsed by `json.loads`.

        Returns:
            Tokens and mask of the same length, with at least one trainable token in each sequence.

        Raises:
            RecordProblem: If the record is not a conversation, or has no trainable token.
        """
        [encoded] = self.encode_lines([json.dumps(record).encode()])
        return _unwrap(encoded)

    def encode_lines(
        self, lines: Sequence[bytes], *, up_to_problem: bool = False
    ) -> Iterator[EncodedConversation | RecordProblem]:
        """Encode lines of JSON, in order; much faster than one call of `encode` per record.

        Args:
            lines: JSON objects without their newlines, a few MiB in total.
            up_to_problem: Stop after the first record that cannot be read or rendered.

        Yields:
            For each record, the result of `encode`, or the problem that `encode` would raise.
        """
        prompts: list[Prompt | RecordProblem] = []
        sources: list[Source] = []
        for line in lines:
            try:
                prompt = self._read_line(line)
                sources.append(prompt.lay_out())
                prompts.append(prompt)
            except (RecordProblem, RecursionError) as error:
                too_deep = RecordProblem("bad-field", "the record is nested too deeply")
                prompts.append(error if isinstance(error, RecordProblem) else too_deep)
                if up_to_problem:
                    break
        tokenized = iter(self.tokenize(sources))
        for outcome in prompts:
            if isinstance(outcome, RecordProblem):
                yield outcome
                continue
            try:
                yield self._finish_conversation(outcome, _unwrap(next(tokenized)))
            except RecordProblem as problem:
                yield problem

    def _read_line(self, line: bytes) -> Prompt:
        if self._template is not None:
            return _ChatPrompt(self, self._template, self._reader.read_line(line))
        record = parse_record(line)
        check_texts(line, record)
        return _ConstructedPrompt(self, self._construction, self._construction.read(record))

    def _finish_conversation(self, prompt: Prompt, whole: MaskedTokens) -> EncodedConversation:
        if not whole.mask.any():
            ignored = f"; it ignores {', '.join(prompt.notes)}" if prompt.notes else ""
            raise RecordProblem("no-trained-tokens", f"nothing is trained on: the mask is 0 for every token{ignored}")
        sequences, limit, cut = [whole], self.config.max_length, 0
        if limit is not None and len(whole.tokens) > limit:
            sequences, cut = self._shorten(prompt, whole, limit)
        if prompt.notes and self.config.unwritten == "refuse":
            note = prompt.notes[0]
            raise RecordProblem("not-written", f"{note}: {explain_note(note)}; see `unwritten`")
        is_whole = len(sequences) == 1
        return EncodedConversation(
            tokens=sequences[0].tokens if is_whole else np.concatenate([part.tokens for part in sequences]),
            mask=sequences[0].mask if is_whole else np.concatenate([part.mask for part in sequences]),
            lengths=np.array([len(sequence.tokens) for sequence in sequences], dtype=np.int64),
            content=prompt.content,
            cut=cut,
            special_in_text=prompt.has_special,
            notes=prompt.notes,
        )

    def _shorten(self, prompt: Prompt, whole: MaskedTokens, limit: int) -> tuple[list[MaskedTokens], int]:
        """Truncate or split a conversation to sequences of at most `limit` tokens; also count the tokens left out."""
        if self.config.too_long == "refuse":
            remedy = "see `too_long`, or --longer-than-pack drop, truncate or split-turns with --seq-length"
            raise RecordProblem("too-long", f"{len(whole.tokens)} tokens, more than {limit}; {remedy}")
        if self.config.too_long == "truncate":
            first = MaskedTokens(tokens=whole.tokens[:limit], mask=whole.mask[:limit])
            if not first.mask.any():
                raise RecordProblem("no-trained-tokens", f"nothing is trained on in the first {limit} tokens")
            return [first], len(whole.tokens) - limit
        sequences = self._split_exchanges(prompt, limit)
        trained = [sequence for sequence in sequences if sequence.mask.any()]
        if not trained:
            raise RecordProblem("no-trained-tokens", "nothing is trained on in any of the parts")
        return trained, sum(len(part.tokens) for part in sequences) - sum(len(part.tokens) for part in trained)

    def _split_exchanges(self, prompt: Prompt, limit: int) -> list[MaskedTokens]:
        """Divide the exchanges, in order, into sequences, each with as many exchanges as fit."""
        exchanges, sequences, first = prompt.exchanges(), [], 0
        if not exchanges:
            raise RecordProblem("too-long", f"more than {limit} tokens, and there is no exchange to split at")
        while first < len(exchanges):
            best: MaskedTokens | None = None
            last = first
            for end in range(first + 1, len(exchanges) + 1):
                [candidate] = map(_unwrap, self.tokenize([prompt.lay_out([*chain(*exchanges[first:end])])]))
                if len(candidate.tokens) > limit:
                    break
                best, last = candidate, end
            if best is None and candidate.mask.any():
                problem = f"exchange {first + 1} and its prompt: {len(candidate.tokens)} tokens, more than {limit}"
                raise RecordProblem("too-long", problem)
            # One exchange may still be too long if none of it is trainable: `_shorten` drops the sequence.
            sequences.append(candidate if best is None else best)
            first = max(last, first + 1)
        return sequences

    def contains_special(self, texts: Iterable[str]) -> bool:
        """Tell whether one of the texts contains the string of a special token.

        Raises:
            RecordProblem: If a text contains a marker, or a special token that the configuration refuses.
        """
        if self.special_pattern is None:
            return False
        special_texts = {special for text in texts for special in self.special_pattern.findall(text)}
        for marker in self._markers:
            if marker in special_texts:
                problem = f"the marker {marker!r} stands in a text and would change the mask"
                raise RecordProblem("marker-in-text", problem)
        if special_texts and self.config.special_tokens_in_text == "refuse":
            raise RecordProblem("bad-text", f"a text has the special token {min(special_texts)!r}")
        return bool(special_texts)

    def tokenize(self, sources: Sequence[Source]) -> Sequence[MaskedTokens | RecordProblem]:
        """Tokenize sequences; return a problem in place of a sequence that the tokenizer cannot encode.

        Args:
            sources: Either all MarkedText or all lists of segments.
        """
        try:
            if self._template is None:
                return self._tokenize_segments([source for source in sources if isinstance(source, list)])
            return self._tokenize_texts([source for source in sources if isinstance(source, MarkedText)])
        except UnencodableError as error:
            if len(sources) == 1:
                return [RecordProblem("not-encodable", next(iter(error.reasons.values())))]
            return [outcome for source in sources for outcome in self.tokenize([source])]

    def _tokenize_texts(self, texts: Sequence[MarkedText]) -> Sequence[MaskedTokens | RecordProblem]:
        if self._markers:
            begin_id, end_id = self._markers.values()
            return [
                mask_between_markers(ids, begin_id=begin_id, end_id=end_id)
                for ids in self._encode([text.text for text in texts])
            ]
        return (self._fast or self._tokenizer).encode_spans(texts)

    def _tokenize_segments(self, sequences: Sequence[Sequence[Segment]]) -> list[MaskedTokens]:
        texts = [segment.text for sequence in sequences for segment in sequence if segment.special is None]
        pieces = iter(self._encode(texts))
        masked_tokens = []
        for sequence in sequences:
            specials = [segment.special for segment in sequence]
            tokens = [
                next(pieces) if name is None else np.array([self.special_ids[name]], np.uint32) for name in specials
            ]
            mask = np.repeat([segment.trainable for segment in sequence], list(map(len, tokens))).astype(np.uint8)
            masked_tokens.append(MaskedTokens(tokens=np.concatenate(tokens), mask=mask))
        return masked_tokens

    def _encode(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        return (self._fast or self._tokenizer).encode_ids(texts).split()


class _ChatPrompt:
    """A conversation that is rendered by a chat template."""

    def __init__(self, encoder: InstructionEncoder, template: ChatTemplate, conversation: Conversation) -> None:
        messages, variables = conversation.messages, conversation.variables
        if encoder.config.markers and (conversation.trained is not None or conversation.masked_spans):
            raise RecordProblem("bad-field", "a reply is left out, which needs {% generation %} instead of markers")
        self._encoder, self._template, self._conversation = encoder, template, conversation
        self.content: object = {"messages": messages, **variables}
        values = [value for message in messages for value in message.values()]
        nested_values = [value for value in values if type(value) is not str]
        self.has_special = encoder.contains_special(
            chain((value for value in values if type(value) is str), strings_in([nested_values, variables]))
        )
        self.notes = conversation.notes

    def lay_out(self, chosen: Sequence[int] | None = None) -> MarkedText:
        """Render all messages, or the leading system messages and the chosen ones."""
        messages = self._conversation.messages
        numbers = range(len(messages)) if chosen is None else (*range(_count_system(messages)), *chosen)
        rendered = self._template.render([messages[number] for number in numbers], **self._conversation.variables)
        spans = list(self._find_spans(rendered, numbers))
        if chosen is None:
            first_reply = rendered.spans[0].begin if rendered.spans else len(rendered.text)
            self.notes = (*self.notes, *self._find_notes(rendered.text, spans, first_reply))
        return MarkedText.of(rendered.text, spans)

    def exchanges(self) -> list[list[int]]:
        """Divide the messages after the leading system messages into exchanges.

        An exchange begins at each message that follows a reply and is neither a reply nor a tool result.
        """
        messages, assistant = self._conversation.messages, self._encoder.config.assistant_role
        numbers = range(_count_system(messages), len(messages))
        replies = {number for number in numbers if messages[number]["role"] == assistant}
        results = {number for number in numbers if messages[number]["role"] in TOOL_ROLES}
        return _group_exchanges(numbers, replies, replies | results)

    def _find_spans(self, rendered: Rendered, numbers: Sequence[int]) -> Iterator[CharacterSpan]:
        """Yield the trainable spans: the generated text of the replies to train on, minus masked spans."""
        conversation = self._conversation
        empty_thought = self._encoder.empty_thought
        if empty_thought and not empty_thought.search(rendered.text):
            empty_thought = None
        for span in rendered.spans:
            number = None if span.message is None else numbers[span.message]
            if number is None and (conversation.trained is not None or conversation.masked_spans):
                problem = "replies share a {% generation %} block; put it in a loop over the messages to leave some out"
                raise RecordProblem("generation-not-found", problem)
            if conversation.trained is not None and number not in conversation.trained:
                continue
            holes = [] if number is None else [*self._find_masked_spans(rendered.text, span.begin, span.end, number)]
            if self._encoder.config.reasoning == "mask":
                holes += self._find_reasoning_spans(rendered.text, span.begin, span.end, number)
            elif empty_thought and number is not None and self._lacks_thought(number, empty_thought):
                # The template wrote them: training on them would teach a model not to think.
                holes += [match.span() for match in empty_thought.finditer(rendered.text, span.begin, span.end)]
            begin = span.begin
            for hole_begin, hole_end in sorted(holes):
                if begin < hole_begin:
                    yield begin, hole_begin
                begin = max(begin, hole_end)
            if begin < span.end:
                yield begin, span.end

    def _find_masked_spans(self, text: str, begin: int, end: int, number: int) -> Iterator[CharacterSpan]:
        """Yield the masked spans of a message's content as spans of the rendered text."""
        spans = self._conversation.masked_spans.get(number)
        if not spans:
            return
        content = content_text(self._conversation.messages[number])
        stripped = content.strip()
        content_begin = text.find(stripped, begin, end) - content.find(stripped)
        if not text.startswith(stripped, content_begin + content.find(stripped)) or content_begin < 0:
            problem = f"message {number + 1}: has masked spans, but the template changes its text"
            raise RecordProblem("bad-field", problem)
        for first, last in spans:
            yield max(content_begin + first, begin), min(content_begin + last, end)

    def _find_reasoning_spans(self, text: str, begin: int, end: int, number: int | None) -> Iterator[CharacterSpan]:
        """Yield the spans of reasoning, including its tags and the blanks after it."""
        message = {} if number is None else self._conversation.messages[number]
        thought = (message.get(REASONING_KEYS[0]) or "").strip()
        content = content_text(message)
        pairs = add_first_pair(self._encoder.tag_pairs, content, 0, len(content))  # a template may write text before it
        spans = [*find_thoughts(text, pairs, begin, end)]
        # Count occurrences: a template may leave the thought out while the answer repeats its words.
        if thought and text.count(thought, begin, end) > content.count(thought):
            thought_begin = text.find(thought, begin, end)
            spans.append((thought_begin, thought_begin + len(thought)))
        for first, last in spans:
            yield first, skip_blanks(text, last, end)

    def _lacks_thought(self, number: int, empty_thought: re.Pattern[str]) -> bool:
        """Tell whether a message has no empty thought, so that the template writes one by itself."""
        message = self._conversation.messages[number]
        is_blank = (message.get(REASONING_KEYS[0]) or "x").isspace()
        return not is_blank and not empty_thought.search(content_text(message))

    def _find_notes(self, text: str, spans: Sequence[CharacterSpan], first_reply: int) -> Iterator[str]:
        """Yield notes, each once: data that the template does not write, and text that teaches the model bad habits."""
        variables = self._conversation.variables
        unread_names = variables.keys() - _HAS_VARIABLE.keys() - self._template.names
        notes = {name for name in unread_names if variables[name] not in ("", [], {})}
        texts: defaultdict[str, SearchedText] = defaultdict(lambda: SearchedText(text))
        for message in self._conversation.messages:
            if unwritten := find_unwritten(message, texts["content"]):
                notes.add(unwritten)
            if len(message) > 2:
                notes.update(name for name in _HAS_PART.keys() & message if not _HAS_PART[name](message, texts[name]))
                notes.update(key for key in self._encoder.unread_keys & message.keys() if message[key])
        for name in _HAS_VARIABLE.keys() & variables:
            if not _HAS_VARIABLE[name](variables[name], texts[name]):
                notes.add(name)
        if "tools" in variables:
            calls = [call for message in self._conversation.messages for call in message.get("tool_calls", ())]
            notes |= _find_unwritten_names(calls, variables["tools"], text, first_reply)
        yield from sorted(notes)
        if _has_quoted_arguments(self._conversation.messages, text):
            yield QUOTED_ARGUMENTS
        if self._encoder.config.reasoning == "mask" and any(has_other_tags(text[begin:end]) for begin, end in spans):
            yield OTHER_THOUGHTS
        if spans and not self._encoder.config.markers and self._is_end_untrained(text, *spans[-1]):
            yield UNTRAINED_END

    def _is_end_untrained(self, text: str, begin: int, end: int) -> bool:
        """Tell whether a special token follows the last trained span, and that span does not end with one."""
        pattern = self._encoder.special_pattern
        if pattern is None or not pattern.match(text[end : end + 64].lstrip()):
            return False
        ends = [match.end() for match in pattern.finditer(text, max(begin, end - 64), end)]
        return not ends or bool(text[ends[-1] : end].strip())


def _has_names(items: Sequence[dict[str, Any]], text: SearchedText) -> bool:
    return all(name in text for name in _names_of(items))


def _names_of(items: Sequence[dict[str, Any]]) -> list[str]:
    """Return the names of tools or calls."""
    return [str(function_of(item).get("name", "")) for item in items]


def _find_unwritten_names(
    calls: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], text: str, first_reply: int
) -> set[str]:
    """Return `tool_calls` or `tools` if a text has the names only once, for the tools or for their calls."""
    num_calls = Counter(_names_of(calls))
    names = [name for name in num_calls.keys() & _names_of(tools) if 0 < text.count(name) <= num_calls[name]]
    return {"tool_calls" if text.find(name) < first_reply else "tools" for name in names}


def _has_quoted_arguments(messages: Sequence[Message], text: str) -> bool:
    """Tell whether a template wrote arguments that are JSON text as a quoted and escaped JSON string."""
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    haystack = SearchedText(text) if calls else text
    values = (function_of(call).get("arguments") for call in calls)
    return any(json.dumps(raw, ensure_ascii=False) in haystack for raw in values if isinstance(raw, str) and '"' in raw)


def _has_documents(documents: Sequence[Mapping[str, Any]], text: SearchedText) -> bool:
    values = [[value for value in document.values() if isinstance(value, str)] for document in documents[:_MAX_CHECKED]]
    return all(any(value.strip() in text for value in texts) for texts in values)


_MAX_CHECKED = 100
"""How many documents of a record are searched for in its text: a missing one costs a search of the whole text."""
_HAS_VARIABLE: dict[str, Callable[[Any, SearchedText], bool]] = {"tools": _has_names, "documents": _has_documents}
"""Variable of a record -> function that tells whether a text contains its value."""
_HAS_PART: dict[str, Callable[[Mapping[str, Any], SearchedText], bool]] = {
    REASONING_KEYS[0]: lambda message, text: all(message.get(key, "").strip() in text for key in REASONING_KEYS),
    "tool_calls": lambda message, text: _has_names(message["tool_calls"], text),
}
"""Note about a message -> function that tells whether a text contains the message's reasoning or calls."""


class _ConstructedPrompt:
    """A record that is laid out by `message_construction`."""

    notes: tuple[str, ...] = ()

    def __init__(self, encoder: InstructionEncoder, construction: MessageConstruction, answers: PatternAnswers) -> None:
        fields = construction.read_fields(answers)
        self._construction = construction
        self._parts: list[PromptPart] = construction.build_parts(fields, answers)
        self.content: object = fields
        self.has_special = encoder.contains_special(part.text for part in self._parts)

    def lay_out(self, chosen: Sequence[int] | None = None) -> list[Segment]:
        """Return the segments of all parts, or of the text fields and the chosen messages."""
        subset = None if chosen is None else set(chosen)
        parts = [
            part for number, part in enumerate(self._parts) if subset is None or not part.is_message or number in subset
        ]
        return self._construction.lay_out(parts)

    def exchanges(self) -> list[list[int]]:
        """Divide the messages into exchanges: each masked message that follows a trainable one begins an exchange."""
        messages = [number for number, part in enumerate(self._parts) if part.is_message]
        trained = {number for number in messages if self._parts[number].trainable}
        return _group_exchanges(messages, trained, trained)


def _group_exchanges(numbers: Sequence[int], replies: set[int], continuations: set[int]) -> list[list[int]]:
    """Divide messages into exchanges: one begins at each message that follows a reply and does not continue it."""
    groups: list[list[int]] = []
    for previous, number in zip((None, *numbers), numbers, strict=False):
        if previous is None or (previous in replies and number not in continuations):
            groups.append([])
        groups[-1].append(number)
    return groups


def open_template(config: InstructionConfig, tokenizer: ChatTokenizer) -> ChatTemplate:
    """Compile the chat template of a configuration, or else of the tokenizer.

    Raises:
        InputError: If there is no template, or it cannot be used.
        TokenizerError: If a template that dsindex ships has control tokens that the tokenizer would split.
    """
    source, tool_source = config.chat_template, None
    if source is None:
        source = tokenizer.chat_templates.get(config.chat_template_name)
        if config.chat_template_name == "default":
            tool_source = tokenizer.chat_templates.get("tool_use")  # as in transformers
    if source is None:
        names = ", ".join(sorted(tokenizer.chat_templates)) or "none"
        raise InputError(
            f"no chat template {config.chat_template_name!r}: the tokenizer has {names}",
            hint="set `chat_template` or `message_construction` in CONFIG, such as `chat_template: chatml`",
        )
    if config.control_tokens == "refuse" and (texts := tokenizer.split_tokens(control_tokens(config.chat_template))):
        raise TokenizerError(
            f"chat_template: the tokenizer splits its control tokens {', '.join(texts)}, so a model would learn pieces",
            hint="choose a template that fits the tokenizer, make them added tokens, or set `control_tokens: allow`",
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
        reply_role=None if config.markers else config.assistant_role,
    )


def _count_system(messages: Sequence[Message]) -> int:
    """Count the system messages at the beginning."""
    return next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))


def _unwrap(outcome: _T | RecordProblem) -> _T:
    if isinstance(outcome, RecordProblem):
        raise outcome
    return outcome


# Workers get plain data from which each process builds its own encoder.


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderRecipe:
    """Hashable data from which an InstructionEncoder is built; equal recipes share one encoder in a process."""

    config: str
    """An InstructionConfig as JSON."""
    tokenizer: Tokenizer
    engine: Engine
    """The engine that tokenizes; it is the reference if the fast engine cannot make the masks."""
    special_tokens: tuple[tuple[str, str], ...]
    """(name, text) of each special token in the tokenizer's folder, such as `bos_token`; sorted."""
    chat_templates: tuple[tuple[str, str], ...]
    """(name, jinja2 source) of each chat template in the tokenizer's folder; sorted."""


def make_recipe(
    config: InstructionConfig, tokenizer: Tokenizer, tokenizer_model: str, *, engine: Engine
) -> EncoderRecipe:
    """Return the recipe of an encoder, falling back to the reference if the fast engine cannot make the masks.

    Args:
        config: The options for reading and masking records.
        tokenizer: The tokenizer.
        tokenizer_model: Path that the tokenizer was loaded from; a folder may contain chat templates.
        engine: The engine that was chosen for the tokenizer without its post-processor.

    Raises:
        TokenizerError: If a file in the folder is invalid, the tokenizer is not a tokenizer.json, or a special token is
            not exactly one id.
        InputError: If a pattern or the template cannot be used.
    """
    shared_tokenizer(tokenizer)  # raises TokenizerError for formats other than tokenizer.json
    special_tokens, chat_templates = read_chat_files(Path(find_tokenizer(tokenizer_model)[0]))
    recipe = EncoderRecipe(
        config=msgspec.json.encode(config).decode(),
        tokenizer=tokenizer,
        engine=engine,
        special_tokens=tuple(sorted(special_tokens.items())),
        chat_templates=tuple(sorted(chat_templates.items())),
    )
    reason = make_instruction_encoder(recipe).why_not_fast()
    return recipe if reason is None else replace(recipe, engine=replace(engine, fast=None, reason=reason))


@functools.lru_cache(maxsize=2)
def make_instruction_encoder(recipe: EncoderRecipe) -> InstructionEncoder:
    """Build the encoder of a recipe, or return the one that this process has built already.

    Raises:
        TokenizerError: If a special token is not exactly one id.
        InputError: If a pattern or the template cannot be used.
    """
    tokenizer = ChatTokenizer(
        recipe.tokenizer.content.decode(),
        special_tokens=dict(recipe.special_tokens),
        chat_templates=dict(recipe.chat_templates),
    )
    is_fast = recipe.engine.fast is not None
    fast = FastTexts(recipe.tokenizer, recipe.engine, tokenizer) if is_fast else None
    return InstructionEncoder(msgspec.json.decode(recipe.config, type=InstructionConfig), tokenizer, fast=fast)
