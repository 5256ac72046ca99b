"""A mixture is handed over in one file: written by mix, completed by index, and proven by verify where it arrives."""

import html
import json
import os
import random
import re
from pathlib import Path

import pytest

from dsindex.cli.main import main
from dsindex.tools.delivery import read_delivery
from tests.support.datasets import write_dataset
from tests.support.golden import OWN


@pytest.fixture
def sent(tmp_path, monkeypatch):
    """The folder of a delivery of two datasets with their caches, in which it was written."""
    monkeypatch.chdir(tmp_path)
    Path("sent/data").mkdir(parents=True)
    for name, length in {"web": 100, "books": 50, "held": 30}.items():
        write_dataset(Path(f"sent/data/{name}_text_document"), [[[1] * length] for _ in range(10)])
    monkeypatch.chdir("sent")
    return Path.cwd()


def run(words, capsys, code=0):
    capsys.readouterr()
    got = main(words.split())
    printed = capsys.readouterr()
    assert got == code, printed
    return printed.out + printed.err


DATASETS = "data/web_text_document=60% data/books_text_document"
JOB = "--tokens 1k --seq-length 10 --split 8,2 --global-batch-size 2 --eval-interval 50 --seed 7"
RELEASE = "--megatron-release 0.19 --tokenizer-type HuggingFaceTokenizer --tokenizer-model org/name"


def deliver(capsys, more=RELEASE):
    shown = run(f"mix {DATASETS} {JOB} {more} --data-cache-path cache --write delivery.yaml", capsys)
    return shown, run("index delivery.yaml --executor local", capsys)


def change(path, content):
    Path(path).write_bytes(content(Path(path).read_bytes()))


@pytest.mark.usefixtures("sent")
def test_hold_outs_beside_the_datasets_are_valid_and_a_split_takes_the_last_inputs(capsys):
    for name in "abc":
        Path(f"{name}.jsonl").write_text("".join(f'{{"text": "number {n} of {name}"}}\n' for n in range(40)))
    words = f"--tokenizer-model {OWN.plain_tokenizer} --append-eod --executor local"
    run(f"build --input a.jsonl b.jsonl --output-prefix ab {words} --hold-out 20%", capsys)
    run(f"build --input c.jsonl --output-prefix c {words} --hold-out 20%", capsys)
    shown = run("mix ab_text_document=60% c_text_document --tokens 1k --seq-length 10 --write d.yaml", capsys)
    assert "\nvalid is what --hold-out set aside of them\n" in shown
    assert "\n--train-data-path 0.6 ab_text_document 0.4 c_text_document\n" in shown
    assert "\n--valid-data-path 0.6 ab_valid_text_document 0.4 c_valid_text_document\n" in shown
    delivery, _ = read_delivery("d.yaml")
    assert [each.path for each in delivery.valid] == ["ab_valid_text_document", "c_valid_text_document"]
    shown = run("mix --data-path ab_text_document c_text_document --seq-length 10", capsys)
    assert "\n--valid-data-path ab_valid_text_document c_valid_text_document\n" in shown
    shown = run("mix ab_text_document --seq-length 10 --split 9,1,0", capsys)
    assert "warning: ab_valid_text_document: held out of its dataset, but valid is by --split; give" in shown
    tail = "valid is the end of each dataset in the order of its inputs: 6 documents of ab_text_document from 1 of 2 "
    tail += "inputs (b.jsonl)"
    assert f"warning: {tail}; `dsindex build --hold-out 1%` draws from all of them\n" in shown
    job = "--data-path 1 ab_text_document 1 c_text_document --seq-length 10 --split 9,1,0 --num-samples 9,2,0"
    assert f"note: {tail}; " in run(f"index {job} --plain-names --check", capsys)


