"""The configuration of instruction-tuning data, as one YAML file spells it.

The spec's own three keys are `special_tokens`, `loss_masking_jq_patterns` and `message_construction`
(`indexed_dataset_and_finetuning.md`); a chat template is the other way to make a prompt. Never both.
"""

from __future__ import annotations

import datetime  # noqa: TC003  (pydantic reads the annotations)
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator
from pydantic_core import PydanticSerializationError

from dsindex.errors import InputError
from dsindex.instruct.records import DEFAULT_ROLES
from dsindex.regular_files import open_file
from dsindex.yaml_file import parse_yaml, read_yaml

if TYPE_CHECKING:
    from collections.abc import Mapping


class InstructionConfig(BaseModel):
    """How records become prompts, which of their text is trained on, and how long they may be."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    special_tokens: dict[str, str] = Field(default_factory=dict)
    """Name -> text of a token, which must be one id. `bos_token`, `eos_token` and `pad_token` have a meaning."""
    message_construction: tuple[str, ...] = ()
    """Names of fields in the order in which their texts are put together; none: a chat template is used."""
    loss_masking_jq_patterns: tuple[str, ...] = ()
    """What is masked: `.field`, or `.field | filter` where the filter is asked about every message of the field."""
    jq_patterns: dict[str, str] | tuple[str, ...] | None = None
    """Where the fields of `message_construction` are in a record; without it field `x` is `.x`."""
    optional_fields: tuple[str, ...] = ()
    """Fields that a record need not have."""
    unmatched_patterns: Literal["refuse", "allow"] = "refuse"
    """What happens to a record of which a masking pattern selects nothing, although its field is there."""
    role_prefixes: dict[str, str] = Field(default_factory=dict)
    """Text put before a message of a role (as mapped); never trained on."""
    separator: str = ""
    """Text put between two parts; never trained on."""
    eos_after: Literal["conversation", "reply"] = "conversation"
    """Where the EOS goes: once at the end, or after every trainable message and at the end."""

    chat_template: str | None = None
    """A jinja2 chat template; without it the tokenizer's own."""
    chat_template_file: Path | None = None
    """The same in a file, relative to the configuration."""
    chat_template_name: str = "default"
    """Which of several templates of a tokenizer."""
    chat_template_data: dict[str, JsonValue] = Field(default_factory=dict)
    """What a template finds as `chat_template_data`, as in Modalities."""
    join_template_lines: bool = False
    """Remove a newline between `}` and `{`, as Modalities does with a template written as a YAML block."""
    template_date: datetime.date | None = None
    """The date that `strftime_now` sees. Without it a template that asks for the date is refused: output never
    depends on the day."""
    b_include_to_loss_token: str | None = None
    """Marker tokens, as in Modalities: what lies strictly between the two is trained on. Without them
    `{% generation %}` blocks say what is trained on."""
    e_include_to_loss_token: str | None = None

    record_format: Literal["auto", "messages", "sharegpt", "alpaca"] = "auto"
    role_mapping: dict[str, str] = Field(default_factory=lambda: dict(DEFAULT_ROLES))
    """A record's role name -> the template's. Any other role is a problem of its record."""
    assistant_role: str = "assistant"
    """The mapped role whose messages end an exchange; used where a long conversation is split."""
    special_tokens_in_text: Literal["keep", "refuse"] = "keep"
    """A special token's text in a message becomes that token, as everywhere in dsindex, and is counted; or refused."""

    max_length: int | None = Field(default=None, ge=2)
    """The most tokens of one sequence."""
    too_long: Literal["refuse", "truncate", "split"] = "refuse"
    """A longer conversation: a problem of its record; its first `max_length` tokens; or several sequences, cut
    between exchanges, each with the prompt of the whole."""

    @model_validator(mode="after")
    def _check(self) -> InstructionConfig:
        if self.message_construction:
            self._check_construction()
        elif self.loss_masking_jq_patterns:
            raise ValueError(
                "loss_masking_jq_patterns needs message_construction; a chat template marks what is trained on"
            )
        if self.chat_template is not None and self.chat_template_file is not None:
            raise ValueError("expected chat_template or chat_template_file, got both")
        begin, end = self.b_include_to_loss_token, self.e_include_to_loss_token
        if (begin is None) != (end is None) or (begin is not None and begin == end):
            raise ValueError(
                "b_include_to_loss_token and e_include_to_loss_token must be two different tokens, or absent"
            )
        if self.too_long != "refuse" and self.max_length is None:
            raise ValueError(f"too_long: {self.too_long} needs max_length")
        return self

    def _check_construction(self) -> None:
        names = self.message_construction
        if len(set(names)) != len(names):
            raise ValueError(f"message_construction names a field twice: {', '.join(names)}")
        if self.chat_template is not None or self.chat_template_file is not None or self.b_include_to_loss_token:
            raise ValueError("expected message_construction or a chat template, got both")
        if unknown := set(self.optional_fields) - set(names):
            raise ValueError(f"optional_fields names {min(unknown)!r}, which message_construction does not")
        if unknown := set(self.role_prefixes) - set(self.role_mapping.values()):
            raise ValueError(f"role_prefixes names {min(unknown)!r}, which role_mapping never gives")


