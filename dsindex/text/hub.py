"""Tokenizers by name, such as `gpt2` or `meta-llama/Llama-3.1-8B@main`: from the Hugging Face cache, else from the hub.

Only the files of a tokenizer are fetched, never code or weights. What is in the cache is used without asking the hub;
HF_HUB_OFFLINE and HF_HOME have their usual meaning. The commit that was found is the tokenizer's revision.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from dsindex.errors import TokenizerError

_NAME = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?)(@(?P<revision>[\w][\w./-]*))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_MAIN_FILES = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json", "*.tiktoken")
_FILES = (
    *_MAIN_FILES, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt",
    "chat_template.jinja", "chat_template.json", "additional_chat_templates/*.jinja",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTokenizer:
    """A tokenizer's files on this machine."""

    path: str
    name: str | None = None
    """Its name in the hub; None for a path."""
    revision: str | None = None
    """The commit, in hexadecimal; None for a path."""


def can_be_name(path: str) -> bool:
    """Tell whether a text can be the name of a tokenizer, unless it is a path that exists.

    >>> can_be_name("gpt2"), can_be_name("openai/gpt2@main"), can_be_name("tokenizer.json"), can_be_name("./gpt2")
    (True, True, False, False)
    """
    return bool(_NAME.fullmatch(path)) and not path.endswith((".json", ".model", ".tiktoken", ".txt"))


def find_tokenizer(path: str) -> FoundTokenizer:
    """Return a path as it is if it exists or cannot be a name, else the local folder of the tokenizer of that name.

    Raises:
        TokenizerError: If there is neither a file, nor a copy in the cache, nor one that can be fetched.
    """
    match = _NAME.fullmatch(path)
    if os.path.exists(path) or match is None or not can_be_name(path):
        return FoundTokenizer(path=path)
    name, revision = match["name"], match["revision"]
    folder = _cached(name, revision) or _fetched(path, name, revision)
    commit = os.path.basename(folder)
    if not _COMMIT.fullmatch(commit):
        msg = f"{path}: expected a folder named after a commit in the Hugging Face cache, got {folder}; give its path"
        raise TokenizerError(msg)
    return FoundTokenizer(path=folder, name=name, revision=commit)


def _cached(name: str, revision: str | None) -> str | None:
    """Return the folder in the cache if it has a tokenizer."""
    from huggingface_hub import snapshot_download

    try:
        folder = str(snapshot_download(name, revision=revision, local_files_only=True, allow_patterns=list(_FILES)))
    except Exception:  # noqa: BLE001 - its errors differ by release; the hub is asked next
        return None
    return folder if _has_tokenizer(folder) else None


def _fetched(path: str, name: str, revision: str | None) -> str:
    from huggingface_hub import snapshot_download

    try:
        folder = str(snapshot_download(name, revision=revision, allow_patterns=list(_FILES)))
    except Exception as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise TokenizerError(_not_found(path, reason[:200])) from error
    if not _has_tokenizer(folder):
        raise TokenizerError(_not_found(path, "it has files of that name, but no tokenizer"))
    return folder


def _has_tokenizer(folder: str) -> bool:
    return any(name in _MAIN_FILES or name.endswith(".tiktoken") for name in os.listdir(folder))


def _not_found(path: str, reason: str) -> str:
    return (
        f"{path}: expected a file, a folder, or the name of a tokenizer in the Hugging Face cache or hub; there is no "
        f"such path, the cache has no such tokenizer, and the hub gave none ({reason}); give the path of a copy"
    )
