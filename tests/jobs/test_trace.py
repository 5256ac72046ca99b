"""`dsindex trace` on builds of the golden text, and what is said when something is missing."""

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import dsindex
from dsindex.cli.main import main
from dsindex.datasets import IndexedDataset
from dsindex.datasets.samples import Batches
from dsindex.json_text import show_name
from dsindex.text.tokenizer import decode, load_tokenizer
from tests.support.conversations import CONVERSATIONS
from tests.support.datasets import write_dataset
from tests.support.golden import OWN, golden_caches
from tests.support.published import move_tokenizer_away

TOKENIZER = str(OWN.plain_tokenizer)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with the inputs, datasets a and b, a cache of a and one of both blended."""
    folder = tmp_path_factory.mktemp("trace")
    lines = Path(OWN.docs).read_bytes().splitlines(keepends=True)
    (folder / "one.jsonl").write_bytes(b"".join(lines[:20]) + b"\n" + b"".join(lines[20:40]))
    (folder / "two.jsonl").write_bytes(b"".join(lines[40:60]))
    shutil.copytree(TOKENIZER, folder / "tokenizer")
    for name, inputs in (("a", ["one.jsonl", "two.jsonl"]), ("b", ["two.jsonl"])):
        dsindex.build(
            [str(folder / each) for each in inputs],
            tokenizer=str(folder / "tokenizer"),
            append_eod=True,
            output_prefix=str(folder / name),
        )
    a, b = (str(folder / f"{name}_text_document") for name in "ab")
    dsindex.build_index(a, seq_length=16, epochs=2, split="1,0,0", data_cache_path=str(folder / "cache"))
    (folder / "identifiers.json").write_text('{"class": "T"}')
    dsindex.build_index(
        ["0.7", a, "0.3", b], seq_length=16, num_samples=[1500], split="1,0,0",
        tokenizer_identifiers=str(folder / "identifiers.json"), data_cache_path=str(folder / "blend"),
    )  # fmt: skip
    return folder


@pytest.fixture
def copied(built, tmp_path, monkeypatch):
    """A copy of it whose files a test may change; the datasets are found by their new paths."""
    shutil.copytree(built, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy"


def trace(cli, *words):
    return json.loads(cli(["trace", *map(str, words), "--json"]).out)


def refusal(cli, code, *words):
    shown = cli(["trace", *map(str, words)], code)
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    return shown.err


def test_samples_lead_to_lines_and_text(built, cli):
    samples = dsindex.open(str(built / "cache"))
    numbers = range(0, len(samples), 7)
    report = trace(cli, built / "cache", "--sample", *numbers, "--text-tokens", "99", "--tokenizer-model", TOKENIZER)
    tokenizer = load_tokenizer(TOKENIZER)
    assert report["num_samples"] == len(samples)
    assert report["notes"] == []
    for number, shown in zip(numbers, report["samples"], strict=True):
        assert shown["sample"] == number
        tokens = [token for part in shown["parts"] for token in part["tokens"]]
        assert tokens == samples.tokens(number).tolist()  # type: ignore[union-attr]
        for part in shown["parts"]:
            lines = Path(part["origin"]["source"]["path"]).read_bytes().splitlines()
            encoded = [
                *tokenizer_ids(json.loads(lines[part["origin"]["source"]["line"] - 1])["text"]),
                tokenizer.eod_id,
            ]
            assert encoded[part["begin"] : part["end"]] == part["tokens"]
            assert part["text"] == decode(tokenizer, part["tokens"])


def tokenizer_ids(text):
    import tokenizers

    return tokenizers.Tokenizer.from_file(os.path.join(TOKENIZER, "tokenizer.json")).encode(text).ids


def test_a_rank_reads_its_samples_of_a_step(built, cli):
    batch = ["--global-batch-size", 8, "--micro-batch-size", 2, "--data-parallel-size", 2, "--text-tokens", 0]
    report = trace(cli, built / "cache", "--step", 2, *batch, "--data-parallel-rank", 1)
    assert [shown["sample"] for shown in report["samples"]] == [10, 11, 14, 15]
    assert {(shown["step"], shown["rank"]) for shown in report["samples"]} == {(2, 1)}
    whole = trace(cli, built / "cache", "--step", 2, *batch)
    assert [shown["sample"] for shown in whole["samples"]] == list(range(8, 16))
    assert [shown["rank"] for shown in whole["samples"]] == [0, 0, 1, 1, 0, 0, 1, 1]


def test_without_a_tokenizer_ids_are_shown(copied, cli):
    words = [copied / "cache", "--prefix", copied / "a_text_document", "--sample", 0, "--text-tokens", 5]
    [sample] = trace(cli, *words)["samples"]
    assert all(part["text"] is not None for part in sample["parts"])
    move_tokenizer_away(str(copied / "a_text_document"))
    shutil.rmtree("tokenizer")
    report = trace(cli, *words)
    [note] = report["notes"]
    assert "give its path with --tokenizer-model" in note
    for part in report["samples"][0]["parts"]:
        assert part["text"] is None
        assert part["tokens"]


def test_text_says_the_same(built, cli):
    shown = cli(["trace", str(built / "cache"), "--sample", "5", "--tokenizer-model", TOKENIZER]).out
    found = dsindex.trace(built / "cache", sample=5, tokenizer=TOKENIZER)
    assert f"{found}\n" == shown
    assert repr(found).startswith("TracedSamples(sample 5 of ")
    [sample] = trace(cli, built / "cache", "--sample", 5, "--tokenizer-model", TOKENIZER)["samples"]
    part = sample["parts"][0]
    assert shown.startswith("sample 5 of ")
    assert (
        f"document {part['document']}, tokens {part['begin']}:{part['end']}, from {part['origin']['source']['path']}"
        in shown
    )
    assert show_name(json.dumps(part["text"], ensure_ascii=False)) in shown


def test_changed_and_missing_inputs_are_named(copied, cli):
    """The manifest has the paths of the originals; a changed copy stands in for one, as its path is relative."""
    for name in ("a", "b"):
        manifest = copied / f"{name}_text_document.manifest.json"
        content = json.loads(manifest.read_bytes())
        for number, entry in enumerate(content["content"]["inputs"]):
            entry["path"] = os.path.basename(entry["path"])
            content["run"]["plan"]["inputs"][number][0] = str(copied / entry["path"])
        del content["run"]["tokenizer_path"]
        manifest.write_text(json.dumps(content))
    with open("one.jsonl", "ab") as file:
        file.write(b"\n")
    os.remove("two.jsonl")
    words = ["cache", "--prefix", "a_text_document", "--sample", *range(40)]
    report = trace(cli, *words)
    assert any("one.jsonl: this input has changed" in note for note in report["notes"])
    assert any("two.jsonl: this input is not there any more" in note for note in report["notes"])
    parts = [part for shown in report["samples"] for part in shown["parts"]]
    assert {part["origin"]["source"]["path"] for part in parts} == {"one.jsonl", "two.jsonl"}


@pytest.mark.usefixtures("copied")
def test_provenance_of_another_dataset_is_refused(cli):
    shutil.copy("b_text_document.provenance.parquet", "a_text_document.provenance.parquet")
    words = ["cache", "--prefix", "a_text_document"]
    assert "a_text_document.provenance.parquet: expected a row for each of" in refusal(cli, 1, *words, "--sample", 0)
    os.remove("a_text_document.provenance.parquet")
    assert (
        "a_text_document.provenance.parquet: expected the provenance" in trace(cli, *words, "--sample", 0)["notes"][0]
    )


def test_cache_of_other_data_is_refused(copied, cli):
    write_dataset(copied / "other", [[[1, 2, 3]]])
    message = refusal(cli, 1, "cache", "--prefix", "other", "--sample", 0)
    assert "they were built from other data or settings" in message


@pytest.mark.parametrize("cache", [cache for cache in golden_caches("GPTDataset") if cache.split == "train"][:1])
def test_megatrons_own_cache_without_a_manifest(cache, cli):
    [prefix] = cache.prefixes()
    report = trace(cli, cache.description_path, "--prefix", prefix, "--sample", 1)
    tokens = [token for part in report["samples"][0]["parts"] for token in part["tokens"]]
    dataset = dsindex.open(str(cache.description_path), prefix=prefix)  # type: ignore[assignment]
    assert np.array_equal(tokens[:8], dataset.tokens(1)[:8])
    assert any("expected the manifest" in note for note in report["notes"])


@pytest.mark.parametrize(("code", "words", "message"), [
    (2, [], "expected one of --sample, --step and --consumed, got none"),
    (2, ["--sample", 1, "--consumed", 1], "got --sample and --consumed"),
    (2, ["--step", 1], "expected --global-batch-size"),
    (2, ["--step", 1, "--global-batch-size", 8, "--data-parallel-rank", 0], "needs --step, --micro-batch-size"),
    (2, ["--step", "9-3", "--global-batch-size", 8], "expected a step from 1, or steps such as 10-19, got '9-3'"),
    (2, ["--step", f"1-{10**6}", "--global-batch-size", 8], "--step: expected at most 12,500 steps of this size"),
    (1, ["--step", 10**6, "--global-batch-size", 8], "expected a step from 1 to"),
    (1, ["--sample", 10**6], "expected a sample from 0 to"),
    (1, ["--sample", 0, "--split", "valid"], "expected the index cache of the split valid"),
])  # fmt: skip
def test_wrong_questions_get_one_sentence(built, code, words, message, cli, monkeypatch):
    monkeypatch.chdir(built)
    assert message in refusal(cli, code, "cache", *words)


def test_blend_without_the_tokenizers_identifiers_is_opened_by_its_folder(built, tmp_path, capfd):
    """Such caches have names instead of hashes, so a blend's own datasets are known by their descriptions."""
    blend = ["0.7", str(built / "a_text_document"), "0.3", str(built / "b_text_document")]
    folder = tmp_path / "named"
    dsindex.build_index(blend, seq_length=16, num_samples=[1500], split="1,0,0", data_cache_path=str(folder))

    def trace(cache):
        capfd.readouterr()
        assert main(["trace", str(cache), "--step", "3", "--global-batch-size", "4"]) == 0
        return capfd.readouterr().out

    wanted = trace(built / "blend")
    assert trace(folder) == wanted != ""
    (folder / "a-damaged-GPTDataset-train-description.txt").write_text("{")
    assert trace(next(folder.glob("*-BlendedDataset-train-description.txt"))) == wanted


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    """Conversations in packs of all kinds: two splits, and one whole with conversations of several sequences."""
    folder = tmp_path_factory.mktemp("chats")
    lines = CONVERSATIONS.read_bytes().splitlines(keepends=True)
    (folder / "one.jsonl").write_bytes(b"".join(lines[:70]) + b"\n" + b"".join(lines[70:90]))
    (folder / "two.jsonl").write_bytes(b"".join(lines[90:120]))
    shutil.copytree(TOKENIZER, folder / "tokenizer")
    template = {"chat_template": "chatml", "control_tokens": "allow"}
    common = {
        "input": [str(folder / "one.jsonl"), str(folder / "two.jsonl")],
        "tokenizer": str(folder / "tokenizer"),
        "seq_length": 768,
        "longer_than_pack": "drop",
        "split": "3,1,0",
    }
    dsindex.instruct(config=template, **common, output_prefix=str(folder / "chat"), export=["bridge", "parquet"])
    options = {
        **common,
        "split": None,
        "seq_length": 256,
        "longer_than_pack": "split-turns",
        "on_bad_record": "quarantine",
    }
    dsindex.instruct(config=template, **options, output_prefix=str(folder / "whole"), export=["bridge"])
    return folder


