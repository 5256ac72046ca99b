"""Builds from paths, patterns, joined texts, conditions and token ids, and the records that they read."""

import json

from dsindex.options.build import BuildConfig
from dsindex.text.tokenizer import load_tokenizer
from tests.support import jobs
from tests.support.golden import OWN

NUM_LINES = 400
TOKENIZER = load_tokenizer(str(OWN.plain_tokenizer))

KINDS = {
    "path": {"json_keys": (".meta.text", "title=.meta.more.title")},
    "jq": {"json_keys": ("text", "both=.text + .meta.text", "list=. | [.text, .meta.text]")},
    "join": {"json_keys": ("text", ".meta.text", ".meta.tags"), "join": r"\n"},
    "where": {"json_keys": (".meta.text", "text"), "where": '.n % 3 != 0 and .lang == "en"'},
    "join and where": {"json_keys": ("text", ".n | tostring"), "join": "\n\t", "where": ".meta.tags | length"},
    "token ids": {"token_ids": ".meta.ids", "append_eod": True},
    "token ids where": {"token_ids": "own=.lists", "where": ".n > 7"},
}
WAYS = [
    {"executor": "local", "shard_size": "64MiB", "workers": 1},
    {"executor": "local", "shard_size": "5KiB", "workers": 3},
    {"executor": "local", "shard_size": "20KiB", "workers": 2, "engine": "tokenizers"},
]


def record_of(number, rng):
    words = " ".join(rng.choices(["alpha", "Größe", "x\ny", "\U0001f600", '"q"', "<|endoftext|>"], k=rng.randrange(30)))
    ids = [rng.randrange(TOKENIZER.vocabulary_size) for _ in range(rng.randrange(8))]
    return {
        "text": f"top {number} {words}",
        "n": number,
        "lang": rng.choice(["en", "de"]),
        "meta": {
            "text": words,
            "tags": rng.choices(["a", "b c"], k=rng.randrange(3)),
            "ids": ids,
            "more": {"title": f"t {number}"},
        },
        "lists": [ids, [], ids[:2]],
    }


def config_of(source, folder, **options):
    own = {"append_eod": True, "on_bad_record": "quarantine", "output_prefix": str(folder / "x"), "workers": None}
    return jobs.config_of(BuildConfig, (str(source / "a.jsonl"), str(source / "b.jsonl")), **{**own, **options})


def arguments(config):
    """The options that were given, as `dsindex.build` takes them."""
    given = {name: getattr(config, name) for name in config.model_fields_set}
    if "join" in given:
        given["join"] = given["join"].replace("\\", "\\\\")
    return {"tokenizer" if name == "tokenizer_model" else name: value for name, value in given.items()}


def good_records(source):
    lines = [line for name in "ab" for line in (source / f"{name}.jsonl").read_text().split("\n")]
    records = [json.loads(line) for line in lines if line.startswith("{")]
    return [record for record in records if isinstance(record["text"], str) and isinstance(record["n"], int)]
