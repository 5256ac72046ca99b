"""Paths and patterns of `--json-keys`, `--join`, `--where` and `--token-ids`: what is stored, counted, refused."""

import functools
import json
import random
from itertools import pairwise

import pytest

from dsindex.datasets.indexed import IndexedDataset
from dsindex.errors import PlanError
from dsindex.options.build import BuildConfig
from dsindex.text.tokenizer import load_tokenizer, shared_tokenizer
from tests.support import jobs
from tests.support.golden import OWN
from tests.support.jobs import run_config
from tests.support.published import published

NUM_LINES = 400
TOKENIZER = load_tokenizer(str(OWN.plain_tokenizer))

KINDS = {
    "path": {"json_keys": (".meta.text", "title=.meta.more.title")},
    "jq": {"json_keys": ("text", "both=.text + .meta.text", "list=. | [.text, .meta.text]")},
    "join": {"json_keys": ("text", ".meta.text", ".meta.tags"), "join": r"\n"},
    "join and where": {"json_keys": ("text", ".n | tostring"), "join": "\n\t", "where": ".meta.tags | length"},
    "where": {"json_keys": ("text", ".meta.text"), "where": '.n > 7 and .meta.more.title != "t 9" and has("lang")'},
    "token ids": {"token_ids": ".meta.ids", "append_eod": True},
    "token ids where": {"token_ids": "own=.lists", "where": ".n > 7"},
}


def record_of(number, rng):
    words = " ".join(rng.choices(["alpha", "Größe", "x\ny", "\U0001f600", '"q"', "<|endoftext|>"], k=rng.randrange(30)))
    ids = [rng.randrange(TOKENIZER.vocabulary_size) for _ in range(rng.randrange(8))]
    tags, more = rng.choices(["a", "b c"], k=rng.randrange(3)), {"title": f"t {number}"}
    record = {"meta": {"text": words, "tags": tags, "ids": ids, "more": more}, "lists": [ids, [], ids[:2]]}
    return {"text": f"top {number} {words}", "n": number, "lang": rng.choice(["en", "de"]), **record}


def config_of(source, folder, **options):
    defaults = {"append_eod": True, "on_bad_record": "quarantine", "output_prefix": str(folder / "x"), "workers": None}
    return jobs.config_of(BuildConfig, (str(source / "a.jsonl"), str(source / "b.jsonl")), **{**defaults, **options})


def good_records(source):
    lines = [line for name in "ab" for line in (source / f"{name}.jsonl").read_text().split("\n")]
    records = [json.loads(line) for line in lines if line.startswith("{")]
    return [record for record in records if isinstance(record["text"], str) and isinstance(record["n"], int)]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Records in two files, with blank and bad lines; each kind of build has bad records of its own."""
    folder = tmp_path_factory.mktemp("fields")
    rng = random.Random(7)
    for name in ("a", "b"):
        lines = [json.dumps(record_of(number, rng), ensure_ascii=number % 2 == 0) for number in range(NUM_LINES // 2)]
        lines[20] = ""
        lines[30] = "no JSON"
        lines[40] = '{"text": "a", "n": "x", "lang": "en", "meta": {"text": 5, "ids": [1.5]}, "lists": [[1], [-1]]}'
        lines[50] = '{"text": 5, "n": 1, "lang": "en", "meta": null, "lists": null}'
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return folder


def documents(prefix, name):
    """The sequences of each document."""
    dataset = IndexedDataset(str(prefix.with_name(f"{prefix.name}_{name}_document")))
    stops = dataset.document_indices.tolist()
    return [[dataset[sequence].tolist() for sequence in range(begin, end)] for begin, end in pairwise(stops)]


def encode(text):
    return shared_tokenizer(TOKENIZER).encode(text).ids


def close_document(sequences):
    """A document as it is stored: without empty sequences, and with EOD at its end."""
    nonempty = [ids for ids in sequences if ids]
    return [*nonempty[:-1], [*nonempty[-1], TOKENIZER.eod_id]] if nonempty else []


def test_joined_texts_are_one_document(source, tmp_path):
    run_config(config_of(source, tmp_path, **KINDS["join"]))
    texts = [[r["text"], r["meta"]["text"], *(r["meta"]["tags"] or [""])] for r in good_records(source)]
    assert documents(tmp_path / "x", "text") == [close_document([encode("\n".join(parts))]) for parts in texts]


def test_token_ids_are_stored_as_they_are(source, tmp_path):
    run_config(config_of(source, tmp_path, token_ids=".meta.ids"))
    assert documents(tmp_path / "x", "meta.ids") == [close_document([r["meta"]["ids"]]) for r in good_records(source)]
    report = run_config(config_of(source, tmp_path / "lists", token_ids="lists", append_eod=False))
    expected = [[ids for ids in r["lists"] if ids] for r in good_records(source)]
    assert documents(tmp_path / "lists" / "x", "lists") == expected
    assert report.run.engine is None


@pytest.fixture(scope="module")
def expected(source, tmp_path_factory):
    """What a build of each kind publishes, made once in one shard."""

    @functools.cache
    def of_kind(kind):
        folder = tmp_path_factory.mktemp("expected")
        run_config(config_of(source, folder, **KINDS[kind], shard_size="64MiB", workers=1))
        return published(folder)

    return of_kind


@pytest.mark.quick(4)
@pytest.mark.parametrize(("kind", "executor"), [
    *((kind, "local") for kind in KINDS), ("join and where", "processes"),
    pytest.param("join and where", "ray", marks=pytest.mark.ray),
], indirect=["executor"])  # fmt: skip
def test_output_does_not_depend_on_the_way(kind, executor, source, expected, tmp_path):
    run_config(config_of(source, tmp_path, **KINDS[kind], executor=executor, shard_size="5KiB", workers=3))
    assert published(tmp_path) == expected(kind)


def test_other_fields_are_another_plan(source, tmp_path):
    run_config(config_of(source, tmp_path))
    assert run_config(config_of(source, tmp_path)).already_complete
    with pytest.raises(PlanError, match=r'where was not given and is "\.n"'):
        run_config(config_of(source, tmp_path, where=".n"))
