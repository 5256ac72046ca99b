"""The command of a training job as options of `dsindex index`: what its caches depend on, and what it says besides.

The command is a shell script that starts pretrain_gpt.py, a file with its flags alone, or words. Nothing is run. As
in Megatron, the last of repeated flags counts.

With `--yaml-cfg`, Megatron takes all settings from that file in place of the flags: a mapping of their names with
underscores. Two mappings in it, `language_model` and `model_parallel`, have what no cache depends on, but for the
sizes that say how many data-parallel ranks there are. Source: megatron/training/yaml_arguments.py, `load_yaml`.
"""

from __future__ import annotations

import itertools
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dsindex.errors import InputError
from dsindex.options.index import TOKENIZER_NAMES
from dsindex.options.megatron_flags import REFUSED_OF_JOBS, WITH_VALUES, WITHOUT_VALUE, is_flag_value
from dsindex.options.shell_script import MAX_SCRIPT_BYTES, Command, Word, find_commands
from dsindex.store.config_files import read_yaml
from dsindex.store.storage import open_file

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

PATHS = ("data_path", "train_data_path", "valid_data_path", "test_data_path")
FILES = ("data_args_path", "per_split_data_args_path")
LENGTHS = ("train_iters", "train_samples", "global_batch_size", "eval_interval", "eval_iters", "full_validation")
RARE_LENGTHS = (
    *("skip_train", "start_eval_at_iter", "eval_global_batch_size", "phase_transition_iterations"),
    *("rampup_batch_size", "step_batch_size_schedule"),
)
NAMES = (
    *(*PATHS, *FILES, "multiple_validation_sets", "seq_length", *LENGTHS, *RARE_LENGTHS, "split", "seed"),
    *("data_cache_path", "mid_level_dataset_surplus", "fim_data", *TOKENIZER_NAMES),
)
"""The job's flags that are options of `dsindex index`, as names of options."""
LISTS = (*PATHS, "rampup_batch_size", "tokenizer_special_tokens", "tiktoken_special_tokens")
SWITCHES = (
    *("full_validation", "skip_train", "multiple_validation_sets", "fim_data", "legacy_tokenizer", "use_gigatoken"),
    *("tokenizer_sentencepiece_legacy", "disable_tokenizer_sentencepiece_ignore_extra_whitespaces"),
    *("tokenizer_hf_use_fast", "tokenizer_hf_no_use_fast", "tokenizer_hf_include_special_tokens"),
    *("tokenizer_hf_no_include_special_tokens", "trust_remote_code"),
)
SIZES = (
    *("micro-batch-size", "tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size"),
    *("nnodes", "nproc-per-node", "prepare-cache-world-size"),
)
"""What a job's batch size follows from if it does not say it."""
_ASSIGNED = re.compile(r"[A-Za-z_]\w*=")
_SCRIPT = re.compile(r"(pretrain\w*|prepare_cache|train\w*)\.py")
_OTHER_SCRIPT = re.compile(r"pretrain_(bert|t5|ict|retro|vlm|mimo|vision\w*)\.py|train_rl\.py")
_OTHER_LOADER = "such a job brings a loader of its own (--dataloader-type external), which looks for no caches"


@dataclass(slots=True)
class JobCommand:
    """What a command says about a job's caches."""

    options: dict[str, Any] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    """Flags on which no cache depends."""
    notes: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)


def given_variables(words: Sequence[str]) -> dict[str, str]:
    """Return the `NAME=VALUE` that come before a script.

    >>> given_variables(["NODES=2", "train.sh", "A=1"])
    {'NODES': '2'}
    """
    return dict(word.split("=", 1) for word in itertools.takewhile(_ASSIGNED.match, words))


def read_command_file(words: Sequence[str]) -> Command:
    """Return the training command in a file.

    Args:
        words: `NAME=VALUE …`, which are set for the script, the script, and its arguments.

    Raises:
        InputError: If it cannot be read, or has no training command or several.
    """
    number = next((n for n, word in enumerate(words) if not _ASSIGNED.match(word)), None)
    if number is None:
        raise InputError(f"--from-command: expected a script, got only {' '.join(words)}")
    path, arguments = words[number], words[number + 1 :]
    environment = given_variables(words)
    try:
        with open_file(path) as file:
            content = file.read(MAX_SCRIPT_BYTES + 1)
        text = content.decode()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: expected a shell script, got bytes that are not UTF-8 at {error.start}") from error
    if len(content) > MAX_SCRIPT_BYTES:
        raise InputError(f"{path}: expected a shell script of at most {MAX_SCRIPT_BYTES} bytes")
    try:
        return _only_command(path, text, arguments, environment)
    except ValueError as error:
        msg = f"{path}: cannot be read as a shell script: {error}; paste the command itself after --"
        raise InputError(msg) from error


