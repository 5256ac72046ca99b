"""Render chat templates in a guarded process: texts of conversations with their trainable spans.

What is trainable is marked by the template (`{% generation %}`), or found by rendering beginnings of the conversation
(`generation.py`). The encoder sees only the result: a text, and the spans of its characters that are learnt.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias

import orjson
from jinja2 import TemplateError, Undefined, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.utils import Namespace, missing

from dsindex.errors import RecordProblem
from dsindex.instruction.config import SpecialTexts
from dsindex.instruction.records import ConversationReader, too_deep
from dsindex.instruction.rendered import LINE_TAG, RenderedText, spell_text, write_answer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Span: TypeAlias = tuple[int, int]
    Rendered: TypeAlias = tuple[str, list[Span]]
    Render: TypeAlias = Callable[[list[dict[str, Any]], bool], Rendered | str]
    """Renders messages, with or without `add_generation_prompt`; returns a reason if they do not render."""
    from collections.abc import Callable, Iterable

    from jinja2 import Template
    from jinja2.parser import Parser


# Find which text a model generates, in a template without `{% generation %}`.
#
# A reply is what follows the prompt: the conversation up to it, rendered with `add_generation_prompt`. It ends where
# the conversation up to and with it, rendered alone, ends, without what the template writes only at the end of a text:
#
#     prompt   <|user|>Hi<|end|><|assistant|>
#     reply    <|user|>Hi<|end|><|assistant|>Hello!<|end|>\n<eos>
#     whole    <|user|>Hi<|end|><|assistant|>Hello!<|end|>\n<|user|>Bye<|end|><|assistant|>…
#                                            ^^^^^^^^^^^^^^^
#
# This is used only where it is proven. Conversations of known texts must show that a template writes replies like this;
# otherwise it is refused. And in each record, the prompt and the reply must be beginnings of the whole text; otherwise
# (some templates leave the reasoning out of earlier replies) the record is bad.

_UNITS = re.compile(r"(?P<control><[^<>\s]+>|\[/?[A-Z_]+\])|\s+|\w+|.", re.DOTALL)
"""A special token as most templates spell them, blanks, a word, or another character."""
_ASKED, _REPLIED = ("Quxarb", "Zorvim"), ("Blenkot", "Fyrdas")
"""Texts of the user and of replies in probes."""
_SHOWN = 60
_ADVICE = "use a template with {% generation %}, or one of dsindex's own, such as `chat_template: chatml`"
_LAST_TURN = "set `learn: last_turn`, or "


class NotFoundError(Exception):
    """The reason why the generated text cannot be found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ending:
    """What follows a reply's content."""

    closing: str
    """All of it, at the end of a text."""
    end: str
    """The beginning of `closing` that belongs to the last reply."""
    inner_end: str
    """What belongs to a reply that other messages follow."""


