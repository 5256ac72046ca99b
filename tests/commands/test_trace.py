"""`dsindex trace` on builds of the golden text, and what is said when something is missing."""

import json
import os
import shutil
from pathlib import Path

import pytest
import tokenizers

import dsindex
from dsindex.datasets import IndexedDataset
from tests.support.conversations import CONVERSATIONS
from tests.support.datasets import write_dataset
from tests.support.golden import OWN

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
        options = {"append_eod": True, "output_prefix": str(folder / name)}
        dsindex.build([folder / file for file in inputs], tokenizer=folder / "tokenizer", **options)
    a, b = (str(folder / f"{name}_text_document") for name in "ab")
    dsindex.build_index(a, seq_length=16, epochs=2, split="1,0,0", data_cache_path=str(folder / "cache"))
    (folder / "identifiers.json").write_text('{"class": "T"}')
    options = {"seq_length": 16, "num_samples": [1500], "split": "1,0,0", "data_cache_path": str(folder / "blend")}
    identifiers = str(folder / "identifiers.json")
    dsindex.build_index(["0.7", a, "0.3", b], tokenizer_identifiers=identifiers, **options)
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
    printed = cli(["trace", *map(str, words)], code)
    assert (printed.out, printed.err.count("\n")) == ("", 1 + ("hint: " in printed.err))
    return printed.err


def record_of(part):
    source = part["origin"]["source"]
    return json.loads(Path(source["path"]).read_bytes().splitlines()[source["line"] - 1])


def test_samples_lead_to_lines_and_text(built, cli):
    samples = dsindex.open(str(built / "cache"))
    numbers = range(0, len(samples), 7)
    words = ["--sample", *numbers, "--text-tokens", "99", "--tokenizer-model", TOKENIZER]
    report = trace(cli, built / "cache", *words)
    library = tokenizers.Tokenizer.from_file(os.path.join(TOKENIZER, "tokenizer.json"))
    assert (report["num_samples"], report["notes"]) == (len(samples), [])
    for number, sample in zip(numbers, report["samples"], strict=True):
        tokens = [token for part in sample["parts"] for token in part["tokens"]]
        assert (sample["sample"], tokens) == (number, samples.tokens(number).tolist())  # type: ignore[union-attr]
        for part in sample["parts"]:
            encoded = [*library.encode(record_of(part)["text"]).ids, library.token_to_id("<|endoftext|>")]
            assert encoded[part["offset"] :][: part["num_tokens"]] == part["tokens"]
            assert part["text"] == library.decode(part["tokens"], skip_special_tokens=False)


def test_changed_and_missing_inputs_are_named(copied, cli):
    """The manifest has the paths of the originals; a changed copy stands in for one, as its path is relative."""
    manifest = copied / "a_text_document.manifest.json"
    content = json.loads(manifest.read_bytes())
    for number, entry in enumerate(content["content"]["inputs"]):
        entry["path"] = os.path.basename(entry["path"])
        content["run"]["plan"]["inputs"][number][0] = str(copied / entry["path"])
    manifest.write_text(json.dumps(content))
    with open("one.jsonl", "ab") as file:
        file.write(b"\n")
    os.remove("two.jsonl")
    notes = trace(cli, "cache", "--prefix", "a_text_document", "--sample", *range(40))["notes"]
    assert any("one.jsonl: this input has changed" in note for note in notes)
    assert any("two.jsonl: this input no longer exists" in note for note in notes)


@pytest.mark.usefixtures("copied")
def test_provenance_of_another_dataset_is_refused(cli):
    shutil.copy("b_text_document.provenance.parquet", "a_text_document.provenance.parquet")
    words = ["cache", "--prefix", "a_text_document", "--sample", 0]
    assert "a_text_document.provenance.parquet: it has 20 rows for 60 documents" in refusal(cli, 1, *words)
    os.remove("a_text_document.provenance.parquet")
    assert "a_text_document.provenance.parquet: missing, so the source lines" in trace(cli, *words)["notes"][0]


def test_cache_of_other_data_is_refused(copied, cli):
    write_dataset(copied / "other", [[[1, 2, 3]]])
    message = refusal(cli, 1, "cache", "--prefix", "other", "--sample", 0)
    assert "they were built from other data or settings" in message
    message = refusal(cli, 1, "cache", "--prefix", "other", "--consumed", 1)
    assert "an index has numbers from" in message


@pytest.mark.parametrize(("code", "words", "message"), [
    (2, [], "give --sample, --step or --consumed"),
    (2, ["--sample", 1, "--consumed", 1], "--sample and --consumed cannot be combined"),
    (2, ["--step", 1], "--step needs --global-batch-size"),
    (2, ["--step", "9-3", "--global-batch-size", 8], "'9-3' is not a step such as 12"),
    (2, ["--step", f"1-{10**6}", "--global-batch-size", 8], "8,000,000 samples are too many at once"),
    (1, ["--step", 10**6, "--global-batch-size", 8], "there is no sample 7,999,992; it has 1,876"),
    (1, ["--sample", 10**6], "there is no sample 1,000,000"),
    (1, ["--consumed", 10**6], "1,000,000 consumed samples: there are"),
    (1, ["--sample", 0, "--split", "valid"], "there are 0 index caches of the split valid"),
])  # fmt: skip
def test_wrong_questions_get_one_sentence(built, code, words, message, cli, monkeypatch):
    monkeypatch.chdir(built)
    assert message in refusal(cli, code, "cache", *words)


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    """Conversations in packs, some cut into several sequences."""
    folder = tmp_path_factory.mktemp("chats")
    (folder / "one.jsonl").write_bytes(b"".join(CONVERSATIONS.read_bytes().splitlines(keepends=True)[:90]))
    options = {"config": {"chat_template": "chatml", "control_tokens": "allow"}, "on_bad_record": "quarantine"}
    options |= {"seq_length": 256, "longer_than_pack": "split-turns", "export": ["bridge"]}
    options |= {"tokenizer": TOKENIZER, "output_prefix": str(folder / "whole")}
    dsindex.instruct(str(folder / "one.jsonl"), **options)
    return folder


def test_packs_lead_to_conversations(chats, cli):
    texts, packs = (IndexedDataset(str(chats / f"whole_{name}")) for name in ("text_document", "packing_256"))
    words = [chats / "whole_packing_256.bin", "--sample", *range(len(packs)), "--text-tokens", "9999"]
    report = trace(cli, *words)
    traced_tokens = [[part["tokens"] for part in sample["parts"]] for sample in report["samples"]]
    assert traced_tokens == [[texts[number].tolist() for number in pack] for pack in packs]
    for part in (part for sample in report["samples"] for part in sample["parts"]):
        assert any(turn["value"].strip()[:9] in part["text"] for turn in record_of(part)["conversations"])
    lines = [part.source.line for part in dsindex.open(str(chats / "whole")).trace(1).parts]  # type: ignore[union-attr]
    assert lines == [part["origin"]["source"]["line"] for part in report["samples"][1]["parts"]]


def test_an_export_has_no_samples(chats, cli):
    assert "export has no samples" in refusal(cli, 1, chats / "whole_bridge_256", "--sample", 0)
