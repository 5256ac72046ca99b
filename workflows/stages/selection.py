"""What a build reads from its records, as its options say: opened, and described for the plan and the manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsindex.text.keys import parse_key
from dsindex.text.selection import Selection, open_selection
from workflows.execution.choice import wants_ray

if TYPE_CHECKING:
    from dsindex.text.tokenizer import Tokenizer
    from workflows.options.build import BuildConfig


def select(config: BuildConfig, tokenizer: Tokenizer) -> Selection:
    """Return the selection of a build.

    Raises:
        InputError: If a jq program does not compile, or uses a part of jq that is not allowed.
    """
    size = None if config.token_ids is None else tokenizer.vocabulary_size
    return open_selection(config.keys, where=config.where, join=config.join, vocabulary_size=size)


def wanted_columns(config: BuildConfig) -> dict[str, tuple[str, ...]] | None:
    """Return the columns of texts that a table must have; None if jq reads whole records, or ids are read."""
    keys = [parse_key(key) for key in config.keys]
    if config.token_ids is not None or config.where is not None or any(key.path is None for key in keys):
        return None
    return {key.name: key.path for key in keys if key.path is not None}


def run_jq_in_processes(config: BuildConfig, selection: Selection) -> BuildConfig:
    """Return the options with an executor on which jq is fast.

    With jq, Python code checks every record and holds the interpreter's lock, so `auto` becomes processes.
    """
    if selection.needs_jq and config.executor == "auto" and not wants_ray(config):
        return config.model_copy(update={"executor": "processes"})
    return config


def plan_settings(config: BuildConfig) -> dict[str, Any]:
    """Return the selection's part of a plan's settings, named after the options that are used."""
    keys = {"json-keys": list(config.json_keys)} if config.token_ids is None else {"token-ids": config.token_ids}
    used = _used({"join": config.join, "where": config.where})
    return {**keys, **used, **({} if config.empty_documents == "keep" else {"empty-documents": config.empty_documents})}


def recorded_options(config: BuildConfig, output: int) -> dict[str, Any]:
    """Return the options of an output for its manifest, as fields of RecordedOptions.

    Args:
        config: The options of the build.
        output: Number of the output.
    """
    if config.token_ids is not None:
        keys: dict[str, Any] = {"token_ids": config.token_ids}
    elif config.join is not None:
        keys = {"json_keys": list(config.json_keys)}
    else:
        keys = {"json_key": config.json_keys[output]}
    own = None if config.empty_documents == "keep" else config.empty_documents
    return {**keys, **_used({"join": config.join, "where": config.where, "empty_documents": own})}


def _used(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