class GenerationFinder:
    """Finds the text of replies in conversations that one template renders.

    Args:
        render: Renders messages without further variables.
        assistant: Role of replies.

    Raises:
        NotFoundError: If it is not proven for this template.
    """

    def __init__(self, render: Render, assistant: str) -> None:
        self._assistant = assistant
        system = [{"role": "system", "content": "Brovik"}]
        # Some templates need a system message.
        first = [] if not isinstance(render(_turn(assistant), False), str) else system
        self._leading, self._has_prompt, self._ending = _find_ending(render, assistant, first)
        self._prove(render, first)

    def find(
        self, render: Render, messages: Sequence[dict[str, Any]], text: str, learnt: Sequence[int] | None
    ) -> list[Span]:
        """Return the spans of replies.

        Args:
            render: Renders messages with the record's variables.
            messages: The conversation.
            text: Its rendered text.
            learnt: Positions of the wanted replies; None for all.

        Raises:
            NotFoundError: If a prompt or a reply alone is not a beginning of the text.
        """
        if learnt is None:
            learnt = [number for number, message in enumerate(messages) if message["role"] == self._assistant]
        return [self._find_reply(render, list(messages), text, number) for number in learnt]

    def _find_reply(self, render: Render, messages: list[dict[str, Any]], text: str, number: int) -> Span:
        is_last = number == len(messages) - 1
        prompt = _render(render, messages[:number], number, is_prompt=True)
        alone = text if is_last else _render(render, messages[: number + 1], number, is_prompt=False)
        reply = self._without_closing(alone, text, is_last=is_last)
        if not (text.startswith(prompt) and reply.startswith(prompt)):
            raise NotFoundError(
                f"message {number + 1}: the template writes the prompt otherwise than the beginning of the text "
                f"({_difference(prompt, text)}), so the generated text cannot be found; "
                f"{'' if is_last else _LAST_TURN}{_ADVICE}"
            )
        if not text.startswith(reply):
            raise NotFoundError(
                f"message {number + 1}: the template writes this reply otherwise when messages follow it "
                f"({_difference(reply, text)}), so the generated text cannot be found; {_LAST_TURN}{_ADVICE}"
            )
        if self._has_prompt and number and messages[number - 1]["role"] != "user":
            self._require_prompt(render, messages[:number], prompt)
        return len(prompt), len(reply)

    def _require_prompt(self, render: Render, messages: list[dict[str, Any]], prompt: str) -> None:
        """Check that a generation prompt is written here too: a reply would begin with it otherwise."""
        if prompt == _render(render, messages, len(messages), is_prompt=False):
            raise NotFoundError(
                f"message {len(messages) + 1}: the template writes no generation prompt after a message of the role "
                f"{messages[-1]['role']!r}, so the generated text cannot be found; {_ADVICE}"
            )

    def _without_closing(self, alone: str, text: str, *, is_last: bool) -> str:
        """Return a conversation that ends with a reply, without what does not belong to the reply."""
        ending = self._ending
        if is_last:
            return alone.removesuffix(ending.closing[len(ending.end) :])
        if text.startswith(alone) or not alone.endswith(ending.closing):
            return alone
        return alone.removesuffix(ending.closing) + ending.inner_end

    def _prove(self, render: Render, first: list[dict[str, Any]]) -> None:
        """Check on conversations of known texts that the spans have every reply, and no other text."""
        num_proven = 0
        for probe in _probes(self._assistant):
            messages = [*first, *probe]
            rendered = render(messages, False)
            if isinstance(rendered, str):
                continue
            text = rendered[0]
            try:
                found = "\0".join(text[begin:end] for begin, end in self.find(render, messages, text, None))
            except NotFoundError:
                if num_proven == 0:
                    raise
                continue
            # Only thoughts, the beginning of which the model generates, may stand in front of a reply.
            if messages[-1].keys() == {"role", "content"}:
                leading = found.rpartition("\0")[2].partition(messages[-1]["content"].strip())[0]
                if leading.strip() and leading.strip() != self._leading:
                    raise NotFoundError(
                        f"it writes {leading[:_SHOWN]!r} before a reply in some conversations; {_ADVICE}"
                    )
            # Texts that the template leaves out cannot be found.
            if any(word in found for word in _ASKED) or any(word in text and word not in found for word in _REPLIED):
                raise NotFoundError(f"the text found in a probe is not that of its replies: {found[:_SHOWN]!r}")
            num_proven += 1


def keep_learnt(
    render: Render,
    messages: Sequence[dict[str, Any]],
    spans: Sequence[Span],
    replies: Sequence[int],
    learnt: Sequence[int],
) -> list[Span]:
    """Return the spans that a template with marks has made of the learnt replies.

    The spans of a reply are those by which the conversation up to it has more than the one up to the reply before.

    Args:
        render: Renders messages with the record's variables.
        messages: The conversation.
        spans: The spans of all replies.
        replies: Positions of all replies.
        learnt: Positions of the learnt ones.

    Raises:
        NotFoundError: If spans cannot be attributed to replies.
    """
    kept: list[Span] = []
    before = 0
    for number in replies:
        is_last = number == replies[-1]
        after = len(spans) if is_last else _count_spans(render, list(messages[: number + 1]), number)
        if not before < after <= len(spans):
            raise NotFoundError(
                f"message {number + 1}: expected a {{% generation %}} block of its own for each reply, so that some of "
                "them can be left out, got replies that share one"
            )
        if number in learnt:
            kept.extend(spans[before:after])
        before = after
    return kept