@pytest.mark.parametrize("name", ["chat_train_packing_768", "chat_valid_packing_768.idx", "whole_packing_256.bin"])
def test_packs_lead_to_conversations(chats, name, cli):
    words = [chats / name]
    [count] = {trace(cli, *words, "--sample", 0)["num_samples"]}
    every = trace(cli, *words, "--sample", *range(count), "--text-tokens", "9999")
    own = "_valid" if "valid" in name else "" if "whole" in name else "_train"
    prefix = chats / f"{name.partition('_')[0]}{own}"
    rows = packs_of(name.partition(".")[0], f"{prefix}_text_document")
    assert [[part["tokens"] for part in shown["parts"]] for shown in every["samples"]] == rows
    for shown in every["samples"]:
        for part in shown["parts"]:
            source = part["origin"]["source"]
            record = json.loads(Path(source["path"]).read_bytes().splitlines()[source["line"] - 1])
            assert any(turn["value"].strip()[:9] in part["text"] for turn in record["conversations"])
    assert every["notes"] == []
    if name == "chat_train_packing_768":
        blocks = dsindex.open(prefix)
        assert [part.source.line for part in blocks.trace(1).parts] == [
            part["origin"]["source"]["line"] for part in every["samples"][1]["parts"]
        ]


def packs_of(name, prefix):
    """The tokens of the conversations in each pack, as the files have them."""
    texts = IndexedDataset(prefix)
    return [
        [texts[number].tolist() for number in pack] for pack in IndexedDataset(f"{prefix[:-14]}_packing_{name[-3:]}")
    ]


