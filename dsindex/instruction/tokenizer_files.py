"""Read names of special tokens and chat templates from a tokenizer's folder.

The layout is Hugging Face's: `tokenizer_config.json` (special tokens, `chat_template` as a text or a list of named
ones), `special_tokens_map.json`, and, in newer folders, `chat_template.jinja` and `additional_chat_templates/`, which
override the configuration's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsindex.errors import TokenizerError
from dsindex.store.storage import open_file

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFiles:
    """The texts of a tokenizer's folder that matter for chats."""

    special_tokens: dict[str, str]
    """Name -> text, for names that end in `_token`."""
    chat_templates: dict[str, str]
    """Name -> jinja2 text; the main one is called `default`."""


def read_tokenizer_folder(path: Path) -> TokenizerFiles:
    """Return the chat texts of a tokenizer's folder; a `tokenizer.json` alone has none.

    Raises:
        TokenizerError: If a file is unreadable or invalid.
    """
    if not path.is_dir():
        return TokenizerFiles(special_tokens={}, chat_templates={})
    tokens: dict[str, str] = {}
    templates: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (path / name).exists():
            described = _read_object(path / name)
            tokens |= _special_tokens(described)
            templates |= _templates(described.get("chat_template"), path / name)
    if (path / "chat_template.jinja").exists():
        templates["default"] = _read(path / "chat_template.jinja")
    for named in sorted((path / "additional_chat_templates").glob("*.jinja")):
        templates[named.stem] = _read(named)
    return TokenizerFiles(special_tokens=tokens, chat_templates=templates)


def _special_tokens(described: dict[str, Any]) -> dict[str, str]:
    found = {}
    for name, value in described.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


def _templates(described: object, path: Path) -> dict[str, str]:
    if described is None:
        return {}
    if isinstance(described, str):
        return {"default": described}
    try:
        named = {entry["name"]: entry["template"] for entry in described}  # type: ignore[attr-defined]  # TypeError if it is no list
    except (TypeError, KeyError):
        named = {"": None}
    if not all(isinstance(text, str) for text in named.values()):
        raise TokenizerError(f"{path}: expected chat_template to be a text or a list of name and template")
    return named


def _read_object(path: Path) -> dict[str, Any]:
    try:
        described = json.loads(_read(path))
    except ValueError as error:
        raise TokenizerError(f"{path}: expected JSON, got {error}") from error
    if not isinstance(described, dict):
        raise TokenizerError(f"{path}: expected a JSON object, got {type(described).__name__}")
    return described


def _read(path: Path) -> str:
    try:
        with open_file(path) as file:
            return file.read().decode("utf-8")
    except OSError as error:
        raise TokenizerError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise TokenizerError(
            f"{path}: expected a tokenizer's file in UTF-8, got other bytes at {error.start}"
        ) from error