def _only_command(path: str, text: str, arguments: Sequence[str], environment: dict[str, str]) -> Command:
    commands = find_commands(text, arguments, environment)
    found = [command for command in commands if command.words[0].text != "echo" and _script_place(command.words)]
    for command in commands:
        for word in command.words:  # srun … bash -c "torchrun … pretrain_gpt.py …"
            if not found and " " in word.text and _SCRIPT.search(word.text) and command.words[0].text != "echo":
                inner = find_commands(word.text, first_line=command.line)
                found += [each for each in inner if _script_place(each.words)]
    if not found and commands and all(command.words[0].text.startswith("--") for command in commands):
        return Command((Word("pretrain_gpt.py"), *(word for each in commands for word in each.words)), commands[0].line)
    distinct = {tuple(word.text for word in command.words): command for command in found}
    if len(distinct) != 1:
        lines = ", ".join(str(command.line) for command in distinct.values())
        got = f"several, in lines {lines}" if distinct else "none"
        raise InputError(f"{path}: expected one command that runs pretrain_gpt.py, got {got}; paste it after --")
    return next(iter(distinct.values()))


def _script_place(words: Sequence[Word]) -> int | None:
    """Return the place behind the training script in a command; None if there is none."""
    for place, word in enumerate(words):
        if place and _SCRIPT.fullmatch(os.path.basename(word.text)):
            return place + 1
    return None


def take_command(
    given: Command,
    *,
    place: str,
    environment: Mapping[str, str] | None = None,
    local_path: Callable[[str], str] = str,
) -> JobCommand:
    """Take what a job's caches depend on from its command.

    Args:
        given: The command, such as `torchrun --nnodes 2 pretrain_gpt.py --seq-length 4096 …`, or its flags alone.
        place: Where the command is from, for messages, which name its line unless that is 0.
        environment: The job's variables, as far as they were given.
        local_path: Turns a path of the job into one of this machine.

    Raises:
        InputError: If a flag that matters is refused, or its value is not known.
    """
    words = given.words
    where = f"{place}, line {given.line}" if given.line else place
    begin = _script_place([Word(""), *words])
    begin = 0 if begin is None else begin - 1
    command = JobCommand()
    for name, values in _flags(words[: max(0, begin - 1)]):
        _take_size(command, name.replace("_", "-"), values)
    flags = _flags(words[begin:])
    for _, values in [each for each in flags if each[0] == "yaml-cfg"][-1:]:
        path = local_path(_known("yaml-cfg", values, where))
        command.notes.append(f"Megatron takes all settings from {path}, and ignores the other flags of {place}")
        flags = read_settings(path, environment or {}, lists=LISTS, switches=SWITCHES)
        place = where = path
    _check_job(words[begin - 1].text if begin else "", flags, place)
    for name, values in flags:
        _take_flag(command, name, values, where)
    for option in ("data_path", "train_data_path"):
        if command.options.get(option) == []:
            del command.options[option]
    if command.options.get("global_batch_size") and command.options.get("step_batch_size_schedule"):
        command.notes.append(
            f"{place} has --global-batch-size and --step-batch-size-schedule, at which Megatron stops from 0.18 on"
        )
    if "global_batch_size" not in command.options:
        _derive_batch_size(command)
    return command


def _flags(words: Sequence[Word]) -> list[tuple[str, list[Word]]]:
    """Return the flags of a command without dashes, each with its values; words before the first flag are dropped."""
    found: list[tuple[str, list[Word]]] = []
    for word in words:
        if word.text.startswith("--") and len(word.text) > 2:
            name, equals, value = word.text[2:].partition("=")
            found.append((name, [Word(value, word.unknown)] if equals else []))
        elif found and is_flag_value(word.text):
            found[-1][1].append(word)
        else:
            found.append((word.text, []))
    return found


def _check_job(script: str, flags: Sequence[tuple[str, list[Word]]], place: str) -> None:
    """Refuse a job that has no GPTDataset."""
    name = os.path.basename(script)
    if _OTHER_SCRIPT.fullmatch(name):
        msg = f"{place}: {name} has datasets of its own; only caches of pretrain_gpt.py's kind can be prepared"
        raise InputError(msg)
    for flag, values in flags:
        if flag in REFUSED_OF_JOBS and flag.replace("-", "_") not in NAMES:
            raise InputError(f"{place}: --{flag}: {REFUSED_OF_JOBS[flag]}")
        if flag == "dataloader-type" and [word.text for word in values] == ["external"]:
            raise InputError(f"{place}: {_OTHER_LOADER}")


