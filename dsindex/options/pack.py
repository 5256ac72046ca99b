"""The options of `dsindex pack`, and Modalities' own configuration files read as such options.

Modalities' `data pack_encoded_data` takes a file with two parts, `settings` and `tokenizer`. Settings that change its
output are honoured, or refused by name; those that change only how Modalities works are ignored, and listed.

Source: Modalities 0.5.0, PackedDatasetComponentsInstantiationModel and PreTrainedHFTokenizerConfig.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ClassVar

from dsindex.errors import InputError, UsageError
from dsindex.option_problems import show_value
from dsindex.options.config import (
    PBIN_SUFFIX,
    OptionalPath,
    Path,
    Paths,
    TextConfig,
    local_output,
)
from dsindex.options.datasets import PbinEra
from dsindex.options.model import Options, option
from dsindex.store.urls import locate_output

if TYPE_CHECKING:
    from collections.abc import Mapping

MODALITIES_PARTS = ("settings", "tokenizer")
NUM_CPUS = "${node_env:num_cpus}"
"""The only interpolation that is accepted: all CPUs, which is the default of dsindex."""
WITHOUT_EFFECT = ("processing_batch_size", "raw_samples_queue_size", "processed_samples_queue_size")
"""Settings that change how Modalities works but not what it writes."""


class PackCommand(Options):
    """What `dsindex pack` reads instead of text."""

    config: OptionalPath = option("CONFIG", default=None, positional=True)
    """The same as --config CONFIG."""
    merge: Paths = option("FILE.pbin", default=(), group="input and output")
    """Join these files instead of packing text."""


class JoinConfig(Options):
    """`dsindex pack --merge`: `.pbin` files joined to one."""

    merge: Paths = option(default=...)
    output: Path = option(default=..., parse=local_output)
    pbin_era: PbinEra = option(default="current")

    def _agree(self) -> None:
        if not self.output.endswith(PBIN_SUFFIX):
            raise ValueError(
                f"--output: expected the name of a new {PBIN_SUFFIX} file for --merge, got {self.output!r}"
            )


class PackConfig(TextConfig):
    """`dsindex pack`: from JSONL to a `.pbin`."""

    group: ClassVar = "input and output"
    output_prefix: Path = option()
    output: Path = option("FILE.pbin", parse=locate_output)
    """The packed data, here or in a bucket (s3://, gs://)."""
    jq_pattern: str = option("JQ", default=".text")
    """Selects the text of a record (default: .text); anything but a single key is slower, as it runs jq."""
    pbin_era: PbinEra = option(default="current")
    """Version of the .pbin to write (default: current)."""

    @classmethod
    def prepare(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Name the files beside the `.pbin` after it."""
        if "output_prefix" in values:
            raise UsageError("there is no option 'output_prefix'; use --output FILE.pbin")
        output = str(values.get("output") or f"out{PBIN_SUFFIX}")
        if not output.endswith(PBIN_SUFFIX) or not os.path.basename(output).removesuffix(PBIN_SUFFIX):
            raise UsageError(f"--output: expected the name of a {PBIN_SUFFIX} file, got {output!r}")
        return {**values, "output_prefix": locate_output(output.removesuffix(PBIN_SUFFIX))}


def is_modalities_config(loaded: Mapping[str, Any]) -> bool:
    """Return whether a configuration file has Modalities' form; in dsindex's form the keys are options."""
    return any(part in loaded for part in MODALITIES_PARTS)


_SETTINGS = {"src_path", "dst_path", "index_path", "jq_pattern", "num_cpus", "eod_token", *WITHOUT_EFFECT}
_TOKENIZER = {"pretrained_model_name_or_path", "max_length", "truncation", "padding", "special_tokens"}


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
    settings = _part(path, loaded, "settings", _SETTINGS, required=("src_path", "jq_pattern", "eod_token"))
    outer = _part(path, loaded, "tokenizer", {"component_key", "variant_key", "config"}, required=("variant_key",))
    if outer["variant_key"] != "pretrained_hf_tokenizer":
        msg = f"{path}: tokenizer.variant_key: expected pretrained_hf_tokenizer, got {show_value(outer['variant_key'])}"
        raise InputError(f"{msg}; dsindex pack reads a tokenizer.json")
    name = "pretrained_model_name_or_path"
    tokenizer = _part(path, outer, "config", _TOKENIZER, required=(name,), inside="tokenizer.")
    for key, allowed in (("truncation", (None, False)), ("padding", (None, False, "do_not_pad"))):
        if tokenizer.get(key) not in allowed:
            msg = f"{path}: tokenizer.config.{key}: expected false, got {show_value(tokenizer[key])}"
            raise InputError(f"{msg}; dsindex does neither truncate nor pad documents")
    _check_special_tokens(path, tokenizer[name], tokenizer.get("special_tokens") or {})
    _check_index(path, settings["src_path"], settings.get("index_path"))
    options: dict[str, Any] = {
        "input": [settings["src_path"]],
        "output": settings.get("dst_path") or os.path.splitext(settings["src_path"])[0] + PBIN_SUFFIX,
        "tokenizer_model": tokenizer[name],
        "eod_token": settings["eod_token"],
        "jq_pattern": settings["jq_pattern"],
    }
    if isinstance(settings.get("num_cpus"), int):
        options["workers"] = settings["num_cpus"]
    return options, [f"settings.{name}" for name in WITHOUT_EFFECT if settings.get(name) is not None]


def _part(
    path: str, loaded: Mapping[str, Any], name: str, known: set[str], *, required: tuple[str, ...], inside: str = ""
) -> dict[str, Any]:
    """Return a mapping of a configuration, of whose keys all are known and those required are there."""
    part = loaded.get(name)
    if not isinstance(part, dict):
        raise InputError(f"{path}: {inside}{name}: expected a mapping, got {show_value(part)}")
    unknown = next((key for key in part if key not in known), None)
    if unknown is not None:
        raise InputError(f"{path}: {inside}{name}.{unknown}: unknown, so it cannot be honoured; leave it out")
    for key in required:
        if not isinstance(part.get(key), str):
            raise InputError(f"{path}: {inside}{name}.{key}: expected text, got {show_value(part.get(key))}")
    return part


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


def _check_special_tokens(path: str, model: str, tokens: Mapping[str, Any]) -> None:
    """Check that `special_tokens` names only existing special tokens: adding those changes no token."""
    if not tokens:
        return
    from dsindex.text.tokenizer import load_tokenizer  # loads what a help text does not need

    known = load_tokenizer(model).special_tokens
    for name, value in tokens.items():
        for token in [value] if isinstance(value, str) else value:
            if token not in known:
                raise InputError(
                    f"{path}: tokenizer.config.special_tokens.{name}: expected a special token of the tokenizer, got "
                    f"{token!r}; add it to the tokenizer, save the tokenizer, and name the new folder"
                )


def _check_index(path: str, source: str, given: str | None) -> None:
    """Check that the raw index has every line, because dsindex finds lines in the JSONL and not through the index."""
    import numpy as np  # as others here, what a help text does not need

    from dsindex.formats import PICKLE_START
    from dsindex.formats.pickled_pairs import read_pairs
    from dsindex.store.storage import open_file

    index_path = given or os.path.splitext(source)[0] + ".idx"
    try:
        with open_file(index_path) as file:
            is_raw_index = file.read(1) == PICKLE_START
        size_bytes = os.path.getsize(source)
    except OSError:
        return  # an index is optional, and a missing input is reported where it is opened
    if not is_raw_index and given is None:
        return  # an MMIDIDX index has the same suffix
    pairs = read_pairs(index_path)
    ends = np.concatenate(([0], pairs.sum(axis=1) + 1))
    gaps = np.flatnonzero(pairs[:, 0] != ends[:-1])
    end = int(ends[gaps[0]] if len(gaps) else ends[-1])
    if not len(gaps) and end - 1 <= size_bytes <= end:  # with or without a newline at the end
        return
    raise InputError(
        f"{path}: settings.index_path: expected an index of every line of {source}, got one that leaves out "
        f"the line at byte {end} ({index_path}); dsindex packs every line: remove lines from the file, or leave "
        f"the index out and set bad records aside with --on-bad-record quarantine"
    )