def _find_ending(render: Render, assistant: str, first: list[dict[str, Any]]) -> tuple[str, bool, _Ending]:
    """Return what the model writes before a reply, whether there is a generation prompt, and what follows a reply."""
    asked_next, replied = _ASKED[1], _REPLIED[0]
    user, reply = _turn(assistant)
    prompt, unprompted = (_render_probe(render, [*first, user], is_prompt=is_prompt) for is_prompt in (True, False))
    whole = _render_probe(render, [*first, user, reply], is_prompt=False)
    if not whole.startswith(prompt):
        raise NotFoundError(
            f"its generation prompt is not the beginning of its replies ({_difference(prompt, whole)}); {_ADVICE}"
        )
    leading, found, closing = whole[len(prompt) :].partition(replied)
    if not found or replied in closing:
        raise NotFoundError(f"it does not write a reply once, after its generation prompt; {_ADVICE}")
    if prompt == unprompted and leading.strip():
        raise NotFoundError(
            f"it writes {leading[:_SHOWN]!r} before a reply but not as a generation prompt, so that it is unknown "
            f"whether the model generates this; {_ADVICE}"
        )
    following = render([*first, user, reply, {"role": "user", "content": asked_next}], False)
    between = closing
    if not isinstance(following, str):
        between = following[0].partition(replied)[2].partition(asked_next)[0]
    common = _common_beginning(closing, between)
    if all(unit["control"] or unit[0].isspace() for unit in _UNITS.finditer(closing[len(common) :])):
        return leading.strip(), prompt != unprompted, _Ending(closing=closing, end=closing, inner_end=common)
    # Words that close a text, such as a prompt that the template always writes, are none of the model's.
    end = _turn_end(common)
    return leading.strip(), prompt != unprompted, _Ending(closing=closing, end=end, inner_end=end)


def _turn_end(closing: str) -> str:
    r"""Return what ends a turn: everything up to the first special token, or all but the last blanks.

    >>> _turn_end(" </s>\n"), _turn_end("\n\n")
    (' </s>', '')
    """
    for unit in _UNITS.finditer(closing):
        if unit["control"]:
            return closing[: unit.end()]
    return closing.rstrip()


def _common_beginning(one: str, other: str) -> str:
    r"""Return the longest common beginning that splits no special token and no word.

    >>> _common_beginning("<|end|>\n<|eos|>", "<|end|>\n<|user|>")
    '<|end|>\n'
    """
    common = ""
    for unit, other_unit in zip(_UNITS.finditer(one), _UNITS.finditer(other), strict=False):
        if unit[0] != other_unit[0]:
            break
        common += unit[0]
    return common


