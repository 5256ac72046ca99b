"""The tokenizer's identifiers in a description, as each release of Megatron-LM derives them from a job's flags.

The identifiers are the tokenizer's class, its path and the options that it was made with, as texts and in order. Which
options there are, and in which order, depends on the kind of tokenizer and on the release:

    0.16  and 0.17   megatron.core.tokenizers, `DefaultTokenizerText`
    0.16, legacy     megatron.training.tokenizer with --legacy-tokenizer, which ended with that release
    0.18  and 0.19   a chat template comes first
    main             `MegatronTokenizerText`, and `use_gigatoken` comes last

Nothing is loaded: a path is what the job types, and need not exist here. Given the identifiers in a description, this
module tells which releases could have written them, and how two blocks of them differ.

Source: megatron/core/tokenizers/utils/build_tokenizer.py (0.16: text/utils/build_tokenizer.py) and
text/text_tokenizer.py, `unique_identifiers`; megatron/training/tokenizer/tokenizer.py of 0.16.
"""

from __future__ import annotations

import functools
import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from dsindex.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Release: TypeAlias = Literal["0.16", "0.17", "0.18", "0.19", "main", "nemo-automodel"]
RELEASES = get_args(Release)[:-1]
"""The releases of megatron-core whose identifiers are known, oldest first."""

AUTOMODEL = "nemo-automodel"
"""In the place of a release: NeMo Automodel, whose descriptions have the tokenizer's name alone."""

