"""Read the options of a Megatron job's index caches from the command that starts the job.

The command is an argument vector, from `dsindex index … -- torchrun … pretrain_gpt.py …`; the shell has expanded its
variables. Flags that matter are options of `dsindex index` under the same names; all other flags only have to exist in
the job's release.

`job_flags.txt`, written by tests/peers/job_flags.py, has a line of releases, then a line of the flags that exactly
these releases have, and so on.

Source: `get_train_valid_test_num_samples` of megatron/training/training.py and `core_gpt_dataset_config_from_args` of
pretrain_gpt.py.
"""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass, field, fields
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeAlias

from dsindex.errors import InputError
from dsindex.megatron.flags import JobTokenizer, TrainingLength

if TYPE_CHECKING:
    from collections.abc import Sequence

TOKENIZER_NAMES = tuple(flag.name for flag in fields(JobTokenizer))
"""The flags of a job's tokenizer as names of options."""
PATHS = ("data_path", "train_data_path", "valid_data_path", "test_data_path")
FILES = ("data_args_path", "per_split_data_args_path")
LENGTHS = tuple(flag.name for flag in fields(TrainingLength) if flag.name not in {"sequence_length", "release"})
NAMES = (
    *(*PATHS, *FILES, "multiple_validation_sets", "seq_length", *LENGTHS, "split", "seed", "data_cache_path"),
    *("per_dataset_sequences_path", "mid_level_dataset_surplus", "fim_data", *TOKENIZER_NAMES),
)
"""The job's flags that are options of `dsindex index`, as names of options."""
LISTS = (*PATHS, "rampup_batch_size", "tokenizer_special_tokens", "tiktoken_special_tokens")
SWITCHES = {
    *("multiple_validation_sets", "fim_data"),
    *(flag.name for flag in (*fields(TrainingLength), *fields(JobTokenizer)) if flag.default is False),
}
REFUSED_FLAGS = {
    "mock_data": "such a job makes up its data and looks for no caches",
    "sft": "in all releases so far, such a job reads JSONL and looks for no caches",
    "encoder_seq_length": "pretrain_gpt.py cuts samples by --seq-length; use that",
    "yaml_cfg": "Megatron then takes its settings from that file; give them as flags",
}
"""Flags of jobs whose caches cannot be prepared, and why."""
MODEL_SIZES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
LAUNCHER_SIZES = ("nnodes", "nproc_per_node")
SIZES = ("micro_batch_size", *MODEL_SIZES, *LAUNCHER_SIZES)
"""Flags that give a job's batch size if it has no --global-batch-size."""
_SHELL_SCRIPT = re.compile(r".+\.(sh|bash|sbatch|slurm)|sh|bash|zsh|sbatch")
_OTHER_SCRIPT = re.compile(r"pretrain_(bert|t5|ict|retro|vlm|mimo|vision\w*)\.py|train_rl\.py")
_NEGATIVE_NUMBER = re.compile(r"-(\d|\.\d)")


@dataclass(slots=True)
class JobCommand:
    """What a command says about a job's caches."""

    options: dict[str, Any] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    """Flags on which no cache depends."""
    notes: list[str] = field(default_factory=list)


