"""The configuration of instruction-tuning data, one YAML file.

Either `message_construction` (with `special_tokens` and `loss_masking_jq_patterns`) or a chat template turns a record
into a prompt, never both.
"""

from __future__ import annotations

import datetime  # noqa: TC003 - msgspec reads it
import difflib
import re
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_type_hints

import msgspec
from msgspec import structs

from dsindex.errors import InputError
from dsindex.store.config_files import parse_yaml, read_yaml
from dsindex.store.errors import reading
from dsindex.store.local import open_file

if TYPE_CHECKING:
    from collections.abc import Mapping

CALL_ROLES = frozenset({"function_call", "tool_call"})
"""Roles of turns whose text consists of tool calls."""
DEFAULT_ROLES: Mapping[str, str] = {
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "model", *CALL_ROLES), "assistant"),
    **dict.fromkeys(("tool", "observation", "tool_response"), "tool"),
    **{role: role for role in ("system", "developer", "function", "ipython")},
}
"""Role in a record (upper or lower case) -> role in chat templates."""
RESERVED_VARIABLES = ("messages", "tools", "documents", "add_generation_prompt")
"""Template variables that neither a configuration nor `chat_template_kwargs` may set."""

# dsindex ships chat templates for the most common model families; a configuration refers to them by name.
#
# They are written for training: `{% generation %}` marks every reply, including the token that ends it. For every
# conversation that they accept, they render the same text as the family's published template.

_FOLDER = "templates"
_SUFFIX = ".jinja"
_KIND_NAMES = {"int": "an integer", "bool": "true or false", "str": "text", "array": "a list", "object": "a mapping"}
"""Type in a message of msgspec → the same in a sentence."""


def template_names() -> list[str]:
    """Return the names of the chat templates that dsindex ships, sorted."""
    files = resources.files("dsindex.chat").joinpath(_FOLDER).iterdir()
    return sorted(file.name.removesuffix(_SUFFIX) for file in files if file.name.endswith(_SUFFIX))


