"""The options of `dsindex pack`, and Modalities' own configuration files read as such options.

Modalities' `data pack_encoded_data` takes a file with two parts, `settings` and `tokenizer`. Settings that change its
output are honoured, or refused by name; those that change only how Modalities works are ignored, and listed.

Source: Modalities 0.5.0, PackedDatasetComponentsInstantiationModel and PreTrainedHFTokenizerConfig.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator

from dsindex.errors import InputError
from dsindex.formats import PICKLE_START
from dsindex.formats.pbin import CURRENT_VERSION, PbinEra
from dsindex.formats.pickled_pairs import read_pairs
from dsindex.option_problems import describe_problem
from dsindex.options.config import Options, TextConfig, output_place
from dsindex.options.datasets import PBIN_SUFFIX
from dsindex.options.declare import option
from dsindex.store.storage import open_file
from dsindex.store.urls import locate_output
from dsindex.text.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping

MODALITIES_PARTS = ("settings", "tokenizer")
NUM_CPUS = "${node_env:num_cpus}"
"""The only interpolation that is accepted: all CPUs, which is the default of dsindex."""
WITHOUT_EFFECT = ("processing_batch_size", "raw_samples_queue_size", "processed_samples_queue_size")
"""Settings that change how Modalities works but not what it writes."""


class PackCommand(Options):
    """What `dsindex pack` reads instead of text."""

    config_file: str | None = option(None, "the same as --config CONFIG", "CONFIG", positional=True)
    merge: tuple[str, ...] = option(
        (), "join these files instead of packing text", "FILE.pbin", group="input and output"
    )


class PackConfig(TextConfig):
    """`dsindex pack`: from JSONL to a `.pbin`."""

    group: ClassVar = "input and output"
    output: str = option(..., "the packed data, here or in a bucket (s3://, gs://)", "FILE.pbin")
    jq_pattern: str = option(
        ".text",
        "selects the text of a record (default: .text); anything but a single key is slower, as it runs jq",
        "JQ",
    )
    pbin_era: PbinEra = option("current", f"version of the .pbin to write (default: {CURRENT_VERSION.name})")

    @model_validator(mode="before")
    @classmethod
    def _derive_prefix(cls, values: Any) -> Any:  # noqa: ANN401 - not validated yet
        """Name the files beside the `.pbin` after it; a missing output is reported by its own name alone."""
        return {**values, "output_prefix": str(values.get("output") or "output").removesuffix(PBIN_SUFFIX)}

    @field_validator("output_prefix")
    @classmethod
    def _ends_in_a_name(cls, prefix: str) -> str:
        """It follows from `output`, which is checked below."""
        return prefix

    @field_validator("output_prefix")
    @classmethod
    def _may_be_an_address(cls, prefix: str) -> str:
        try:
            return locate_output(prefix)
        except InputError:
            return prefix

    @field_validator("output", "work_dir")
    @classmethod
    def _can_be_written(cls, path: str | None) -> str | None:
        return output_place(path)

    @field_validator("output")
    @classmethod
    def _names_a_pbin_file(cls, output: str) -> str:
        if not output.endswith(PBIN_SUFFIX) or not os.path.basename(output).removesuffix(PBIN_SUFFIX):
            raise ValueError(f"expected the name of a {PBIN_SUFFIX} file, got {output!r}")
        return output


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Settings(_Part):
    src_path: str
    dst_path: str | None = None
    index_path: str | None = None
    jq_pattern: str
    num_cpus: int | Literal["${node_env:num_cpus}"] | None = None
    eod_token: str
    processing_batch_size: int | None = None
    raw_samples_queue_size: int | None = None
    processed_samples_queue_size: int | None = None


class _TokenizerConfig(_Part):
    pretrained_model_name_or_path: str
    max_length: int | None = None
    """Without effect, since truncation and padding are refused."""
    truncation: Literal[False] | None = None
    padding: Literal[False, "do_not_pad"] | None = None
    special_tokens: dict[str, str | list[str]] | None = None


class _Tokenizer(_Part):
    component_key: Literal["tokenizer"]
    variant_key: Literal["pretrained_hf_tokenizer"]
    config: _TokenizerConfig


class _Modalities(_Part):
    settings: _Settings
    tokenizer: _Tokenizer


def is_modalities_config(loaded: Mapping[str, Any]) -> bool:
    """Return whether a configuration file has Modalities' form; in dsindex's form the keys are options."""
    return any(part in loaded for part in MODALITIES_PARTS)


def read_modalities_config(path: str, loaded: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Read Modalities' form as options of PackConfig.

    Args:
        path: The file, for messages.
        loaded: The file's content.

    Returns:
        The options, and the names of settings that are ignored.

    Raises:
        InputError: Naming the first setting that cannot be honoured.
        TokenizerError: If the tokenizer cannot be loaded.
    """
    _refuse_interpolations(path, dict(loaded), "")
    try:
        config = _Modalities.model_validate(dict(loaded))
    except ValidationError as error:
        raise InputError(f"{path}: {_describe(error)}") from error
    settings, tokenizer = config.settings, config.tokenizer.config
    _check_special_tokens(path, tokenizer)
    _check_index(path, settings)
    options: dict[str, Any] = {
        "input": [settings.src_path],
        "output": settings.dst_path or os.path.splitext(settings.src_path)[0] + PBIN_SUFFIX,
        "tokenizer_model": tokenizer.pretrained_model_name_or_path,
        "eod_token": settings.eod_token,
        "jq_pattern": settings.jq_pattern,
    }
    if isinstance(settings.num_cpus, int):
        options["workers"] = settings.num_cpus
    return options, [f"settings.{name}" for name in WITHOUT_EFFECT if getattr(settings, name) is not None]