def read_command(
    words: Sequence[str], *, release: str | None = None, dataset_path_as: Sequence[str] = ()
) -> JobCommand:
    """Read the options of a job's caches from its command, or from its flags alone.

    Args:
        words: The command, such as `torchrun --nnodes 2 pretrain_gpt.py --seq-length 4096 …`.
        release: The job's release of Megatron; None for any.
        dataset_path_as: The values of --dataset-path-as, which map beginnings of paths here to the job's.

    Raises:
        InputError: If a flag is refused or unknown to Megatron, or no flag matters for caches.

    >>> read_command(["torchrun", "pretrain_gpt.py", "--seq-length", "4096", "--bf16"])
    JobCommand(options={'seq_length': '4096'}, ignored=['--bf16'], notes=[])
    """
    script, launcher, job = _split_command(words)
    command, sizes = JobCommand(), dict[str, int]()
    _check_flags([flag for flag, _ in job], script, release, command)
    for flag, values in (*launcher, *job):
        name = flag[2:].replace("-", "_")
        if name in REFUSED_FLAGS or (name == "dataloader_type" and values == ["external"]):
            raise InputError(f"{flag}: {REFUSED_FLAGS.get(name, 'a loader of the job itself looks for no caches')}")
        if name in SIZES and values[:1] and values[0].isdecimal():
            sizes[name] = int(values[0])
        if name in NAMES:
            command.options[name] = _parse_value(name, values)
        elif name not in LAUNCHER_SIZES:
            command.ignored.append(flag)
    if not command.options:
        hint = "paste the whole command that starts the job, with its variables replaced by their values"
        raise InputError("the command after -- has no flags of pretrain_gpt.py that caches depend on", hint=hint)
    if "global_batch_size" not in command.options:
        _derive_batch_size(command, sizes)
    to_local = partial(local_path, replacements=parse_replacements(dataset_path_as))
    for name in {*PATHS, *FILES, "data_cache_path", "per_dataset_sequences_path"} & command.options.keys():
        value = command.options[name]
        command.options[name] = to_local(value) if isinstance(value, str) else list(map(to_local, value))
    return command


Flag: TypeAlias = tuple[str, list[str]]
"""A flag as typed, and its values."""


def _split_command(words: Sequence[str]) -> tuple[str, list[Flag], list[Flag]]:
    """Return the name of the command's Python script, or "", and the flags of its launcher and of the script.

    Raises:
        InputError: If the command runs a shell script, or a script whose caches cannot be prepared.
    """
    position = next((position for position, word in enumerate(words) if word.endswith(".py")), -1)
    script = os.path.basename(words[position]) if position >= 0 else ""
    if _OTHER_SCRIPT.fullmatch(script):
        raise InputError(f"{script} has datasets of its own; only caches of pretrain_gpt.py's kind can be prepared")
    shell = next(filter(_SHELL_SCRIPT.fullmatch, reversed(words)), None)
    if not script and shell is not None:
        hint = "put `echo` before that command in the script, run the script, and paste its output after --"
        raise InputError(f"{shell}: scripts are not read, only the command that starts pretrain_gpt.py", hint=hint)
    launcher = [flag for flag in _parse_flags(words[: position + 1]) if flag[0][2:].replace("-", "_") in LAUNCHER_SIZES]
    return script, launcher, _parse_flags(words[position + 1 :])


def _parse_flags(words: Sequence[str]) -> list[Flag]:
    flags: list[Flag] = []
    for word in words:
        if word.startswith("--") and len(word) > 2:
            flag, equals, value = word.partition("=")
            flags.append((flag, [value] if equals else []))
        elif flags and (not word.startswith("-") or _NEGATIVE_NUMBER.match(word)):
            flags[-1][1].append(word)
    return flags


def _check_flags(flags: Sequence[str], script: str, release: str | None, command: JobCommand) -> None:
    """Check that a release has the flags. Other scripts may define flags of their own, so they only get a note.

    Raises:
        InputError: If one of Megatron's scripts would stop at a flag.
    """
    known_flags = read_job_flags(release)
    unknown_flags = [flag for flag in dict.fromkeys(flags) if flag not in known_flags]
    if not unknown_flags:
        return
    matches = {flag: difflib.get_close_matches(flag.replace("_", "-"), known_flags, n=1) for flag in unknown_flags}
    hint = "; ".join(f"instead of {flag}, did you mean {names[0]}?" for flag, names in matches.items() if names) or None
    problem = f"Megatron {release or 'of any known release'} has no {', '.join(unknown_flags)}"
    if not script or script.startswith("pretrain_"):
        raise InputError(f"{problem}: the job would stop at once", hint=hint)
    command.notes.append(f"{problem}: {script} has to define it{'' if hint is None else f'; {hint}'}")


