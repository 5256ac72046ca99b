"""Derive tokenizer identifiers and sample counts from the flags of a pretrain_gpt.py job, for each Megatron release.

A description identifies the tokenizer by its class, path and options, as strings in a fixed order. Which options, and
in which order, depends on the kind of tokenizer and on the release:

    0.16  and 0.17   megatron.core.tokenizers, `DefaultTokenizerText`
    0.18  and 0.19   a chat template comes first
    main             `MegatronTokenizerText`, and `use_gigatoken` comes last

No tokenizer is loaded: paths are the job's and need not exist here. Sample counts depend on the release, too: 0.16 and
0.17 ramp the batch size up; later releases ignore the ramp and have a schedule of steps.

Source: megatron/core/tokenizers/utils/build_tokenizer.py (0.16: text/utils/build_tokenizer.py) and
text/text_tokenizer.py, `unique_identifiers`;
megatron/training/training.py, `get_train_valid_test_num_samples` and `update_train_iters`;
megatron/core/num_microbatches_calculator.py.
"""

from __future__ import annotations

import bisect
import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from dsindex.errors import InputError, UsageError
from dsindex.messages import THOUSANDS
from dsindex.text.tiktoken_files import MEGATRON_PATTERNS

if TYPE_CHECKING:
    from collections.abc import Mapping

Release: TypeAlias = Literal["0.16", "0.17", "0.18", "0.19", "main"]
RELEASES = get_args(Release)
"""The releases of megatron-core whose identifiers are known, oldest first."""

MID_LEVEL_SURPLUS = 0.005
"""Share of extra samples requested from each dataset of a weighted blend, as a margin to draw from."""
FIM_CLASS = "GPTFIMDataset"
"""Class of the datasets of jobs with --fim-data: the same arrays under another name."""


def is_before(release: str | None, first: str) -> bool:
    """Tell whether a release is known to be older than `first`."""
    return release is not None and release in RELEASES and RELEASES.index(release) < RELEASES.index(first)


BERT_TYPES = ("BertWordPieceLowerCase", "BertWordPieceCase")
FILE_TYPES = (*BERT_TYPES, "GPT2BPETokenizer")
SENTENCEPIECE_TYPES = ("SentencePieceTokenizer", "GPTSentencePieceTokenizer", "Llama2Tokenizer")
MODEL_TYPES = (*SENTENCEPIECE_TYPES, "HuggingFaceTokenizer", "TikTokenizer", "SFTTokenizer")
TOKENIZER_TYPES = (*FILE_TYPES, *MODEL_TYPES, "NullTokenizer")