@pytest.mark.parametrize(("name", "words", "message"), [
    ("chat_train_packing_768", ["--step", 1, "--global-batch-size", 2], "packs have no steps, as trainers shuffle"),
    ("chat_train_packing_768", ["--sample", 0, "--split", "train"], "expected no --split"),
    ("chat_bridge_768", ["--sample", 0], "got export, which has no samples"),
])  # fmt: skip
def test_wrong_questions_about_packs_get_one_sentence(chats, name, words, message, cli, monkeypatch):
    monkeypatch.chdir(chats)
    assert message in refusal(cli, 1, name, *words)


@pytest.mark.parametrize(("micro", "ranks", "rounds"), [(1, 1, 4), (2, 3, 2), (4, 2, 1), (3, 1, 2)])
def test_ranks_take_turns(micro, ranks, rounds):
    size = micro * ranks * rounds
    batches = Batches(global_batch_size=size, micro_batch_size=micro, data_parallel_size=ranks)
    num_samples = 3 * size + 1
    dealt = {}
    for number, first in enumerate(range(0, 3 * size, micro)):
        dealt.setdefault((number // (ranks * rounds) + 1, number % ranks), []).extend(range(first, first + micro))
    for (step, rank), samples in dealt.items():
        assert batches.samples(step, num_samples, rank=rank) == samples
        assert {(batches.step_of(sample), batches.rank_of(sample)) for sample in samples} == {(step, rank)}
    assert batches.samples(2, num_samples) == list(range(size, 2 * size))


@pytest.mark.parametrize("step", [0, -1, 4])
def test_steps_beyond_the_data_are_refused(step):
    message = f"expected a step from 1 to 3, got {step}: the data has 31 samples, in whole batches of 10"
    with pytest.raises(ValueError, match=re.escape(message)):
        Batches(global_batch_size=10).samples(step, 31)


@pytest.mark.parametrize(("sizes", "message"), [
    ({"global_batch_size": 0}, "of at least 1"),
    ({"global_batch_size": 8, "micro_batch_size": 2}, "or neither"),
    ({"global_batch_size": 8, "micro_batch_size": 3, "data_parallel_size": 2}, "3 samples on 2 ranks divide, got 8"),
])  # fmt: skip
def test_sizes_that_do_not_fit_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        Batches(**sizes)


@pytest.mark.parametrize("rank", [-1, 2])
def test_ranks_that_do_not_exist_are_refused(rank):
    with pytest.raises(ValueError, match=f"expected a rank below the data-parallel size 2, got {rank}"):
        Batches(global_batch_size=8, micro_batch_size=2, data_parallel_size=2).samples(1, 100, rank=rank)
