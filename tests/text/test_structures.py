"""Only tokenizers are taken whose every part was compared."""

import json
import re

import pytest

from dsindex.text.engines import DIFFERING, PATTERNS, Unsuitable, compared_parts
from tests.agreement import sweep
from tests.agreement import vocabularies as v
from tests.support import text_tokenizers as trained

LLAMA3 = PATTERNS["llama3"][0]
DIGITS = {"type": "Digits", "individual_digits": True}
BYTES = v.byte_level(use_regex=False)


def model(**options):
    return {**json.loads(trained.byte_level())["model"], **options}


def extended(**more):
    """The model with more tokens in its vocabulary."""
    vocabulary = model()["vocab"]
    return model(vocab=vocabulary | {token: len(vocabulary) + n for n, token in enumerate(more.values())})


def byte_fallback(**options):
    return {**json.loads(trained.sentencepiece_bpe())["model"], **options}


def pre_tokenizer(*steps):
    return {"pre_tokenizer": v.sequence(*steps)}


PRE_TOKENIZERS = {
    "cl100k": pre_tokenizer(v.split(LLAMA3.replace(r"\s*[\r\n]+", r"\s*[\r\n]")), BYTES),
    "removed": pre_tokenizer(v.split(LLAMA3, behavior="Removed"), BYTES),
    "bytes-first": pre_tokenizer(BYTES, v.split(LLAMA3)),
    "regex-behind-split": pre_tokenizer(v.split(LLAMA3), v.byte_level(use_regex=True)),
    "digits-before-split": pre_tokenizer(DIGITS, v.split(LLAMA3), BYTES),
    "metaspace": {
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    },
}  # fmt: skip
"""Of a byte-level model, none of which is taken."""
NOT_COMPARED = "its pre-tokenizer is not among those that were compared"
REFUSED = {
    **{name: (changes, NOT_COMPARED) for name, changes in PRE_TOKENIZERS.items()},
    "nfd-behind-nfc": ({"normalizer": {"type": "Sequence", "normalizers": [{"type": n} for n in ("NFC", "NFD")]}},
        "(NFC, NFD)"),
    "dropout": ({"model": model(dropout=0.1)}, "its model has the option dropout = '0.1'"),
    "new-option": ({"model": model(shape="round")}, "its model has the option shape"),
    "hole": ({"model": model(vocab=model()["vocab"] | {"aaaa": 10**9})}, "its ids have holes: 1,000,000,000 ids"),
    "merge-twice": ({"model": model(merges=[["a", "b"], ["c", "d"], ["a", "b"]])}, "lists a merge twice"),
    "no-byte": ({"model": model(vocab={k: n for k, n in model()["vocab"].items() if k != "Ġ"})},
        "its vocabulary has no token for the byte 0x20"),
    "characters": ({"model": extended(a="中")}, "its token '中' is not written in byte characters"),
    "byte-fallback-ignores-merges": ({"model": byte_fallback(ignore_merges=True)}, "has the option ignore_merges"),
    "byte-fallback-without-a-byte": (
        {"model": byte_fallback(vocab={k: n for k, n in byte_fallback()["vocab"].items() if k != "<0xE2>"})},
        "its vocabulary has no token for the byte 0xE2"),
    "byte-fallback-strips": (
        {"model": byte_fallback(), "pre_tokenizer": None, "normalizer": {"type": "Strip", "strip_left": True,
         "strip_right": False}}, "its normalizer is not among those that were compared (Strip)"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "reason"), REFUSED.values(), ids=REFUSED)
def test_parts_that_were_not_compared_are_refused(changes, reason):
    document = json.loads(trained.byte_level_document(**changes))
    with pytest.raises(Unsuitable, match=re.escape(reason)):
        compared_parts(document)


def test_added_token_may_be_in_other_characters():
    added = {"id": 999, "content": "中", "special": True}
    document = json.loads(trained.byte_level_document(model=extended(a="中"), added_tokens=[added]))
    assert compared_parts(document) == ("gpt2",)


@pytest.mark.parametrize("part", [part for part in sweep.PARTS if sweep.library_of(part) == "tokenizers"])
def test_every_compared_form_is_known_by_its_part(part):
    for form in sweep.forms(part):
        model = v.space_mark_model() if part == "space-marks" else v.bpe()
        parts = compared_parts({"model": model, "normalizer": form[0], "pre_tokenizer": form[1]})
        assert part in parts
        assert set(parts) <= set(DIFFERING)


def test_sequences_within_sequences_are_the_steps_in_them():
    inner = v.sequence(v.sequence(v.split(LLAMA3)), v.sequence(BYTES))
    document = json.loads(trained.byte_level_document(pre_tokenizer=inner))
    assert compared_parts(document) == ("llama3",)
    document["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFC"}]}
    assert compared_parts(document) == ("llama3", "nfc")