def parse_config(text: str, *, source: str = "configuration", folder: Path | None = None) -> InstructionConfig:
    """Read a configuration from YAML text.

    Args:
        text: YAML, one mapping.
        source: What error messages call it.
        folder: Where a relative `chat_template_file` is looked for; its text becomes `chat_template`, so that the
            configuration is complete in itself.

    Raises:
        InputError: If the text is not YAML, or not this configuration.
    """
    return check_config(parse_yaml(text, source=source), source=source, folder=folder)


def check_config(options: Mapping[str, Any], *, source: str, folder: Path | None = None) -> InstructionConfig:
    """Return options as a configuration that is complete in itself.

    Args:
        options: Name -> value, as YAML gives them.
        source: What error messages call it.
        folder: As for `parse_config`.

    Raises:
        InputError: If they are not this configuration, or the file of a chat template cannot be read.
    """
    try:
        config = InstructionConfig.model_validate(options)
    except ValidationError as error:
        raise InputError(f"{source}: {_explain(error)}") from error
    if config.chat_template_file is None:
        return _complete(config, source)
    path = (folder or Path()) / config.chat_template_file
    try:
        with open_file(path) as file:
            template = file.read().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: expected a chat template in UTF-8, got {error}") from error
    return _complete(config.model_copy(update={"chat_template": template, "chat_template_file": None}), source)


def _complete(config: InstructionConfig, source: str) -> InstructionConfig:
    """Refuse what can be no part of a prompt or of a manifest: YAML spells letters that no UTF-8 can hold."""
    try:
        config.model_dump_json()
    except PydanticSerializationError as error:
        reason = str(error).partition("UnicodeEncodeError: ")[2] or str(error)
        raise InputError(f"{source}: expected Unicode text in every option, got another ({reason})") from error
    return config


def read_instruction_config(path: Path) -> InstructionConfig:
    """Read a configuration from a YAML file.

    Raises:
        InputError: If the file cannot be read, or is not this configuration.
    """
    return check_config(read_yaml(str(path)), source=str(path), folder=path.parent)


def _explain(error: ValidationError) -> str:
    found: list[str] = []
    for detail in error.errors():
        place = ".".join(str(part) for part in detail["loc"])
        known: Any = InstructionConfig.model_fields
        if detail["type"] == "extra_forbidden":
            found.append(f"{place}: no such option; the options are {', '.join(known)}")
        else:
            message = detail["msg"].removeprefix("Value error, ")
            found.append(f"{place}: {message}" if place else message)
    return "; ".join(found)