def read_job_flags(release: str | None) -> set[str]:
    """Return the flags that a Megatron release knows; None for the flags of all releases together.

    >>> "--use-gigatoken" in read_job_flags("main"), "--use-gigatoken" in read_job_flags("0.16")
    (True, False)
    """
    lines = files("dsindex.megatron").joinpath("job_flags.txt").read_text().splitlines()
    pairs = zip(lines[::2], lines[1::2], strict=True)
    return {
        flag for releases, flags in pairs if release is None or release in releases.split() for flag in flags.split()
    }


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _parse_value(name: str, values: list[str]) -> Any:  # noqa: ANN401 - a switch, a text or a list of them
    if name in SWITCHES:
        return True
    if name in LISTS:
        return values
    if len(values) != 1:
        shown = " ".join(values) or "none"
        raise InputError(f"{_flag(name)} takes one value in pretrain_gpt.py, not {shown}", hint="quote it in the shell")
    return values[0]


def _derive_batch_size(command: JobCommand, sizes: dict[str, int]) -> None:
    """Derive the batch size: the micro-batch size times the number of data-parallel ranks."""
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


def merge_command(options: dict[str, Any], command: JobCommand) -> dict[str, Any]:
    """Add a job command's options to the user's, which take precedence; a note lists the added options."""
    overridden_names = set[str]()
    if any(name in options for name in (*PATHS, *FILES)):
        overridden_names |= {*PATHS, *FILES}
    if any(name in options for name in ("epochs", "num_samples")):
        overridden_names |= {*LENGTHS}
    if options.get("train_iters") is not None or options.get("train_samples") is not None:
        overridden_names |= {"train_iters", "train_samples"}
    command_options = {name: value for name, value in command.options.items() if name not in overridden_names}
    used_names = ", ".join(_flag(name) for name in command_options if name not in options)
    command.notes.append(f"from the command: {used_names or 'nothing'}")
    if command.ignored:
        command.notes.append(f"no cache depends on {', '.join(dict.fromkeys(command.ignored))}")
    identifier_options = {"like", "tokenizer_identifiers"} & options.keys()
    if options.get("megatron_release") is not None and not identifier_options:
        command_options.setdefault("tokenizer_type", DEFAULT_TYPE)
    return {**command_options, **options}


DEFAULT_TYPE = "GPT2BPETokenizer"
"""The tokenizer of pretrain_gpt.py without --tokenizer-type."""


Replacement = tuple[str, str]
"""The beginning of a path here, and in the job."""


def parse_replacements(words: Sequence[str]) -> list[Replacement]:
    """Return the pairs of `--dataset-path-as`.

    Raises:
        InputError: If a word has no equals sign.

    >>> parse_replacements(["data=/lustre/data"])
    [('data', '/lustre/data')]
    """
    pairs = [(start, replacement) for start, equals, replacement in (word.partition("=") for word in words) if equals]
    if len(pairs) < len(list(words)):
        hint = "write HERE=THERE, two beginnings of paths"
        raise InputError(f"--dataset-path-as: {' '.join(words)} has no equals sign", hint=hint)
    return pairs


def job_path(path: str, replacements: Sequence[Replacement]) -> str:
    """Return a path of this machine as the job types it; the longest matching beginning is replaced.

    >>> job_path("data/web", [("data", "/lustre/data")])
    '/lustre/data/web'
    """
    for start, replacement in sorted(replacements, key=lambda pair: -len(pair[0])):
        if path.startswith(start):
            return replacement + path.removeprefix(start)
    return path


def local_path(path: str, replacements: Sequence[Replacement]) -> str:
    """Return the path on this machine of a path that the job types."""
    return job_path(path, [(replacement, start) for start, replacement in replacements])