@pytest.mark.usefixtures("sent")
def test_mix_and_index_tell_that_datasets_have_different_tokenizers(capsys):
    for name in "ab":
        Path(f"{name}.jsonl").write_text("".join(f'{{"text": "number {n} of {name}"}}\n' for n in range(40)))
        words = f"--output-prefix {name} --tokenizer-model {OWN.plain_tokenizer} --append-eod --executor local"
        run(f"build --input {name}.jsonl {words}", capsys)
    job = "--data-path 1 a_text_document 1 b_text_document --seq-length 10 --split 9,1,0"
    commands = f"mix {job}", f"index {job} --num-samples 9,2,0 --plain-names --check"
    assert not any("different tokenizers" in run(command, capsys) for command in commands)
    manifest = Path("b_text_document.manifest.json")
    manifest.write_text(re.sub('"sha256": ?"........', '"sha256": "00000000', manifest.read_text()))
    for command in commands:
        said = "the datasets have different tokenizers, .* of a_text_document and .* \\(00000000\\) of b_text_document"
        assert re.search(said, run(command, capsys))


@pytest.mark.usefixtures("sent")
def test_mix_index_and_report_tell_that_the_end_of_one_input_is_unlike_the_rest(capsys):
    kinds = [f"the number {n} of those that were counted" for n in range(280)], [f"Zug {n} fährt ab" for n in range(40)]
    sorted_texts = [text for kind in kinds for text in kind]
    for name, texts in {"sorted": sorted_texts, "mixed": random.Random(1).sample(sorted_texts, 320)}.items():
        Path(f"{name}.jsonl").write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts))
        words = f"--output-prefix {name} --tokenizer-model {OWN.plain_tokenizer} --append-eod --executor local"
        run(f"build --input {name}.jsonl {words}", capsys)
    job = "--seq-length 10 --split 7,1,0"
    shown = run(f"mix sorted_text_document mixed_text_document {job}", capsys)
    tail = (
        "valid is the end of each dataset in the order of its inputs: 40 documents of sorted_text_document unlike those"
    )
    [said] = [line.removeprefix("warning: ") for line in shown.splitlines() if tail in line]
    assert re.search(
        r"\(they have \d\d% of their tokens in common, others \d\d% or more\); `dsindex build --hold-", said
    )
    data = "--data-path 1 sorted_text_document 1 mixed_text_document"
    built = run(f"index {data} {job} --num-samples 9,2,0 --plain-names --data-cache-path c --executor local", capsys)
    assert f"note: {said}\n" in built
    run("report sorted_text_document mixed_text_document --cache c -o page.html", capsys)
    assert f"V{said[1:]}." in html.unescape(re.sub("<[^>]*>", "", Path("page.html").read_text()))


@pytest.mark.parametrize(("words", "message"), [
    ("mix data/web_text_document --write theirs.yaml", "theirs.yaml: exists already and is no unchanged delivery"),
    ("mix data/web_text_document --write delivery.json", "expected the name of a YAML file"),
    (f"mix {DATASETS} {JOB} --megatron-release 0.19 --tokenizer-type HuggingFaceTokenizer --write new.yaml",
     "--tokenizer-type HuggingFaceTokenizer needs --tokenizer-model, spelled as in the job"),
    ("index broken.yaml", "broken.yaml: expected a valid train in a delivery"),
    ("index hostile.yaml", "hostile.yaml: expected a valid job.tokenizer in a delivery"),
])  # fmt: skip
@pytest.mark.usefixtures("sent")
def test_wrong_deliveries_are_refused(words, message, capsys):
    Path("theirs.yaml").write_text("source: [a]\n")
    Path("broken.yaml").write_text("# dsindex delivery 1, xxh3_128 00\njob: {seq_length: 1, train_samples: 1}\n")
    run("mix data/web_text_document --write plain.yaml", capsys)
    Path("hostile.yaml").write_text(
        Path("plain.yaml").read_text().replace("job:\n", "job:\n  tokenizer: {'x; rm -rf ~': true}\n")
    )
    assert message in run(words, capsys, 1)
    assert Path("theirs.yaml").read_text() == "source: [a]\n"
    assert not os.path.exists("new.yaml")


@pytest.mark.usefixtures("sent")
def test_a_changed_delivery_is_not_completed(capsys):
    run(f"mix {DATASETS} {JOB} --data-cache-path cache --write delivery.yaml", capsys)
    change("delivery.yaml", lambda text: text + b"# mine\n")
    before = Path("delivery.yaml").read_bytes()
    assert "was left as it is" in run("index delivery.yaml --executor local", capsys)
    assert Path("delivery.yaml").read_bytes() == before
    assert "exists already" in run(f"mix {DATASETS} {JOB} --write delivery.yaml", capsys, 1)