def read_template(name: str) -> str:
    """Return the jinja2 source of a chat template that dsindex ships.

    Raises:
        ValueError: If no template has this name.
    """
    names = template_names()
    if name not in names:
        close = difflib.get_close_matches(name.lower(), names, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ValueError(f"chat_template: {name!r} is neither jinja2 text nor one of {', '.join(names)}{hint}")
    return resources.files("dsindex.chat").joinpath(_FOLDER, name + _SUFFIX).read_text(encoding="utf-8")


_CONTROL_TOKEN = re.compile(r"<\|[^|>' ]+\|>|<(?:start|end)_of_turn>")


def control_tokens(template: str | None) -> list[str]:
    """Return the control tokens in the source of a template that dsindex ships, sorted; [] for any other template.

    >>> control_tokens(read_template("chatml")), control_tokens("<|mine|>")
    (['<|im_end|>', '<|im_start|>'], [])
    """
    is_named = template is not None and template in map(read_template, template_names())
    return sorted(set(_CONTROL_TOKEN.findall(template or ""))) if is_named else []


MAX_TEMPLATE_BYTES = 1 << 20
"""Largest chat template file; published templates take a few KiB."""


def name_special_tokens(tokens: object) -> object:
    """Return a mapping of name -> special token; each token in a list is its own name.

    >>> name_special_tokens(["<s>", "</s>"]), name_special_tokens({"eos_token": "</s>"})
    ({'<s>': '<s>', '</s>': '</s>'}, {'eos_token': '</s>'})
    """
    if not isinstance(tokens, (list, tuple)):
        return tokens
    texts_by_name: dict[str, Any] = {}
    for token in tokens:
        for name, text in token.items() if isinstance(token, dict) else [(token, token)]:
            if not isinstance(name, str):
                raise ValueError(f"special_tokens: a token must be a text, not {type(name).__name__}")
            if name in texts_by_name:
                raise ValueError(f"special_tokens: names {name!r} twice")
            texts_by_name[name] = text
    return texts_by_name


class InstructionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options for turning records into prompts, for masking them, and for limiting their length."""

    special_tokens: dict[str, str] = {}
    """Name -> text of a special token, which the tokenizer must encode as one id. `bos_token`, `eos_token` and
    `pad_token` have special meanings. In a list, each token is its own name."""
    message_construction: tuple[str, ...] = ()
    """Field names, in the order in which the texts of the fields are concatenated; empty to use a chat template."""
    loss_masking_jq_patterns: tuple[str, ...] = ()
    """Patterns that select masked text: `.field` masks a whole field, `.field | filter` each message of the field for
    which the jq filter has a result other than null and false."""
    jq_patterns: dict[str, str] | tuple[str, ...] | None = None
    """jq patterns that extract the fields of `message_construction` from a record; by default, field `x` is `.x`."""
    loss_masking_spans: dict[str, str] = {}
    """Field of `message_construction` -> jq pattern that extracts the masked spans of its text: pairs of the first and
    the last character (inclusive), as in Fast-LLM."""
    optional_fields: tuple[str, ...] | None = None
    """Fields that a record may lack. By default, the fields that a pattern such as `.role` masks entirely, because
    nothing in them is trained on."""
    unmatched_patterns: Literal["refuse", "allow"] = "refuse"
    """What to do with a record if a masking pattern selects nothing in a field that it has: refuse or allow it."""
    role_prefixes: dict[str, str] = {}
    """Mapped role -> text added before each message of that role; never trainable."""
    separator: str = ""
    """Text added between two parts of a prompt (fields or messages); never trainable."""
    eos_after: Literal["conversation", "reply"] = "conversation"
    """Add EOS only at the end of a conversation, or also after every trainable message."""

    chat_template: str | None = None
    """A jinja2 chat template, or the name of one that dsindex ships; None for the tokenizer's own."""
    chat_template_file: str | None = None
    """Path of a chat template file, relative to the configuration file."""
    chat_template_name: str = "default"
    """Which template to use if the tokenizer has several."""
    control_tokens: Literal["refuse", "allow"] = "refuse"
    """What to do if a named template has control tokens, such as `<|im_start|>`, that are not single ids of the
    tokenizer: refuse the template, or tokenize them like other text."""
    chat_template_data: dict[str, Any] = {}
    """Value of the template variable `chat_template_data`, as in Modalities."""
    template_variables: dict[str, Any] = {}
    """Further template variables, such as `enable_thinking`. A record's `chat_template_kwargs` override them."""
    join_template_lines: bool = False
    """Remove newlines between `}` and `{`, as Modalities does for a template written as a YAML block."""
    template_date: datetime.date | None = None
    """The date for `strftime_now`. Without it, a template that asks for the date is refused, because output must not
    depend on the day of the run."""
    b_include_to_loss_token: str | None = None
    """Begin marker, a special token as in Modalities: the tokens strictly between a begin and an end marker are
    trainable. Without markers, the text in `{% generation %}` blocks is trainable."""
    e_include_to_loss_token: str | None = None
    """End marker; set both markers or neither."""

    turns_field: str | None = None
    """A record's key for its list of turns, if it is not one of the usual keys."""
    role_mapping: dict[str, str] = {}
    """Role in a record -> role in the template, added to the usual roles. A record with an unknown role is bad."""
    assistant_role: str = "assistant"
    """The mapped role of replies. A reply ends an exchange, and a long conversation is split between exchanges."""
    learn: Literal["all", "last_turn"] = "all"
    """Train on all replies, or only on the replies after the last user message."""
    reasoning: Literal["learn", "mask", "drop"] = "learn"
    """Train on reasoning (`reasoning_content`, `<think>`), mask it, or drop it from the messages."""
    unwritten: Literal["count", "refuse"] = "count"
    """If the template leaves out a part of a record, such as its reasoning: count the record, or treat it as bad."""
    special_tokens_in_text: Literal["keep", "refuse"] = "keep"
    """If a message contains the text of a special token: encode it as that token and count it, or treat the record as
    bad."""

    max_length: Annotated[int, msgspec.Meta(ge=2)] | None = None
    """Maximum number of tokens of one sequence."""
    too_long: Literal["refuse", "truncate", "split"] = "refuse"
    """What to do with a conversation of more than `max_length` tokens: treat its record as bad, cut the conversation to
    its first `max_length` tokens, or split it between exchanges into several sequences, each with the whole prompt."""

    @property
    def roles(self) -> dict[str, str]:
        """Role in a record -> role in the template: the usual roles, extended by `role_mapping`."""
        return {**DEFAULT_ROLES, **self.role_mapping}

    @property
    def markers(self) -> dict[str, str]:
        """Option name -> text of the markers around trainable text; empty if `{% generation %}` marks it."""
        names = ("b_include_to_loss_token", "e_include_to_loss_token")
        return {name: text for name in names if (text := getattr(self, name)) is not None}

    def __post_init__(self) -> None:
        if self.message_construction:
            self._check_construction()
        elif self.loss_masking_jq_patterns:
            problem = "loss_masking_jq_patterns needs message_construction; a chat template marks what is trained on"
            raise ValueError(problem)
        if self.chat_template is not None and self.chat_template_file is not None:
            raise ValueError("set chat_template or chat_template_file, not both")
        begin, end = self.b_include_to_loss_token, self.e_include_to_loss_token
        if (begin is None) != (end is None) or (begin is not None and begin == end):
            problem = "b_include_to_loss_token and e_include_to_loss_token must be two different tokens, or absent"
            raise ValueError(problem)
        if begin is not None and self.learn != "all":
            raise ValueError(f"learn: {self.learn} needs {{% generation %}} rather than markers")
        masks_by_markers = self.reasoning == "mask" and begin is not None
        if masks_by_markers or (self.reasoning != "learn" and self.message_construction):
            raise ValueError(f"reasoning: {self.reasoning} needs a chat template, and mask one without markers")
        for name in RESERVED_VARIABLES:
            if name in self.template_variables:
                raise ValueError(f"template_variables cannot set {name!r}, which each record has")
        if self.too_long != "refuse" and self.max_length is None:
            raise ValueError(f"too_long: {self.too_long} needs max_length")

    def _check_construction(self) -> None:
        names = self.message_construction
        if len(set(names)) != len(names):
            raise ValueError(f"message_construction names a field twice: {', '.join(names)}")
        if self.chat_template is not None or self.chat_template_file is not None or self.b_include_to_loss_token:
            raise ValueError("set message_construction or a chat template, not both")
        for option in ("optional_fields", "loss_masking_spans"):
            if unknown := set(getattr(self, option) or ()) - set(names):
                raise ValueError(f"{option} names {min(unknown)!r}, which message_construction does not")
        if unknown := set(self.role_prefixes) - set(self.roles.values()):
            raise ValueError(f"role_prefixes names {min(unknown)!r}, to which role_mapping maps no role")


def parse_config(text: str, *, source: str = "configuration", folder: Path | None = None) -> InstructionConfig:
    """Read a configuration from YAML text.

    Args:
        text: YAML, one mapping.
        source: Name of the configuration in errors.
        folder: Folder that `chat_template_file` is relative to. The file's text becomes `chat_template`, so the result
            does not depend on other files.

    Raises:
        InputError: If the text is not YAML, or not a valid configuration.
    """
    return check_config(parse_yaml(text, source=source), source=source, folder=folder)


def read_instruction_config(path: Path) -> InstructionConfig:
    """Read a configuration from a YAML file.

    Raises:
        InputError: If the file cannot be read, or is not a valid configuration.
    """
    return check_config(read_yaml(str(path)), source=str(path), folder=path.parent)


def check_config(options: Mapping[str, Any], *, source: str, folder: Path | None = None) -> InstructionConfig:
    """Check options, and return a configuration that contains the text of its chat template.

    Args:
        options: Name -> value, as parsed from YAML.
        source: Name of the configuration in errors.
        folder: As for `parse_config`.

    Raises:
        InputError: If the options are invalid, or the chat template file cannot be read.
    """
    try:
        tokens = name_special_tokens(options.get("special_tokens") or {})
        config = msgspec.convert({**options, "special_tokens": tokens}, InstructionConfig)
        name = config.chat_template
        if config.chat_template_file is not None:
            template = _read_template_file((folder or Path()) / config.chat_template_file)
            config = structs.replace(config, chat_template=template, chat_template_file=None)
        elif name is not None and re.fullmatch(r"[\w.+-]*", name):
            config = structs.replace(config, chat_template=read_template(name))
        msgspec.json.encode(config)
    except UnicodeEncodeError as error:
        raise InputError(f"{source}: an option is not Unicode text ({error})") from error
    except (msgspec.ValidationError, ValueError) as error:
        raise InputError(f"{source}: {_explain_problem(str(error))}") from error
    return config


def _read_template_file(path: Path) -> str:
    try:
        with reading(str(path)), open_file(path) as file:
            template = file.read(MAX_TEMPLATE_BYTES + 1).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: the chat template is not UTF-8 (byte {error.start})") from error
    if len(template) > MAX_TEMPLATE_BYTES:
        raise InputError(f"{path}: a chat template has at most {MAX_TEMPLATE_BYTES >> 20} MiB; is this another file?")
    return template


def _explain_problem(problem: str) -> str:
    """Rewrite a msgspec error, which ends in `- at `$.separator``, so that it starts with the name of the option."""
    message, _, location = problem.partition(" - at `$.")
    name = location.rstrip("`").replace("[...]", "")
    field_match = re.fullmatch(r"Object contains unknown field `(.*)`", message)
    if field_match is not None:
        names = InstructionConfig.__struct_fields__
        close_names = " or ".join(difflib.get_close_matches(field_match[1], names, n=1))
        suggestion = f"did you mean {close_names}?" if close_names else f"the options are {', '.join(names)}"
        return f"{field_match[1]}: no such option; {suggestion}"
    enum_match = re.fullmatch(r"Invalid enum value '(.*)'", message)
    if enum_match is not None:
        values = get_args(get_type_hints(InstructionConfig)[name])
        message = f"{enum_match[1]!r} is not one of {', '.join(values[:-1])} or {values[-1]}"
    if message == "Invalid RFC3339 encoded date":
        message = "not a date such as 2026-01-31"
    type_match = re.fullmatch(r"Expected `([^`]*)`(.*?)(?:, \w+ `(.*)`)?", message)
    if type_match is not None:
        kinds = " or ".join(_KIND_NAMES.get(kind, kind) for kind in type_match[1].split(" | ") if kind != "null")
        given_kind = type_match[3] and f", not {_KIND_NAMES.get(type_match[3], type_match[3])}"
        message = f"must be {kinds}{type_match[2]}{given_kind or ''}"
    return f"{name}: {message}" if name else message
