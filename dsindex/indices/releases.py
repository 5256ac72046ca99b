"""Which releases of Megatron-LM could have written a tokenizer's identifiers, and how two blocks of them differ."""

from __future__ import annotations

import functools
import itertools
import json
from typing import TYPE_CHECKING, Any

from dsindex.indices.job_tokenizer import RELEASES, TOKENIZER_TYPES, JobTokenizer, tokenizer_identifiers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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


def describe_tokenizers(
    there: object, wanted: object, *, release: str | None = None, old: str = "the cache"
) -> list[str]:
    """Return sentences about two tokenizers' identifiers, release by release and flag by flag.

    Args:
        there: The identifiers in a description.
        wanted: The job's.
        release: The job's release, if it is known.
        old: What `there` belongs to, for the sentences.

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
            sentences.append(f"the tokenizer's {name} is {shown[0]} in {old} and {shown[1]} in the job{flag}")
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
