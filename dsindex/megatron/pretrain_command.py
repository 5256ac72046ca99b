"""What the index caches of a Megatron job depend on, from the command that starts it, as an argument vector.

`dsindex index … -- torchrun … pretrain_gpt.py …` gives it; the shell has expanded its variables. Flags that matter are
options of `dsindex index` under the same names; all others are ignored. Source:
`get_train_valid_test_num_samples` of megatron/training/training.py and `core_gpt_dataset_config_from_args` of
pretrain_gpt.py.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from dsindex.errors import InputError
from dsindex.megatron.flags import JobTokenizer, TrainingLength

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TOKENIZER_NAMES = tuple(each.name for each in fields(JobTokenizer))
"""The flags of a job's tokenizer as names of options."""
PATHS = ("data_path", "train_data_path", "valid_data_path", "test_data_path")
FILES = ("data_args_path", "per_split_data_args_path")
LENGTHS = tuple(each.name for each in fields(TrainingLength) if each.name not in {"sequence_length", "release"})
NAMES = (
    *(*PATHS, *FILES, "multiple_validation_sets", "seq_length", *LENGTHS, "split", "seed", "data_cache_path"),
    *("per_dataset_sequences_path", "mid_level_dataset_surplus", "fim_data", *TOKENIZER_NAMES),
)
"""The job's flags that are options of `dsindex index`, as names of options."""
LISTS = (*PATHS, "rampup_batch_size", "tokenizer_special_tokens", "tiktoken_special_tokens")
SWITCHES = {
    *("multiple_validation_sets", "fim_data"),
    *(each.name for each in (*fields(TrainingLength), *fields(JobTokenizer)) if each.default is False),
}
REFUSED = {
    "mock_data": "such a job makes up its data and looks for no caches",
    "sft": "such a job has an SFTDataset, which looks for no caches",
    "encoder_seq_length": "pretrain_gpt.py cuts samples by --seq-length; use that",
    "yaml_cfg": "Megatron then takes its settings from that file; give them as flags",
}
"""Flags of jobs whose caches cannot be prepared, and why."""
MODEL_SIZES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
SIZES = ("micro_batch_size", *MODEL_SIZES, "nnodes", "nproc_per_node")
"""What a job's batch size follows from if it does not say it."""
_OTHER_SCRIPT = re.compile(r"pretrain_(bert|t5|ict|retro|vlm|mimo|vision\w*)\.py|train_rl\.py")
_NEGATIVE_NUMBER = re.compile(r"-(\d|\.\d)")


@dataclass(slots=True)
class JobCommand:
    """What a command says about a job's caches."""

    options: dict[str, Any] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    """Flags on which no cache depends."""
    notes: list[str] = field(default_factory=list)


def take_command(words: Sequence[str], *, local_path: Callable[[str], str] = str) -> JobCommand:
    """Take what a job's caches depend on from its command, or from its flags alone.

    Args:
        words: Such as `torchrun --nnodes 2 pretrain_gpt.py --seq-length 4096 …`.
        local_path: Turns a path of the job into one of this machine.

    Raises:
        InputError: If a flag is refused, or nothing is taken.

    >>> take_command(["torchrun", "pretrain_gpt.py", "--seq-length", "4096", "--bf16"])
    JobCommand(options={'seq_length': '4096'}, ignored=['--bf16'], notes=[])
    """
    scripts = [word for word in words if word.endswith(".py")]
    if any(_OTHER_SCRIPT.fullmatch(os.path.basename(script)) for script in scripts):
        raise InputError(
            f"{scripts[-1]} has datasets of its own; only caches of pretrain_gpt.py's kind can be prepared"
        )
    command, sizes = JobCommand(), dict[str, int]()
    for name, values in _flags(words):
        if name in REFUSED or (name == "dataloader_type" and values == ["external"]):
            raise InputError(f"{_flag(name)}: {REFUSED.get(name, 'a loader of the job itself looks for no caches')}")
        if name in SIZES and values[:1] and values[0].isdecimal():
            sizes[name] = int(values[0])
        if name in NAMES:
            command.options[name] = _value(name, values)
        elif name not in {"nnodes", "nproc_per_node"}:
            command.ignored.append(_flag(name))
    if not command.options:
        raise InputError("expected flags of pretrain_gpt.py after --, got none that its caches depend on")
    if "global_batch_size" not in command.options:
        _derive_batch_size(command, sizes)
    for name in {*PATHS, *FILES, "data_cache_path", "per_dataset_sequences_path"} & command.options.keys():
        value = command.options[name]
        command.options[name] = local_path(value) if isinstance(value, str) else list(map(local_path, value))
    return command