def _turn(assistant: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": _ASKED[0]}, {"role": assistant, "content": _REPLIED[0]}]


def _probes(assistant: str) -> list[list[dict[str, Any]]]:
    (_, asked_next), (replied, replied_next) = _ASKED, _REPLIED
    turn = _turn(assistant)
    next_turn = [{"role": "user", "content": asked_next}, {"role": assistant, "content": replied_next}]
    call = {"type": "function", "id": "abcdef123", "function": {"name": "f", "arguments": {"x": replied}}}
    result = {"role": "tool", "content": asked_next, "tool_call_id": "abcdef123", "name": "f"}
    calling: dict[str, Any] = {"role": assistant, "content": "", "tool_calls": [call]}
    return [
        turn,
        [*turn, *next_turn],
        [{"role": "system", "content": asked_next}, *turn],
        [turn[0], calling, result, next_turn[1]],
        [turn[0], {**turn[1], "reasoning_content": replied_next}],
        [turn[0], {"role": assistant, "content": f" {replied}\n"}, *next_turn],
    ]


def _render_probe(render: Render, messages: list[dict[str, Any]], *, is_prompt: bool) -> str:
    rendered = render(messages, is_prompt)
    if isinstance(rendered, str):
        raise NotFoundError(f"it {rendered} (on a conversation of one question and one reply); {_ADVICE}")
    return rendered[0]


def _render(render: Render, messages: list[dict[str, Any]], number: int, *, is_prompt: bool) -> str:
    rendered = render(messages, is_prompt)
    if isinstance(rendered, str):
        raise NotFoundError(
            f"message {number + 1}: the conversation {'before' if is_prompt else 'up to'} it is needed to find the "
            f"generated text, and the chat template {rendered}"
        )
    return rendered[0]


def _count_spans(render: Render, messages: list[dict[str, Any]], number: int) -> int:
    rendered = render(messages, False)
    if isinstance(rendered, str):
        raise NotFoundError(
            f"message {number + 1}: the conversation up to it is needed to leave replies out, and the chat template "
            f"{rendered}"
        )
    return len(rendered[1])


def _difference(beginning: str, text: str) -> str:
    """Show where a text does not go on like an expected beginning."""
    same = next((i for i, (a, b) in enumerate(zip(beginning, text, strict=False)) if a != b), len(text))
    return f"{beginning[same : same + _SHOWN]!r} against {text[same : same + _SHOWN]!r}"


# jinja2's sandbox for chat templates, set up as in transformers.
#
# As there, there are `ImmutableSandboxedEnvironment`, `trim_blocks`, `lstrip_blocks`, loop controls, `tojson` without
# HTML escapes, `raise_exception`, `strftime_now` and `{% generation %}`; `dict` and `namespace` are restricted.
# Everything that depends on chance, on the day or on earlier records is left out, so that a text is a function of its
# record: the filter `random`, `lipsum`, today's date (which `template_date` replaces). So is access to other files. A
# variable that nobody has set is refused when a template writes it, rather than written as nothing.

# Mark trainable text during rendering. Lone surrogates cannot occur in text that has a UTF-8 encoding.
BEGIN_MARK, END_MARK = "\udfa0", "\udfa1"
_ALWAYS_GIVEN = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
_OF_ANY_DICT = frozenset(dir(dict))
"""Names that mean the attribute, as in transformers, even where a key has the same name."""
_OF_LOOPS = frozenset(name for name in dir(LoopContext) if not name.startswith("_"))
"""Attributes of `loop`, all of which the sandbox allows."""
SHOWN_CHARACTERS = 1000
"""Limit on a reason, since a template may put a whole conversation into its exception."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledTemplate:
    """A template, which writes BEGIN_MARK and END_MARK around generated text."""

    template: Template
    marks_generation: bool
    needed_variables: frozenset[str]
    """Variables that must be given."""


def compile_template(source: str, date: str | None) -> CompiledTemplate:
    """Compile a template.

    Args:
        source: jinja2 text.
        date: For `strftime_now`, in ISO format; without it, a template that calls it fails.

    Raises:
        Exception: If the source is not an allowed template; jinja2's and Python's compilers raise many types.
    """
    environment = _make_environment(date)
    template = environment.from_string(source)
    template.globals = dict(template.globals)  # jinja2's own, in several layers, takes half of a short rendering's time
    tree = environment.parse(source)
    _refuse_other_files(tree)
    needed = _needed_variables(tree) - environment.globals.keys() - _ALWAYS_GIVEN
    environment.undefined = _undefined_type(needed)
    # Read from the tree, since the tag may also occur in a comment.
    marks = any(data.data == BEGIN_MARK for data in tree.find_all(nodes.TemplateData))
    return CompiledTemplate(template=template, marks_generation=marks, needed_variables=needed)


def explain_refusal(error: Exception) -> str:
    """Return the reason why `compile_template` has failed."""
    line = getattr(error, "lineno", None)
    if isinstance(error, (MemoryError, RecursionError)):
        return f"too long, or nested too deep, for Python's compiler ({type(error).__name__})"
    return f"{f'line {line}: ' if line else ''}{str(error) or type(error).__name__}"[:SHOWN_CHARACTERS]


class _Environment(ImmutableSandboxedEnvironment):  # type: ignore[misc]  # read without its types
    """The sandbox, in which `message.role` and `loop.first` are found without its checks, which they pass."""

    def getattr(self, obj: Any, attribute: str) -> Any:  # noqa: ANN401 - any object of a template
        if type(obj) is dict and attribute not in _OF_ANY_DICT:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if type(obj) is LoopContext and attribute in _OF_LOOPS:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)


def _make_environment(date: str | None) -> ImmutableSandboxedEnvironment:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _clock(date)
    environment.globals["dict"] = _DictMaker()
    environment.globals["namespace"] = _PlainNamespace
    del environment.filters["random"], environment.globals["lipsum"]
    return environment


def _clock(date: str | None) -> Callable[[str], str]:
    def strftime_now(date_format: str) -> str:
        if date is None:
            raise TemplateError("it asks for today's date; set `template_date`: output must not depend on the day")
        return datetime.date.fromisoformat(date).strftime(date_format)

    return strftime_now


def _refuse_other_files(tree: nodes.Template) -> None:
    for node in tree.find_all((nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport)):
        raise TemplateError(f"line {node.lineno}: a chat template cannot use other files")


def _needed_variables(tree: nodes.Template) -> frozenset[str]:
    """Return the variables that must be given: a template neither sets them nor asks whether they are there."""
    optional = {name.name for name in tree.find_all(nodes.Name) if name.ctx != "load"}
    for asked in tree.find_all((nodes.Test, nodes.Filter)):
        if asked.name in {"defined", "undefined", "default", "d"} and isinstance(asked.node, nodes.Name):
            optional.add(asked.node.name)
    for asked in tree.find_all((nodes.If, nodes.CondExpr)):
        optional.update(
            name.name for name in (asked.test, *asked.test.find_all(nodes.Name)) if isinstance(name, nodes.Name)
        )
    # A tokenizer may lack a special token, for which transformers writes nothing.
    return frozenset(name for name in meta.find_undeclared_variables(tree) - optional if not name.endswith("_token"))


def _undefined_type(needed: frozenset[str]) -> type[Undefined]:
    class NamedUndefined(Undefined):  # type: ignore[misc]  # as above
        """An undefined value that says where a variable is set, and refuses to be written if it is needed."""

        __slots__ = ()

        @property
        def _undefined_message(self) -> str:
            name = self._undefined_name
            if self._undefined_hint or self._undefined_obj is not missing or not isinstance(name, str):
                message: str = super()._undefined_message
                return message
            if name.endswith("_token"):
                return f"{name!r} is undefined; set it under `special_tokens`"
            if name not in needed:
                return f"{name!r} is undefined"
            return (
                f"{name!r} is undefined: nobody gave this variable; set it under `template_variables`, or "
                "in the record's `chat_template_kwargs`"
            )

        def __str__(self) -> str:
            if self._undefined_obj is missing and self._undefined_name in needed:
                self._fail_with_undefined_error()
            return ""

    return NamedUndefined


class _DictMaker:
    """`dict` without access to the class, whose `update` would bypass the immutable sandbox."""

    def __call__(self, *pairs: Any, **names: Any) -> dict[Any, Any]:  # noqa: ANN401 - as `dict` takes them
        return dict(*pairs, **names)

    def fromkeys(self, keys: Iterable[Any], value: object = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


class _PlainNamespace(Namespace):  # type: ignore[misc]  # as above
    """A namespace without names that are special in Python, such as `__html__`."""

    def __init__(*given: Any, **names: Any) -> None:  # noqa: ANN401 - as `dict` takes them
        self, *pairs = given  # allows `namespace(self=1)`
        attributes = dict(*pairs, **names)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: object) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot have the name {name!r}")


class _Generation(Extension):  # type: ignore[misc]  # as above
    """The block `{% generation %} … {% endgeneration %}`, whose text is trainable."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's attribute

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        outer = {"macro", "call", "set", "filter", "generation"} & set(parser._tag_stack[:-1])
        if outer:
            parser.fail(f"generation must not stand inside {min(outer)}", line)
        begin, end = (nodes.Output([nodes.TemplateData(mark)]).set_lineno(line) for mark in (BEGIN_MARK, END_MARK))
        return [begin, nodes.Scope(body).set_lineno(line), end]


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as chat templates expect it, without the HTML escapes of jinja2's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object = "") -> NoReturn:
    raise TemplateError(f"it refuses the conversation: {message}")


# Find whether a template reads a message's content as a text, as a list of parts, or both, and pass what it reads.
#
# A template that reads only texts writes a list as Python's `[{'type': 'text', …}]` or drops it; one that reads only
# parts drops a text, or writes it letter by letter. So the form is tried out for each role, on a conversation whose
# text is known: a form is read if that text is in the result, and a part's key `text` in quotes is not.

Form = Literal["any", "text", "parts", "one part"]

_WORDS = ("Quxarb", "Zorvim")
_OTHER = "Blenk"
_PART_AS_TEXT = re.compile(r"""['"]text['"]""")
_CALL = {"type": "function", "id": "abcdef123", "function": {"name": "f", "arguments": {"x": 1}}}


class ContentForms:
    """The forms that one template reads, found when a role first occurs.

    Args:
        render: Renders messages; returns a reason if they do not render.
    """

    def __init__(self, render: Render) -> None:
        self._render = render
        self._forms: dict[str, Form] = {}

    def fit(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return messages whose contents have a form that the template reads, the same otherwise."""
        fitting = []
        for message in messages:
            content = message.get("content")
            form = self.form_of(message["role"]) if content is not None else "any"
            if form == "text" and isinstance(content, list):
                content = "".join(part["text"] for part in content)
            elif form == "one part" and isinstance(content, list):
                content = _as_parts("".join(part["text"] for part in content))
            elif form in ("parts", "one part") and isinstance(content, str):
                content = _as_parts(content)
            is_same = content is message.get("content")
            fitting.append(message if is_same else {**message, "content": content})
        return fitting

    def form_of(self, role: str) -> Form:
        """Return what the template reads for a role; `text` also if neither form is seen in its result."""
        if role not in self._forms:
            self._forms[role] = self._find(role)
        return self._forms[role]

    def _find(self, role: str) -> Form:
        text, parts, one = (
            self._read(role, content)
            for content in (
                " ".join(_WORDS),
                [*_as_parts(_WORDS[0]), *_as_parts(_WORDS[1])],
                _as_parts(" ".join(_WORDS)),
            )
        )
        if _is_read(text):
            return "any" if _is_read(parts) else "text"
        if _is_read(parts):
            return "parts"
        return "one part" if _is_read(one) else "text"

    def _read(self, role: str, content: object) -> str:
        """Return a rendered conversation with this content, if possible one in which it occurs."""
        texts = []
        for messages in _conversations({"role": role, "content": content}):
            rendered = self._render(messages, False)
            if not isinstance(rendered, str):
                texts.append(rendered[0])
                if _is_read(rendered[0]):
                    return rendered[0]
        return texts[0] if texts else ""


def _conversations(message: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Return conversations in which a message of its role may stand, the other messages with texts or with parts."""
    found: list[list[dict[str, Any]]] = []
    for other in (_OTHER, _as_parts(_OTHER)):
        system = {"role": "system", "content": other}
        user, reply = {"role": "user", "content": other}, {"role": "assistant", "content": other}
        role = message["role"]
        if role == "user":
            found += [message, reply], [message], [system, message, reply]
        elif role == "assistant":
            found += [user, message], [system, user, message]
        elif role in ("system", "developer"):
            found += [[message, user, reply]]
        else:
            tool = {**message, "tool_call_id": _CALL["id"], "name": "f"}
            calling = {"role": "assistant", "tool_calls": [_CALL]}
            found += [user, {**calling, "content": other}, tool], [user, calling, tool]
    return found


def _as_parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def _is_read(text: str) -> bool:
    return all(word in text for word in _WORDS) and _PART_AS_TEXT.search(text) is None


Answer = dict[str, Any]
_KNOWN_VARIABLES = 64
"""Variables of records for which a template's replies stay proven."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+>")


def prepare(definition: dict[str, Any]) -> tuple[Answer, Callable[[bytes], Answer | bytes]]:
    """Compile a template.

    Args:
        definition: `source`; `tool_source`, the template for records with `tools`, or None; `constants`, variables for
            all conversations; `date`, in ISO format or None; `assistant`, the role of replies;
            `finds_generation`, whether to find the text of replies in a template without marks; `reading`, the
            fields of a ConversationReader; and `special`, the arguments of SpecialTexts.

    Returns:
        `marks_generation`, and `not_found`, the reason why replies cannot be found or None; or `refused` with the
        reason why the template is not allowed. And a function that renders a conversation.
    """
    templates = []
    for source in (definition["source"], definition["tool_source"]):
        try:
            templates.append(None if source is None else _Template(source, definition))
        except Exception as error:  # noqa: BLE001 - Python's and jinja2's compilers raise many types
            return {"refused": explain_refusal(error)}, _answer_nothing
    main, for_tools = templates
    if main is None:
        raise ValueError("expected a source")

    reader, special = ConversationReader(**definition["reading"]), SpecialTexts(**definition["special"])

    def render(record: bytes) -> Answer | bytes:
        if record.startswith(LINE_TAG):
            try:
                request = _read_line(reader, special, record[len(LINE_TAG) :])
            except RecordProblem as problem:
                return {"kind": problem.kind, "problem": problem.reason}
        else:
            request = orjson.loads(record) if record.startswith(b"{") else json.loads(record)
        template = for_tools if for_tools is not None and request["variables"].get("tools") is not None else main
        return template.answer(request)

    facts = [template.facts for template in templates if template is not None]
    reasons = [fact["not_found"] for fact in facts if fact["not_found"] is not None]
    return {
        "marks_generation": all(fact["marks_generation"] for fact in facts),
        "not_found": reasons[0] if reasons else None,
    }, render


class _RenderError(Exception):
    """The reason why a conversation does not render."""


class _Template:
    """A template, with what is known of it."""

    def __init__(self, source: str, definition: dict[str, Any]) -> None:
        compiled = compile_template(source, definition["date"])
        self._template = compiled.template
        self._constants = json.dumps(definition["constants"], ensure_ascii=False)
        parsed = json.loads(self._constants)
        is_plain = not any(isinstance(value, (dict, list)) for value in parsed.values())
        self._plain_constants = parsed if is_plain else None
        # An address spelled out in the template or its constants is not a memory address.
        self._known_text = json.dumps(source, ensure_ascii=False) + self._constants
        self._assistant: str = definition["assistant"]
        self._forms = ContentForms(functools.partial(self._try, {}))
        self._finds = definition["finds_generation"] and not compiled.marks_generation
        self._find_for = functools.lru_cache(maxsize=_KNOWN_VARIABLES)(self._make_finder)
        self._needs_variables = bool(compiled.needed_variables - definition["constants"].keys())
        not_found = None
        if self._finds:
            try:
                self._find_for("{}")
            except NotFoundError as error:
                # What only records give may be missing.
                not_found = None if self._needs_variables else str(error)
        self.facts = {"marks_generation": compiled.marks_generation, "not_found": not_found}

    def answer(self, request: dict[str, Any]) -> Answer | bytes:
        """Render a conversation.

        Args:
            request: As made by `write_conversation` or `_read_line`.

        Returns:
            The bytes of `write_answer`; `text` with a lone surrogate, and `spans`; or `problem`, the reason, and
            `kind`.
        """
        try:
            pieces = self._render(request["variables"], self._forms.fit(request["messages"]), is_prompt=False)
            if not self._finds and request.get("learnt") is None and (spelt := _spell_pieces(pieces)) is not None:
                if b" at 0x" in spelt.spelt:
                    self._refuse_address(spelt.spelt.decode(), request)
                return write_answer(spelt._replace(has_special=True) if request.get("has_special") else spelt)
            text, spans = _take_marks("".join(pieces))
            if " at 0x" in text:
                self._refuse_address(text, request)
            spans = self._find_learnt(request, text, spans)
            try:
                return write_answer(spell_text(text, spans)._replace(has_special=request.get("has_special", False)))
            except UnicodeEncodeError:
                return {"text": text, "spans": spans}
        except _RenderError as error:
            return {"kind": "template-failed", "problem": f"the chat template {error}"}
        except NotFoundError as error:
            return {"kind": "generation-not-found", "problem": str(error)}

    def _refuse_address(self, text: str, request: dict[str, Any]) -> None:
        if _has_new_address(text, self._known_text, json.dumps(request, ensure_ascii=False)):
            raise _RenderError("writes the address of an object in memory, which no output may depend on")

    def _find_learnt(self, request: dict[str, Any], text: str, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
        messages, learnt = request["messages"], request.get("learnt")
        render = functools.partial(self._try_forms, request["variables"])
        if self._finds:
            own = {name: value for name, value in request["variables"].items() if name not in ("tools", "documents")}
            finder = self._find_for(json.dumps(own, sort_keys=True) if self._needs_variables else "{}")
            return finder.find(render, messages, text, learnt)
        if learnt is None:
            return spans
        replies = [number for number, message in enumerate(messages) if message["role"] == self._assistant]
        return keep_learnt(render, messages, spans, replies, learnt)

    def _make_finder(self, variables: str) -> GenerationFinder:
        return GenerationFinder(functools.partial(self._try_forms, json.loads(variables)), self._assistant)

    def _try_forms(self, variables: dict[str, Any], messages: list[Any], is_prompt: bool) -> Rendered | str:
        return self._try(variables, self._forms.fit(messages), is_prompt)

    def _try(self, variables: dict[str, Any], messages: list[Any], is_prompt: bool) -> Rendered | str:
        """Return the rendered text with its spans, or the reason why there is none."""
        try:
            return _take_marks("".join(self._render(variables, messages, is_prompt=is_prompt)))
        except _RenderError as error:
            return str(error)

    def _render(self, variables: dict[str, Any], messages: list[Any], *, is_prompt: bool) -> list[str]:
        """Return the pieces of a rendered text, with marks."""
        # Constants with objects or lists are parsed anew for each record, since rendering may change them.
        constants = json.loads(self._constants) if self._plain_constants is None else self._plain_constants
        known = {**constants, **variables, "messages": messages, "add_generation_prompt": is_prompt}
        try:
            template = self._template
            return list(template.root_render_func(template.new_context(known)))
        except MemoryError:
            raise
        except Exception as error:
            reason = _ADDRESS.sub(">", str(error) or type(error).__name__)[:SHOWN_CHARACTERS]
            raise _RenderError(f"does not render: {reason}") from error


def _read_line(reader: ConversationReader, special: SpecialTexts, line: bytes) -> dict[str, Any]:
    """Return the request to render the conversation of a line.

    Raises:
        RecordProblem: If it is not a conversation, or has a special token's string, which is refused.
    """
    try:
        conversation = reader.read_line(line)
        has_special = special.are_in(conversation)
    except RecursionError:
        raise too_deep() from None
    return {
        "variables": conversation.variables,
        "messages": conversation.messages,
        "learnt": conversation.learnt,
        "has_special": has_special,
    }


def _spell_pieces(pieces: list[str]) -> RenderedText | None:
    """Return the text of pieces, whose marks are pieces of their own; None if they are parts of other pieces."""
    parts: list[bytes] = []
    ends: list[int] = []
    begin = size = 0
    try:
        for number, piece in enumerate(pieces):
            if piece in (BEGIN_MARK, END_MARK):
                if (piece == BEGIN_MARK) == bool(len(ends) % 2):
                    return None
                parts.append("".join(pieces[begin:number]).encode())
                size += len(parts[-1])
                ends.append(size)
                begin = number + 1
        parts.append("".join(pieces[begin:]).encode())
    except UnicodeEncodeError:
        return None
    return None if len(ends) % 2 else RenderedText(b"".join(parts), tuple(ends))


def _answer_nothing(record: bytes) -> Answer:
    raise AssertionError(f"a refused template cannot render {record!r}")


def _has_new_address(text: str, known_text: str, record: str) -> bool:
    """Tell whether a text has an address that occurs neither in the template nor in the record."""
    return any(found not in known_text and found not in record for found in {*_ADDRESS.findall(text)})


def _take_marks(marked: str) -> Rendered:
    before, *opened = marked.split(BEGIN_MARK)
    pieces, spans, position = [before], [], len(before)
    for piece in opened:
        marked_text, _, after = piece.partition(END_MARK)
        spans.append((position, position + len(marked_text)))
        position += len(marked_text) + len(after)
        pieces += (marked_text, after)
    text = "".join(pieces)
    if marked.count(END_MARK) != len(opened) or END_MARK in text:
        raise _RenderError("leaves a generation block before its end (break, continue?)")
    return text, spans