def _refuse_interpolations(path: str, value: object, name: str) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _refuse_interpolations(path, item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            _refuse_interpolations(path, item, f"{name}[{number}]")
    elif isinstance(value, str) and "${" in value and not (name == "settings.num_cpus" and value == NUM_CPUS):
        msg = f"{path}: {name}: expected a plain value, got the interpolation {value!r}; write the value itself"
        raise InputError(msg)


_ADVICE = {
    "variant_key": "dsindex pack reads a tokenizer.json, which is a pretrained_hf_tokenizer",
    "truncation": "dsindex does not truncate documents; set it to false",
    "padding": "dsindex does not pad documents; set it to false",
}


def _describe(error: ValidationError) -> str:
    problem = error.errors()[0]
    name = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "missing":
        return f"{name} is required"
    if problem["type"] == "extra_forbidden":
        return f"{name}: unknown, so it cannot be honoured; leave it out"
    leaf = next((part for part in problem["loc"] if part in _ADVICE), None)
    advice = f"; {_ADVICE[str(leaf)]}" if leaf is not None else ""
    return f"{name}: {describe_problem(problem)}{advice}"


def _check_special_tokens(path: str, config: _TokenizerConfig) -> None:
    """Check that `special_tokens` names only existing special tokens: adding those changes no token."""
    if not config.special_tokens:
        return
    known = load_tokenizer(config.pretrained_model_name_or_path).special_tokens
    for name, value in config.special_tokens.items():
        for token in [value] if isinstance(value, str) else value:
            if token not in known:
                raise InputError(
                    f"{path}: tokenizer.config.special_tokens.{name}: expected a special token of the tokenizer, got "
                    f"{token!r}; add it to the tokenizer, save the tokenizer, and name the new folder"
                )


def _check_index(path: str, settings: _Settings) -> None:
    """Check that the raw index has every line, because dsindex finds lines in the JSONL and not through the index."""
    index_path = settings.index_path or os.path.splitext(settings.src_path)[0] + ".idx"
    try:
        with open_file(index_path) as file:
            is_raw_index = file.read(1) == PICKLE_START
        size_bytes = os.path.getsize(settings.src_path)
    except OSError:
        return  # an index is optional, and a missing input is reported where it is opened
    if not is_raw_index and settings.index_path is None:
        return  # an MMIDIDX index has the same suffix
    pairs = read_pairs(index_path)
    ends = np.concatenate(([0], pairs.sum(axis=1) + 1))
    gaps = np.flatnonzero(pairs[:, 0] != ends[:-1])
    end = int(ends[gaps[0]] if len(gaps) else ends[-1])
    if not len(gaps) and end - 1 <= size_bytes <= end:  # with or without a newline at the end
        return
    raise InputError(
        f"{path}: settings.index_path: expected an index of every line of {settings.src_path}, got one that leaves out "
        f"the line at byte {end} ({index_path}); dsindex packs every line: remove lines from the file, or leave "
        f"the index out and set bad records aside with --on-bad-record quarantine"
    )
