"""Check the command of a job before it is sent to a cluster: its options, and that its paths mean something there.

A job runs in a folder of Ray's session, which is deleted with the cluster: what it wrote to a relative path would be
lost, and what it reads from one is not there unless it was shipped.
"""

from __future__ import annotations

import os
from contextlib import redirect_stderr
from io import StringIO
from typing import TYPE_CHECKING, Any

from dsindex.cli import build, index, instruct, pack
from dsindex.cli.demo import DemoConfig
from dsindex.cli.options import read_config
from dsindex.errors import InputError
from dsindex.execution.ray_address import parse_address
from dsindex.formats.raw_index import raw_index_path
from dsindex.options.config import Options, UsageError, validated
from dsindex.options.datasets import ConvertCommand, RawIndexConfig, VerifyCommand
from dsindex.options.merge import MergeConfig
from dsindex.options.pack import PackConfig, is_modalities_config
from dsindex.store.config_files import read_yaml
from dsindex.store.urls import has_query, is_absolute
from dsindex.text.tokenizer_file import can_be_name

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Collection, Iterator, Mapping

OUTPUTS = ("output_prefix", "output", "destination", "work_dir", "data_cache_path")
"""Options that name what a job writes."""
INPUTS = (
    *("input", "input_list", "merge", "prefix", "source", "file", "cache"),
    *("data_path", "train_data_path", "valid_data_path", "test_data_path", "tokenizer_identifiers", "like"),
    *("tokenizer_model", "vocab_file", "merge_file", "chat_template_file"),
)
"""Options that name what a job reads."""
CONFIGS = ("config", "config_file", "instruction")
"""Options that name a file of options."""
_POSITIONAL = {"prefix": "PREFIX", "source": "SRC", "destination": "DST", "file": "FILE.jsonl"}


def config_file(options: argparse.Namespace) -> str | None:
    """Return the file of options that a command names."""
    return next((path for name in CONFIGS if (path := getattr(options, name, None))), None)


def positional_config(options: argparse.Namespace) -> str | None:
    """Return the file of options that a command names without a flag."""
    return getattr(options, "config_file", None) or getattr(options, "instruction", None)


def check_command(command: str, options: argparse.Namespace, *, shipped: Collection[str]) -> None:
    """Refuse a command that would fail on the cluster for its options alone, or write where nothing lasts.

    Args:
        command: The command's name.
        options: Its parsed flags.
        shipped: The names under which the job finds what is shipped.

    Raises:
        UsageError: If the command itself would refuse its options, or a path is relative and not shipped.
        InputError: If its file of options cannot be read.
        TaskError: If the cluster that it names is none.
    """
    config = config_file(options)
    if config is None or os.path.exists(config):
        with redirect_stderr(StringIO()):  # the job prints the same notes
            given = _READERS[command](options)
    elif os.path.isabs(config):  # it may exist on the cluster, where the job reads it
        given = vars(options)
    else:
        msg = f"{config}: expected a file of options, found none in {os.getcwd()}; name a file here, to ship it"
        raise InputError(msg)
    if (address := given.get("address")) not in {None, "auto", "local"}:
        parse_address(str(address), source="--address")
    for name in OUTPUTS:
        for path in _paths(given, name):
            if not is_absolute(path):
                raise UsageError(_relative(name, path, is_output=True))
    for name in INPUTS:
        for path in _paths(given, name):
            _refuse_query(name, path)
            is_there = is_absolute(path) or path.split("/")[0] in shipped
            is_name = name == "tokenizer_model" and can_be_name(path) and not os.path.exists(path)
            if not is_there and not is_name:
                raise UsageError(_relative(name, path, is_output=False))


def _refuse_query(name: str, path: str) -> None:
    """Refuse a signed address, which would be logged with the job's command.

    Raises:
        UsageError: Naming it.
    """
    if has_query(path):
        raise UsageError(
            f"--{name}: expected addresses without a query on the command line of a job, which is logged, got "
            f"one for {path}; put it into a list, and name that with --input-list"
        )


def _relative(name: str, path: str, *, is_output: bool) -> str:
    """Return the sentence for a relative path."""
    flag = _POSITIONAL.get(name, "--" + name.replace("_", "-"))
    if is_output:
        problem, remedy = "the job would write it to Ray's session folder, which is deleted with the cluster", ""
    else:
        problem = "the job would look for it in Ray's session folder"
        remedy = "; or ship it, if it is small, with --ship PATH, and use its base name here"
    return (
        f"{flag}: expected an absolute path on storage that every node of the cluster sees, got {path!r}: {problem}; "
        f"write {os.path.abspath(path)} if the cluster sees this folder{remedy}"
    )


def _paths(given: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield the paths that an option holds, without weights and numbers of repetitions."""
    value = given.get(name)
    words = [value] if isinstance(value, str) else value or ()
    for word in words:
        if name == "repeat":
            yield word.rpartition("=")[0]
        elif not (name.endswith("data_path") and _is_weight(word)):
            yield word


def _is_weight(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _read_build(options: argparse.Namespace) -> dict[str, Any]:
    config, of_index = build.read_build_options(options)
    return {**(of_index or {}), **config.model_dump()}


def _read(kind: type[Options]) -> Callable[[argparse.Namespace], dict[str, Any]]:
    return lambda options: read_config(options, kind).model_dump()


def _read_index(options: argparse.Namespace) -> dict[str, Any]:
    return index.read_index_config(options).model_dump()


def _read_raw_index(options: argparse.Namespace) -> dict[str, Any]:
    given = read_config(options, RawIndexConfig)
    return {**given.model_dump(), "output": given.output or raw_index_path(given.file)}


def _read_pack(options: argparse.Namespace) -> dict[str, Any]:
    config = config_file(options)
    settings = read_yaml(config) if config else {}
    if is_modalities_config(settings):  # to read it is to load its tokenizer, which may be on the cluster only
        theirs: Any = settings.get("settings")
        paths = theirs if isinstance(theirs, dict) else {}
        return {"input": paths.get("src_path"), "output": paths.get("dst_path"), **_flags(options)}
    merged = pack.read_pack_options(options)
    if "merge" in merged:
        pack.read_merge_options(merged)
        return merged
    return validated(merged, PackConfig).model_dump(exclude={"output_prefix"})


def _read_instruct(options: argparse.Namespace) -> dict[str, Any]:
    settings = read_yaml(options.instruction)
    template = settings.get("chat_template_file")
    if not isinstance(template, str) or os.path.exists(os.path.join(os.path.dirname(options.instruction), template)):
        given = instruct.read_job(options)[0].model_dump()
    else:  # it may exist on the cluster, where the job reads it
        job = settings.get("job")
        given = {**(job if isinstance(job, dict) else {}), **_flags(options)}
    return {**given, "chat_template_file": template}


def _flags(options: argparse.Namespace) -> dict[str, Any]:
    return {name: value for name, value in vars(options).items() if value is not None}


_READERS: Mapping[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "build": _read_build,
    "plan": _read_build,
    "merge": _read(MergeConfig),
    "index": _read_index,
    "verify": _read(VerifyCommand),
    "convert": _read(ConvertCommand),
    "raw-index": _read_raw_index,
    "pack": _read_pack,
    "instruct": _read_instruct,
    "demo": _read(DemoConfig),
}
"""For each command that can run as a job: check its options as the command does, and return them."""