def _known(name: str, values: Sequence[Word], place: str) -> str:
    """Return the one value of a flag."""
    _check_known(name, values, place)
    if len(values) != 1:
        msg = f"{place}: --{name}: expected one value, got {' '.join(word.text for word in values) or 'none'}"
        raise InputError(msg)
    return values[0].text


def _check_known(name: str, values: Sequence[Word], place: str) -> None:
    unknown = [text for word in values for text in word.unknown]
    if unknown:
        raise InputError(
            f"{place}: --{name}: {', '.join(dict.fromkeys(unknown))} is not known without running the script; add "
            f"NAME=VALUE or its arguments to --from-command, or give --{name} yourself"
        )


def _take_flag(command: JobCommand, name: str, values: list[Word], place: str) -> None:
    option = name.replace("-", "_")
    _take_size(command, name, values)
    values, left_out = _without_surplus(name, option, values)
    if name.startswith(("$", "`")):
        left_out.insert(0, name)
    command.notes += [
        f"{written} ({place}) is not known, and was left out; it may have flags that matter" for written in left_out
    ]
    if option not in NAMES or "_" in name:
        if not name.startswith(("$", "`")):
            command.ignored.append(f"--{name}")
        return
    _check_known(name, values, place)
    texts = [word.text for word in values]
    if option in SWITCHES:
        command.options[option] = True
    elif option in LISTS:
        command.options[option] = texts
    elif len(texts) == 1:
        command.options[option] = texts[0]
    else:
        split = '; a shell splits a variable at blanks unless it is quoted: "${NAME[@]}"' if texts else ""
        msg = f"{place}: --{name}: expected one value, as in pretrain_gpt.py, got {' '.join(texts) or 'none'}{split}"
        raise InputError(msg)


def _without_surplus(name: str, option: str, values: list[Word]) -> tuple[list[Word], list[str]]:
    """Separate words that are not known and are more than a flag's values: they may be flags themselves."""
    if option in LISTS or name in WITH_VALUES:
        return values, []
    expected = 0 if option in SWITCHES or name in WITHOUT_VALUE else 1
    surplus = [word for word in values[expected:] if word.unknown]
    return [word for word in values if word not in surplus], [word.text for word in surplus]


def _take_size(command: JobCommand, name: str, values: list[Word]) -> None:
    if name in SIZES and len(values) == 1 and re.fullmatch(r"\d{1,9}", values[0].text):
        command.sizes[name] = int(values[0].text)


def _derive_batch_size(command: JobCommand) -> None:
    """Without --global-batch-size, it is the micro-batch size times the number of data-parallel ranks."""
    sizes = command.sizes
    world = sizes.get("prepare-cache-world-size", sizes.get("nnodes", 1) * sizes.get("nproc-per-node", 0))
    model = 1
    for name in ("tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size"):
        model *= sizes.get(name, 1)
    if "micro-batch-size" in sizes and world and model and world % model == 0:
        size = sizes["micro-batch-size"] * (world // model)
        command.options["global_batch_size"] = size
        command.notes.append(
            f"the job's batch size is {size}: --micro-batch-size {sizes['micro-batch-size']} on {world // model} "
            "data-parallel ranks"
        )


PARALLEL = "model_parallel"
_VARIABLE = re.compile(r"\$\{(.*?)\}")


def read_settings(
    path: str, environment: Mapping[str, str], *, lists: Collection[str], switches: Collection[str]
) -> list[tuple[str, list[Word]]]:
    """Return the settings of such a file as flags without dashes, each with its values.

    Args:
        path: The file.
        environment: Variables of the job, which replace `${NAME}` in texts.
        lists: Names of settings that have several values, which a text has between blanks.
        switches: Names of settings that are true or false.

    Raises:
        InputError: If it cannot be read, or is not a mapping in YAML.
    """
    flags: list[tuple[str, list[Word]]] = []
    content = read_yaml(path)
    parallel = content.get(PARALLEL)
    for key, value in [*content.items(), *(parallel.items() if isinstance(parallel, dict) else ())]:
        name = str(key)
        if value is None or value is False or isinstance(value, dict) or (name in switches and not value):
            continue
        values = value if isinstance(value, list) else [value]
        if value is True or name in switches:
            values = []
        elif name in lists and isinstance(value, str):
            values = value.split()
        flags.append((name.replace("_", "-"), [_word(each, environment) for each in values]))
    return flags


def _word(value: object, environment: Mapping[str, str]) -> Word:
    text = str(value)
    if not isinstance(value, str):
        return Word(text)
    unknown = [found[0] for found in _VARIABLE.finditer(text) if found[1] not in environment]
    return Word(_VARIABLE.sub(lambda found: environment.get(found[1], found[0]), text), tuple(unknown))