def _flags(words: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return flags as names of options, each with its values."""
    found: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            found.append((name.replace("-", "_"), [value] if equals else []))
        elif found and not word.endswith(".py") and (not word.startswith("-") or _NEGATIVE_NUMBER.match(word)):
            found[-1][1].append(word)
    return found


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _value(name: str, values: list[str]) -> Any:  # noqa: ANN401 - a switch, a text or a list of them
    if name in SWITCHES:
        return True
    if name in LISTS:
        return values
    if len(values) != 1:
        got = " ".join(values) or "none"
        raise InputError(f"{_flag(name)}: expected one value, as in pretrain_gpt.py, got {got}; quote it in the shell")
    return values[0]


def _derive_batch_size(command: JobCommand, sizes: dict[str, int]) -> None:
    """Without --global-batch-size, it is the micro-batch size times the number of data-parallel ranks."""
    world, model = sizes.get("nnodes", 1) * sizes.get("nproc_per_node", 0), 1
    for name in MODEL_SIZES:
        model *= sizes.get(name, 1)
    if "micro_batch_size" in sizes and world and model and world % model == 0:
        size = sizes["micro_batch_size"] * (world // model)
        command.options["global_batch_size"] = size
        command.notes.append(
            f"the job's batch size is {size}: --micro-batch-size {sizes['micro_batch_size']} on {world // model} "
            "data-parallel ranks"
        )


def merge_command(given: dict[str, Any], command: JobCommand) -> dict[str, Any]:
    """Return options with those of a job's command, which they override; notes of the command say what was taken."""
    options = dict(command.options)
    if any(name in given for name in (*PATHS, *FILES)):
        options = {name: value for name, value in options.items() if name not in {*PATHS, *FILES}}
    if any(name in given for name in ("epochs", "num_samples")):
        options = {name: value for name, value in options.items() if name not in LENGTHS}
    if given.get("train_iters") is not None or given.get("train_samples") is not None:
        options = {name: value for name, value in options.items() if name not in {"train_iters", "train_samples"}}
    taken = ", ".join(_flag(name) for name in options if name not in given)
    command.notes.append(f"from the command: {taken or 'nothing'}")
    if command.ignored:
        command.notes.append(f"no cache depends on {', '.join(dict.fromkeys(command.ignored))}")
    named = {"like", "tokenizer_identifiers"} & given.keys()
    if given.get("megatron_release") is not None and not named:
        options.setdefault("tokenizer_type", DEFAULT_TYPE)
    return {**options, **given}


DEFAULT_TYPE = "GPT2BPETokenizer"
"""What pretrain_gpt.py makes without --tokenizer-type."""


Replacement = tuple[str, str]
"""The beginning of a path here, and in the job."""


def parse_replacements(words: Sequence[str]) -> list[Replacement]:
    """Return the pairs of `--dataset-path-as`.

    Raises:
        InputError: If a word is none.

    >>> parse_replacements(["data=/lustre/data"])
    [('data', '/lustre/data')]
    """
    pairs = [(here, there) for here, equals, there in (word.partition("=") for word in words) if equals]
    if len(pairs) < len(list(words)):
        raise InputError(f"--dataset-path-as: expected HERE=THERE, beginnings of paths, got {' '.join(words)}")
    return pairs


def job_path(path: str, replacements: Sequence[Replacement]) -> str:
    """Return a path of this machine as the job types it; the longest beginning counts.

    >>> job_path("data/web", [("data", "/lustre/data")])
    '/lustre/data/web'
    """
    for here, there in sorted(replacements, key=lambda pair: -len(pair[0])):
        if path.startswith(here):
            return there + path.removeprefix(here)
    return path


def local_path(path: str, replacements: Sequence[Replacement]) -> str:
    """Return a path that the job types as it is on this machine."""
    return job_path(path, [(there, here) for here, there in replacements])