BERT_TYPES = ("BertWordPieceLowerCase", "BertWordPieceCase")
FILE_TYPES = (*BERT_TYPES, "GPT2BPETokenizer")
SENTENCEPIECE_TYPES = ("SentencePieceTokenizer", "GPTSentencePieceTokenizer", "Llama2Tokenizer")
MODEL_TYPES = (*SENTENCEPIECE_TYPES, "HuggingFaceTokenizer", "TikTokenizer", "SFTTokenizer")
TOKENIZER_TYPES = (*FILE_TYPES, *MODEL_TYPES, "NullTokenizer")
VISION_TYPES = ("MultimodalTokenizer", "NullMultimodalTokenizer")

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
_SPLIT_PATTERN = r"[^\r\n\p{L}\p{N}]?"
_TIKTOKEN_PATTERNS = {
    "v1": rf"{_SPLIT_PATTERN}+\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    "v2": rf"{_SPLIT_PATTERN}[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]*[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]+"
    rf"|{_SPLIT_PATTERN}[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]+[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
"""What a legacy TikTokenizer has as its pattern."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTokenizer:
    """The flags of a job that say which tokenizer it has, under Megatron's names and with its defaults."""

    tokenizer_type: str | None = None
    tokenizer_model: str | None = None
    """The path or name, as the job types it."""
    vocab_file: str | None = None
    merge_file: str | None = None
    vocab_size: int | None = None
    vocab_extra_ids: int = 0
    tokenizer_special_tokens: tuple[str, ...] | None = None
    tiktoken_special_tokens: tuple[str, ...] | None = None
    """0.16 and 0.17: the same, under an older name."""
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


def tokenizer_identifiers(
    tokenizer: JobTokenizer, release: str, *, metadata: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the `unique_identifiers` of a job's tokenizer.

    Args:
        tokenizer: The job's flags.
        release: One of RELEASES.
        metadata: The content of `tokenizer_metadata`, if there is such a file.

    Raises:
        ValueError: If a job of this release could not make such a tokenizer.

    >>> flags = JobTokenizer(tokenizer_type="TikTokenizer", tokenizer_model="x.json")
    >>> identifiers = tokenizer_identifiers(flags, "0.17")
    >>> list(identifiers), identifiers["num_special_tokens"]
    (['class', 'tokenizer_path', 'num_special_tokens', 'special_tokens'], '1000')
    """
    _check(tokenizer, release)
    if tokenizer.legacy_tokenizer:
        return _legacy(tokenizer)
    path, options = _options(tokenizer, release)
    shown = {name: str(value) for name, value in options.items()}
    return {"class": _class_name(tokenizer, release, metadata), "tokenizer_path": path, **shown}


def find_identifiers(tokenizer: JobTokenizer, release: str) -> dict[str, Any] | str:
    """Return what the descriptions of a release's job have of its tokenizer: identifiers, or NeMo Automodel's name.

    Raises:
        InputError: If a job of this release could not make such a tokenizer, or its metadata cannot be read.
    """
    from dsindex.store.config_files import read_object  # its yaml is not needed to verify

    if release == AUTOMODEL:
        if tokenizer.tokenizer_model is None:
            msg = "--megatron-release nemo-automodel needs --tokenizer-model, the tokenizer's name_or_path in the job"
            raise InputError(msg)
        return tokenizer.tokenizer_model
    metadata = tokenizer.tokenizer_metadata
    try:
        return tokenizer_identifiers(tokenizer, release, metadata=None if metadata is None else read_object(metadata))
    except ValueError as error:
        raise InputError(str(error)) from error


def _check(tokenizer: JobTokenizer, release: str) -> None:
    kind = tokenizer.tokenizer_type
    if kind in VISION_TYPES:
        raise ValueError(f"--tokenizer-type: a {kind} has no identifiers, so such a job has no caches of text")
    if kind not in TOKENIZER_TYPES:
        raise ValueError(f"--tokenizer-type: expected one of {', '.join(TOKENIZER_TYPES)}, got {kind!r}")
    if tokenizer.legacy_tokenizer and release != "0.16":
        msg = f"--legacy-tokenizer: Megatron {release} has no legacy tokenizers, which ended with 0.16; leave it out"
        raise ValueError(msg)
    if kind == "SFTTokenizer" and release == "0.16" and not tokenizer.legacy_tokenizer:
        raise ValueError("--tokenizer-type: in Megatron 0.16 an SFTTokenizer needs --legacy-tokenizer")
    if kind in MODEL_TYPES and tokenizer.tokenizer_model is None:
        raise ValueError(f"--tokenizer-type {kind} needs --tokenizer-model, spelled as in the job")
    if kind == "NullTokenizer" and not tokenizer.vocab_size:
        raise ValueError("--tokenizer-type NullTokenizer needs --vocab-size")
    if tokenizer.tiktoken_pattern not in {None, *_TIKTOKEN_PATTERNS}:
        raise ValueError(f"--tiktoken-pattern: expected v1 or v2, got {tokenizer.tiktoken_pattern!r}")


def _options(tokenizer: JobTokenizer, release: str) -> tuple[str | None, dict[str, Any]]:
    """Return the path and the options of a tokenizer that is not a legacy one, in Megatron's order."""
    kind = tokenizer.tokenizer_type
    if kind == "NullTokenizer":
        return None, _null(tokenizer, release)
    chat = {"chat_template": tokenizer.chat_template} if is_since(release, "0.18") else {}
    if kind == "SFTTokenizer":
        return tokenizer.tokenizer_model, {"prompt_format": tokenizer.sft_tokenizer_prompt_format}
    if kind == "HuggingFaceTokenizer":
        files = {"vocab_file": tokenizer.vocab_file, "merges_file": tokenizer.merge_file}
        special = {"additional_special_tokens": _special(tokenizer, release) or []}
        return tokenizer.tokenizer_model, {**chat, **files, **special, **_hugging_face(tokenizer, release)}
    if kind in FILE_TYPES:
        extra = [f"<extra_id_{number}>" for number in range(100)] if kind == "BertWordPieceCase" else None
        special = {"additional_special_tokens": extra or _special(tokenizer, release) or []}
        files = {"vocab_file": tokenizer.vocab_file, "merges_file": tokenizer.merge_file}
        return kind, {**special, **files, **_hugging_face(tokenizer, release)}
    last = {"special_tokens": _special(tokenizer, release)}
    if kind == "TikTokenizer":
        given = {"pattern": tokenizer.tiktoken_pattern, "vocab_size": tokenizer.vocab_size}
        given = {name: value for name, value in given.items() if value}
        count = {"num_special_tokens": tokenizer.tiktoken_num_special_tokens}
        return tokenizer.tokenizer_model, {**chat, **given, **count, **last}
    spaces = {"ignore_extra_whitespaces": not tokenizer.disable_tokenizer_sentencepiece_ignore_extra_whitespaces}
    legacy = {"legacy": tokenizer.tokenizer_sentencepiece_legacy}
    return tokenizer.tokenizer_model, {**chat, **(spaces if chat else {}), **legacy, **last}


def _hugging_face(tokenizer: JobTokenizer, release: str) -> dict[str, Any]:
    if release == "0.16":
        fast, special = tokenizer.tokenizer_hf_use_fast, tokenizer.tokenizer_hf_include_special_tokens
    else:
        fast = not tokenizer.tokenizer_hf_no_use_fast
        special = not tokenizer.tokenizer_hf_no_include_special_tokens
    options = {"use_fast": fast, "trust_remote_code": tokenizer.trust_remote_code, "include_special_tokens": special}
    return {**options, "use_gigatoken": tokenizer.use_gigatoken} if release == "main" else options


def _null(tokenizer: JobTokenizer, release: str) -> dict[str, Any]:
    options: dict[str, Any] = {"vocab_size": tokenizer.vocab_size}
    if is_since(release, "0.18"):
        if tokenizer.null_tokenizer_eod_id is not None:
            options["eod_id"] = tokenizer.null_tokenizer_eod_id
        options["pad_id"] = tokenizer.null_tokenizer_pad_id
    return options


def _special(tokenizer: JobTokenizer, release: str) -> list[str] | None:
    special = tokenizer.tokenizer_special_tokens
    if not special and not is_since(release, "0.18"):
        special = tokenizer.tiktoken_special_tokens
    return None if special is None else list(special)


def _class_name(tokenizer: JobTokenizer, release: str, metadata: Mapping[str, Any] | None) -> str:
    if metadata is None or tokenizer.tokenizer_type == "NullTokenizer":
        return _MAIN_CLASS if release == "main" else _MODEL_CLASSES["default"]
    if release == "main":
        name, module = metadata.get("class_name"), metadata.get("class_path")
        return f"{module}.{name}" if name else _MAIN_CLASS
    default = "default" if release == "0.16" else "default-text"
    kind = metadata.get("model_type", default)
    kind = default if kind is None and release != "0.16" else kind
    classes = {default if name == "default" else name: value for name, value in _MODEL_CLASSES.items()}
    if kind not in classes:
        msg = f"--tokenizer-metadata: Megatron {release} expects a model_type of {', '.join(classes)}, got {kind!r}"
        raise ValueError(msg)
    return classes[kind]


def _legacy(tokenizer: JobTokenizer) -> dict[str, Any]:
    """Return the identifiers of 0.16's legacy tokenizers: a list of paths, and fewer options."""
    kind = str(tokenizer.tokenizer_type)
    model: list[str | None] = [tokenizer.tokenizer_model]
    vocabulary: dict[str, Any] = {"vocab_size": tokenizer.vocab_size}
    extra: dict[str, Any] = {"vocab_extra_ids": tokenizer.vocab_extra_ids}
    lower = {"lower_case": kind == "BertWordPieceLowerCase"}
    special = _special(tokenizer, "0.16")
    count: dict[str, Any] = {"num_special_tokens": tokenizer.tiktoken_num_special_tokens, "special_tokens": special}
    pattern = {"pattern": _TIKTOKEN_PATTERNS.get(tokenizer.tiktoken_pattern or "")}
    made: dict[str, tuple[str, list[str | None], dict[str, Any]]] = {
        **dict.fromkeys(BERT_TYPES, ("_BertWordPieceTokenizer", [tokenizer.vocab_file], {**lower, **extra})),
        "GPT2BPETokenizer": ("_GPT2BPETokenizer", [tokenizer.vocab_file, tokenizer.merge_file], {}),
        "SentencePieceTokenizer": ("_SentencePieceTokenizer", model, extra),
        "GPTSentencePieceTokenizer": ("_GPTSentencePieceTokenizer", model, {"vocab_extra_ids": 0}),
        "Llama2Tokenizer": ("_Llama2Tokenizer", model, {"vocab_extra_ids": 0}),
        "HuggingFaceTokenizer": ("_HuggingFaceTokenizer", model, {}),
        "TikTokenizer": ("CustomTikTokenizer", model, {**pattern, **vocabulary, **count}),
        "SFTTokenizer": (kind, model, {"prompt_format": tokenizer.sft_tokenizer_prompt_format}),
        "NullTokenizer": ("_NullTokenizer", [None], vocabulary),
    }
    name, paths, options = made[kind]
    needed = {"GPT2BPETokenizer": paths, **dict.fromkeys(BERT_TYPES, paths), "TikTokenizer": list(pattern.values())}
    if None in needed.get(kind, []):
        flags = {"GPT2BPETokenizer": "--vocab-file and --merge-file", "TikTokenizer": "--tiktoken-pattern"}
        raise ValueError(f"--legacy-tokenizer: a {kind} needs {flags.get(kind, '--vocab-file')}")
    return {"class": name, "tokenizer_path": paths, **{option: str(value) for option, value in options.items()}}


def is_since(release: str, first: str) -> bool:
    """Tell whether a release is this one or a later one."""
    return RELEASES.index(release) >= RELEASES.index(first)


def is_before(release: str | None, first: str) -> bool:
    """Tell whether a release is known to be an earlier one."""
    return release is not None and release in RELEASES and not is_since(release, first)


FLAGS = {
    "tokenizer_path": "--tokenizer-model",
    "vocab_file": "--vocab-file",
    "merges_file": "--merge-file",
    "additional_special_tokens": "--tokenizer-special-tokens",
    "special_tokens": "--tokenizer-special-tokens",
    "use_fast": "--tokenizer-hf-no-use-fast",
    "include_special_tokens": "--tokenizer-hf-no-include-special-tokens",
    "trust_remote_code": "--trust-remote-code",
    "use_gigatoken": "--use-gigatoken",
    "chat_template": "--chat-template",
    "legacy": "--tokenizer-sentencepiece-legacy",
    "ignore_extra_whitespaces": "--disable-tokenizer-sentencepiece-ignore-extra-whitespaces",
    "pattern": "--tiktoken-pattern",
    "num_special_tokens": "--tiktoken-num-special-tokens",
    "vocab_size": "--vocab-size",
    "vocab_extra_ids": "--vocab-extra-ids",
    "eod_id": "--null-tokenizer-eod-id",
    "pad_id": "--null-tokenizer-pad-id",
    "prompt_format": "--sft-tokenizer-prompt-format",
}
"""The job's flag that decides each identifier."""
_MODELS = "megatron.core.tokenizers.text.models."


def possible_releases(identifiers: object) -> tuple[str, ...]:
    """Return the releases that write such identifiers, oldest first; empty if they are of no known kind.

    >>> possible_releases({"class": "_GPT2BPETokenizer", "tokenizer_path": ["vocab.json", "merges.txt"]})
    ('0.16',)
    """
    if not isinstance(identifiers, dict) or not isinstance(identifiers.get("class"), str):
        return ()
    return tuple(release for release in RELEASES if _shape(identifiers) in _known_shapes(release))


def name_releases(releases: Sequence[str]) -> str:
    """Return releases as text.

    >>> name_releases(["0.16", "0.17"])
    '0.16 or 0.17'
    """
    return " or ".join(filter(None, [", ".join(releases[:-1]), releases[-1]]))


def release_differences(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return the names of the identifiers that only one of two releases has, or that come in another order.

    >>> release_differences({"class": "x", "use_fast": "True"}, {"class": "x", "chat_template": "", "use_fast": "True"})
    ['chat_template']
    """
    names = [*(name for name in wanted if name not in there), *(name for name in there if name not in wanted)]
    if there.get("class") != wanted.get("class"):
        names.append("class")
    if not names and list(there) != list(wanted):
        names.append("their order")
    return names


def describe_tokenizers(there: object, wanted: object, *, release: str | None = None) -> list[str]:
    """Return sentences about two tokenizers' identifiers, release by release and flag by flag.

    Args:
        there: The identifiers in a description.
        wanted: The job's.
        release: The job's release, if it is known.

    Returns:
        No sentences if one of them is of no known kind, or they are equal.
    """
    theirs, ours = possible_releases(there), possible_releases(wanted)
    if not theirs or not ours or not isinstance(there, dict) or not isinstance(wanted, dict):
        return []
    sentences = []
    if set(theirs).isdisjoint([release] if release in ours else ours):
        names = ", ".join(release_differences(there, wanted))
        job = release if release in ours else name_releases(ours)
        sentences.append(f"tokenizer: written by {name_releases(theirs)}; the job is {job}: {names}")
    both = [name for name in wanted if name in there and name != "class"]
    if not sentences:
        both += release_differences(there, wanted)
    for name in both:
        if json.dumps(there.get(name)) != json.dumps(wanted.get(name)):
            flag = f": {FLAGS[name]}" if name in FLAGS else ""
            shown = [repr(block[name]) if name in block else "absent" for block in (there, wanted)]
            sentences.append(f"the tokenizer's {name} is {shown[0]} in the cache and {shown[1]} in the job{flag}")
    return sentences


def _shape(identifiers: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the class and the names in order; the classes of one module count as one."""
    name = str(identifiers["class"])
    return (_MODELS if name.startswith(_MODELS) else name, *identifiers)


@functools.cache
def _known_shapes(release: str) -> frozenset[tuple[str, ...]]:
    return frozenset(_shape(identifiers) for identifiers in _examples(release))


def _examples(release: str) -> Iterator[dict[str, Any]]:
    """Yield identifiers of every kind of tokenizer of a release, with and without the options that can be absent."""
    for kind, legacy, pattern, size, eod in itertools.product(
        TOKENIZER_TYPES, (False, True), (None, "v1"), (None, 9), (None, 1)
    ):
        tokenizer = JobTokenizer(
            tokenizer_type=kind,
            tokenizer_model="model",
            vocab_file="vocab.json",
            merge_file="merges.txt",
            legacy_tokenizer=legacy,
            tiktoken_pattern=pattern,
            vocab_size=size,
            null_tokenizer_eod_id=eod,
        )
        try:
            yield tokenizer_identifiers(tokenizer, release)
        except ValueError:
            continue  # a release without such a tokenizer