_TEXT = "megatron.core.tokenizers.text"
_MODEL_CLASSES = {
    "default": f"{_TEXT}.models.default_tokenizer.DefaultTokenizerText",
    "gpt": f"{_TEXT}.models.gpt_tokenizer.GPTTokenizer",
    "mamba": f"{_TEXT}.models.mamba_tokenizer.MambaTokenizer",
    "bert": f"{_TEXT}.models.bert_tokenizer.BertTokenizer",
    "t5": f"{_TEXT}.models.t5_tokenizer.T5Tokenizer",
}
"""The classes of 0.16 to 0.19, by the `model_type` of a tokenizer's metadata."""
_MAIN_CLASS = f"{_TEXT}.text_tokenizer.MegatronTokenizerText"
_NEEDED_FLAGS = {**dict.fromkeys(MODEL_TYPES, ("tokenizer_model",)), "NullTokenizer": ("vocab_size",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTokenizer:
    """A job's tokenizer flags, with Megatron's names and defaults."""

    tokenizer_type: str | None = None
    tokenizer_model: str | None = None
    """The path or name, as the job types it."""
    vocab_file: str | None = None
    merge_file: str | None = None
    vocab_size: int | None = None
    tokenizer_special_tokens: tuple[str, ...] | None = None
    tiktoken_special_tokens: tuple[str, ...] | None = None
    """The older name of `tokenizer_special_tokens`, in 0.16 and 0.17."""
    tiktoken_pattern: str | None = None
    tiktoken_num_special_tokens: int = 1000
    tokenizer_metadata: str | None = None
    """Path of a JSON file that may name the tokenizer's class."""
    tokenizer_sentencepiece_legacy: bool = False
    disable_tokenizer_sentencepiece_ignore_extra_whitespaces: bool = False
    tokenizer_hf_use_fast: bool = False
    """0.16 only; later it is the default."""
    tokenizer_hf_no_use_fast: bool = False
    tokenizer_hf_include_special_tokens: bool = False
    """0.16 only; later it is the default."""
    tokenizer_hf_no_include_special_tokens: bool = False
    trust_remote_code: bool = False
    chat_template: str | None = None
    use_gigatoken: bool = False
    null_tokenizer_eod_id: int | None = None
    null_tokenizer_pad_id: int = -1
    sft_tokenizer_prompt_format: str = "nemotron-h-aligned"
    legacy_tokenizer: bool = False


def find_identifiers(tokenizer: JobTokenizer, release: str) -> dict[str, Any]:
    """Return the tokenizer's `unique_identifiers`, as a job of this release writes them into its descriptions.

    Raises:
        UsageError: If a job of this release could not make such a tokenizer.
        InputError: If its metadata cannot be read.

    >>> identifiers = find_identifiers(JobTokenizer(tokenizer_type="TikTokenizer", tokenizer_model="x.json"), "0.17")
    >>> list(identifiers), identifiers["num_special_tokens"]
    (['class', 'tokenizer_path', 'num_special_tokens', 'special_tokens'], '1000')
    """
    _check_tokenizer(tokenizer)
    name, (path, options) = _class_name(tokenizer, release), _path_and_options(tokenizer, release)
    return {"class": name, "tokenizer_path": path, **{option: str(value) for option, value in options.items()}}


def _check_tokenizer(tokenizer: JobTokenizer) -> None:
    kind, pattern = tokenizer.tokenizer_type, tokenizer.tiktoken_pattern
    if kind is None:
        raise UsageError("--megatron-release needs --tokenizer-type, as in the job")
    if kind not in TOKENIZER_TYPES:
        raise UsageError(f"--tokenizer-type: {kind!r} is not one of {', '.join(TOKENIZER_TYPES)}")
    if pattern is not None and pattern not in MEGATRON_PATTERNS:
        raise UsageError(f"--tiktoken-pattern: {pattern!r} is not v1 or v2")
    if tokenizer.legacy_tokenizer:
        hint = "start the job once, and give a description.txt of it as --like, in place of --megatron-release"
        raise UsageError("--legacy-tokenizer: the names of its caches do not follow from flags", hint=hint)
    for name in _NEEDED_FLAGS.get(kind, ()):
        if not getattr(tokenizer, name):
            raise UsageError(f"--tokenizer-type {kind} needs --{name.replace('_', '-')}, spelled as in the job")


def _path_and_options(tokenizer: JobTokenizer, release: str) -> tuple[str | None, dict[str, Any]]:
    """Return the path and the options of a tokenizer, in Megatron's order."""
    kind, path, is_old = tokenizer.tokenizer_type, tokenizer.tokenizer_model, is_before(release, "0.18")
    special_tokens = tokenizer.tokenizer_special_tokens or (tokenizer.tiktoken_special_tokens if is_old else None)
    special = None if special_tokens is None else list(special_tokens)
    chat = {} if is_old else {"chat_template": tokenizer.chat_template}
    files = {"vocab_file": tokenizer.vocab_file, "merges_file": tokenizer.merge_file}
    match kind:
        case "NullTokenizer":
            ids = {"eod_id": tokenizer.null_tokenizer_eod_id, "pad_id": tokenizer.null_tokenizer_pad_id}
            ids = {name: token_id for name, token_id in ids.items() if token_id is not None and not is_old}
            return None, {"vocab_size": tokenizer.vocab_size, **ids}
        case "SFTTokenizer":
            return path, {"prompt_format": tokenizer.sft_tokenizer_prompt_format}
        case "HuggingFaceTokenizer":
            additional = {"additional_special_tokens": special or []}
            return path, {**chat, **files, **additional, **_hf_options(tokenizer, release)}
        case "BertWordPieceLowerCase" | "BertWordPieceCase" | "GPT2BPETokenizer":
            extra = [f"<extra_id_{number}>" for number in range(100)] if kind == "BertWordPieceCase" else special
            return kind, {"additional_special_tokens": extra or [], **files, **_hf_options(tokenizer, release)}
        case "TikTokenizer":
            pattern_and_size = {"pattern": tokenizer.tiktoken_pattern, "vocab_size": tokenizer.vocab_size}
            pattern_and_size = {name: value for name, value in pattern_and_size.items() if value}
            count = {"num_special_tokens": tokenizer.tiktoken_num_special_tokens}
            return path, {**chat, **pattern_and_size, **count, "special_tokens": special}
    spaces = {"ignore_extra_whitespaces": not tokenizer.disable_tokenizer_sentencepiece_ignore_extra_whitespaces}
    legacy = {"legacy": tokenizer.tokenizer_sentencepiece_legacy}
    return path, {**chat, **(spaces if chat else {}), **legacy, "special_tokens": special}


def _hf_options(tokenizer: JobTokenizer, release: str) -> dict[str, Any]:
    if release == "0.16":
        fast, special = tokenizer.tokenizer_hf_use_fast, tokenizer.tokenizer_hf_include_special_tokens
    else:
        fast = not tokenizer.tokenizer_hf_no_use_fast
        special = not tokenizer.tokenizer_hf_no_include_special_tokens
    options = {"use_fast": fast, "trust_remote_code": tokenizer.trust_remote_code, "include_special_tokens": special}
    return {**options, "use_gigatoken": tokenizer.use_gigatoken} if release == "main" else options


def _class_name(tokenizer: JobTokenizer, release: str) -> str:
    metadata: Mapping[str, Any] = {}
    if tokenizer.tokenizer_metadata is not None and tokenizer.tokenizer_type != "NullTokenizer":
        from dsindex.store.config_files import read_object  # imports yaml, which verify does not need

        metadata = read_object(tokenizer.tokenizer_metadata)
    if release == "main":
        name = metadata.get("class_name")
        return f"{metadata.get('class_path')}.{name}" if name else _MAIN_CLASS
    default = "default" if release == "0.16" else "default-text"
    model = metadata.get("model_type", default)
    if model is None and release != "0.16":
        model = default
    classes = {default if name == "default" else name: value for name, value in _MODEL_CLASSES.items()}
    if model not in classes:
        raise InputError(f"--tokenizer-metadata: model_type {model!r}: Megatron {release} knows {', '.join(classes)}")
    return classes[model]


# The samples that a training job requests.

Sizes: TypeAlias = tuple[int | None, int | None, int | None]
"""Samples of train, valid and test; None for one epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLength:
    """The length of a training job, in terms of Megatron's flags."""

    train_iters: int | None = None
    train_samples: int | None = None
    global_batch_size: int | None = None
    eval_interval: int | None = None
    eval_iters: int = 100
    full_validation: bool = False
    skip_train: bool = False
    start_eval_at_iter: int | None = None
    eval_global_batch_size: int | None = None
    phase_transition_iterations: tuple[int, ...] = ()
    rampup_batch_size: tuple[int, int, int] | None = None
    """First batch size, increment, and the samples over which it grows."""
    step_batch_size_schedule: str | None = None
    sequence_length: int | None = None
    """Converts the tokens of a schedule to samples."""
    release: str | None = None
    """The job's release of Megatron; None if it is not known."""


def samples_for_training(length: TrainingLength) -> list[Sizes]:
    """Return the samples that a job requests in each of its phases.

    Raises:
        UsageError: If the length or the validation interval is missing, or Megatron stops at these flags.

    >>> samples_for_training(TrainingLength(train_iters=1000, global_batch_size=8, eval_interval=100, eval_iters=10))
    [(8000, 880, 80)]
    """
    batch = _check_length(length)
    steps = [] if length.step_batch_size_schedule is None else _parse_steps(length)
    samples = length.train_samples if length.train_samples is not None else (length.train_iters or 0) * batch
    eval_batch = length.eval_global_batch_size or batch
    test = length.eval_iters * eval_batch
    valid: int | None = test
    if length.full_validation:
        valid = None
    elif not length.skip_train:
        interval = length.eval_interval or 0  # not 0: _check_length refuses that
        validations = _count_iterations(length, batch, steps) // interval + 1
        if length.start_eval_at_iter is not None:
            validations = max(0, validations - length.start_eval_at_iter // interval)
        valid = validations * test
    ends = {iteration * batch for iteration in length.phase_transition_iterations}
    borders = [0, *sorted(end for end in ends if 0 < end < samples), samples]
    return [(end - begin, valid, test) for begin, end in itertools.pairwise(borders)]


def _check_length(length: TrainingLength) -> int:
    """Refuse flags that Megatron refuses; return the global batch size."""
    iterations, samples, ramp = length.train_iters, length.train_samples, length.rampup_batch_size
    num_lengths = (iterations is not None) + (samples is not None)
    if num_lengths != 1 and not (num_lengths == 2 and length.skip_train and not is_before(length.release, "0.17")):
        raise UsageError("give either --train-iters or --train-samples, as Megatron needs unless it has --skip-train")
    batch, validates = length.global_batch_size, length.eval_interval or length.full_validation or length.skip_train
    if batch is None or not validates:
        flags = ["--global-batch-size"] * (batch is None) + ["--eval-interval or --full-validation"] * (not validates)
        hint = "without a job, give --num-samples"
        raise UsageError(f"--train-iters and --train-samples need {' and '.join(flags)}", hint=hint)
    if ramp is not None and length.release is None and samples is not None:
        raise UsageError("--rampup-batch-size needs --megatron-release", hint="releases from 0.18 on ignore it")
    if ramp is not None and is_before(length.release, "0.18"):
        first, increment, ramp_samples = ramp
        growth = batch - first
        if min(first, increment, ramp_samples, growth) < 1 or growth % increment or growth // increment > 10**6:
            problem = f"{' '.join(map(str, ramp))} does not lead to --global-batch-size {batch}"
            hint = "the difference has to be a multiple of the increment, and all numbers above 0"
            raise UsageError(f"--rampup-batch-size: {problem}", hint=hint)
    return batch


def _count_iterations(length: TrainingLength, batch: int, steps: list[tuple[int, int]]) -> int:
    """Return the iterations of a job, by Megatron's `update_train_iters` if it counts samples."""
    if length.train_iters is not None:
        return length.train_iters
    samples = length.train_samples or 0
    if steps:
        return _count_scheduled_iterations(samples, steps)
    if length.rampup_batch_size is not None and is_before(length.release, "0.18"):
        return _count_ramped_iterations(samples, batch, length.rampup_batch_size)
    return samples // batch


def _parse_steps(length: TrainingLength) -> list[tuple[int, int]]:
    """Return the steps of `--step-batch-size-schedule`: the first sample of each, and its batch size.

    Raises:
        UsageError: If it is not valid.
    """
    text = length.step_batch_size_schedule or ""
    steps = []
    for step_text in text.replace(",", " ").split():
        threshold, _, size = (word.strip().lower() for word in step_text.partition(":"))
        matches = [re.fullmatch(r"(\d{1,30}(?:\.\d{1,30})?|\.\d{1,30})([kmbt]?)", word) for word in (threshold, size)]
        # In floating point, as in Megatron.
        amounts = [int(float(match[1]) * THOUSANDS[match[2]]) for match in matches if match is not None]
        if len(amounts) < 2:
            hint = "write THRESHOLD:SIZE, as in '0:768 250B:1536'"
            raise UsageError(f"--step-batch-size-schedule: {step_text!r} is not a step", hint=hint)
        steps.append((amounts[0] // (length.sequence_length or 1), amounts[1]))
    steps.sort(key=lambda step: step[0])
    thresholds = [threshold for threshold, _ in steps]
    is_rising = thresholds[:1] == [0] and len(set(thresholds)) == len(thresholds)
    if not is_rising or min(size for _, size in steps) < 1:
        hint = "thresholds have to differ and begin with 0, and sizes have to be above 0"
        raise UsageError(f"--step-batch-size-schedule: Megatron stops at {text!r}", hint=hint)
    return steps


def _count_scheduled_iterations(samples: int, steps: list[tuple[int, int]]) -> int:
    """Count iterations until all samples are consumed, a step of the schedule at a time."""
    iterations = consumed = 0
    ends = [*(threshold for threshold, _ in steps[1:]), samples]
    for (_, size), end in zip(steps, ends, strict=True):
        num_missing = min(end, samples) - consumed
        if num_missing > 0:
            count = -(-num_missing // size)
            iterations, consumed = iterations + count, consumed + count * size
    return iterations


def _count_ramped_iterations(samples: int, final_size: int, ramp: tuple[int, int, int]) -> int:
    """Count iterations while the batch size grows by increments, and then at the final batch size."""
    first, increment, ramp_samples = ramp
    per_increment = ramp_samples / ((final_size - first) // increment)
    last = min(ramp_samples, samples)
    iterations = consumed = 0
    while consumed <= last:
        num_increments = int(consumed / per_increment)  # in floating point, as in Megatron
        size = first + num_increments * increment
        # This size lasts until the iteration after which the batch has grown or the ramp is over.
        max_iterations = (last - consumed) // size + 1
        ends = range(consumed + size, consumed + max_iterations * size + 1, size)
        num_same_size = bisect.bisect_left(ends, num_increments + 1, key=lambda end: int(end / per_increment))
        count = min(num_same_size + 1, max_iterations)
        iterations, consumed = iterations + count, consumed + count * size
    return iterations + max(0, samples - consumed) // final_size
