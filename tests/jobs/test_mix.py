"""`dsindex mix`: the plan, Megatron's file, the comparison with caches, and refusals."""

import json
from pathlib import Path

import numpy as np
import pytest

import dsindex
from dsindex.cli.main import main
from dsindex.cli.mix import as_json
from dsindex.index.blend import parse_data_path
from tests.support.datasets import write_dataset
from tests.support.golden import GOLDEN


@pytest.fixture(autouse=True)
def datasets(tmp_path, monkeypatch):
    """Three datasets of 10 documents with 1000, 500 and 100 tokens, in the working folder."""
    monkeypatch.chdir(tmp_path)
    for name, length in {"web": 100, "books": 50, "code": 10}.items():
        write_dataset(tmp_path / name, [[[1] * length] for _ in range(10)])


def run(words, capsys):
    code = main(["mix", *words.split()])
    return code, *capsys.readouterr()


def plan(words, capsys):
    code, out, _ = run(f"{words} --json", capsys)
    shown = json.loads(out)
    assert code == (0 if shown["ok"] else 1)
    return shown


JOB = "--seq-length 10 --split 1"


def test_plan_shows_what_is_drawn_and_the_blend(capsys):
    code, out, _ = run(f"web books=2epochs code=20% --tokens 3k --global-batch-size 4 {JOB}", capsys)
    assert code == 0
    assert out == (
        "dataset  tokens  of all   weight  drawn  of drawn  epochs\n"
        "web       1,000   62.5%  0.46667  1,400    46.67%     1.4\n"
        "books       500  31.25%  0.33333  1,000    33.33%       2\n"
        "code        100   6.25%      0.2    600       20%       6\n"
        "total     1,600    100%           3,000      100%   1.875\n"
        "\n"
        "draws 300 samples of 10 tokens from the train split of '1', 75 iterations of 4: --train-samples 300\n"
        "first to run out: code, after 500 of 3,000 tokens, at iteration 12\n"
        "  its 6 epochs are shuffled together, so some of its tokens come again before all have come once\n"
        "warning: code is read 6 times; repeating a dataset more than 4 times gains little\n"
        "\n"
        "--data-path 0.46667 web 0.33333 books 0.2 code\n"
    )


def test_shares_are_of_the_train_split(capsys):
    shown = plan("web books --seq-length 10 --split 80,20", capsys)
    assert [source["tokens"] for source in shown["datasets"]] == [800, 400]


def test_weights_of_a_job_are_explained(capsys):
    shown = plan(f"--data-path 2 web 1 code --tokens 900 {JOB}", capsys)
    assert [source["tokens_drawn"] for source in shown["datasets"]] == [600, 300]
    assert shown["data_path"] == ["2", "web", "1", "code"]
    [warning] = shown["warnings"]
    assert "their sum is 3, by which Megatron divides them, so 2 for web is 66.67% of the tokens" in warning


def test_weights_of_splits_with_different_sums_are_told(tmp_path, capsys):
    write_dataset(tmp_path / "other", [[[1] * 50]])
    shown = plan("--data-path 60 web 40 books --valid-data-path 0.3 code 0.7 other --seq-length 10", capsys)
    assert shown["warnings"] == [
        "the weights sum to 100 in train, 1 in valid: Megatron divides each split's by their sum"
    ]


def test_file_for_each_split_is_as_megatron_reads_it(capsys):
    words = "web=75% books=25% --seq-length 10 --per-split-data-args-path new/mix.json --valid-data-path code web"
    code, out, _ = run(words, capsys)
    assert code == 0
    assert "web is in valid and in train" in out
    assert "from all of each dataset" in out
    written = json.loads(Path("new/mix.json").read_bytes())
    assert list(written) == ["train", "valid", "test"]
    blend = parse_data_path(written["train"])
    assert (blend.prefixes, blend.weights) == (("web", "books"), (0.75, 0.25))
    assert (written["valid"], written["test"]) == (["code", "web"], None)
    assert run(words, capsys)[0] == 0
    code, _, err = run(words.replace("75", "74").replace("25", "26"), capsys)
    assert (code, "new/mix.json: exists already with other content" in err) == (1, True)


@pytest.fixture
def cache(tmp_path):
    """The caches of a job with 60% web and 40% books."""
    folder = tmp_path / "cache"
    (tmp_path / "identifiers.json").write_text('{"class": "T"}')
    words = "--data-path 0.6 web 0.4 books --num-samples 100,0,0 --executor local --tokenizer-identifiers"
    assert main(["index", *words.split(), "identifiers.json", *JOB.split(), "--data-cache-path", str(folder)]) == 0
    return folder


def check(words, capsys):
    capsys.readouterr()
    code, out, err = run(f"{words} --check --data-cache-path cache", capsys)
    return code, out + err


@pytest.mark.parametrize("blend", [["1", "web"], ["web"]], ids=["blend", "dataset"])
def test_check_of_one_dataset(blend, capsys):
    words = ["index", "--data-path", *blend, "--num-samples", "70,0,0", "--plain-names", "--executor", "local"]
    assert main([*words, *JOB.split(), "--data-cache-path", "cache", "--document-order", "packed"]) == 0
    for samples, said in (
        (70, "draws what is intended\n  web: 70 of 70 samples, 100%; 700 tokens"),
        (99, "700 tokens"),
    ):
        code, shown = check(f"web --train-samples {samples} {JOB}", capsys)
        assert said in shown
        assert code == (samples == 99)
    shown = json.loads(check(f"web --train-samples 70 {JOB} --json", capsys)[1])
    [found] = shown["caches"]
    assert (found["num_samples"], found["findings"], found["phases"]) == ([70], [], [])
    assert (found["documents_cut"][0]["num_long"], shown["ok"]) == (10, True)


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(("words", "message"), [
    (f"web=60% books=40% --tokens 1k {JOB}", "draws what is intended\n  web: 60 of 100 samples, 60%"),
    (f"books=40% web=60% {JOB}", "draws what is intended\n  books: 40 of 100 samples, 40%"),
    (f"web=60.02% books=39.98% {JOB}", "draws what is intended"),
    (f"web=50% books=50% {JOB}", "FOUND: web: 60 of 100 samples, 60%, are drawn from it, but 50% are intended"),
    (f"web=60% books=40% --tokens 2k {JOB}", "FOUND: the blend has 1,000 tokens (100 samples of 10), but 2,000 ar"),
    ("web=60% books=40% --seq-length 10 --split 9,1", "FOUND: the caches were built with the split '1'"),
    (f"web {JOB}", "expected the caches of web, split train, got those of other datasets only (web, books); check"),
    (f"web=60% code=40% {JOB}", "got those of other datasets only (web, books); check"),
])  # fmt: skip
def test_check_compares_with_what_the_caches_draw(words, message, capsys):
    code, shown = check(words, capsys)
    assert message in shown
    assert code == (0 if "draws what is intended" in message else 1)


def test_check_finds_a_cache_of_other_data(cache, tmp_path, capsys):
    write_dataset(tmp_path / "books", [[[1] * 51] for _ in range(11)])
    code, shown = check(f"web=60% books=40% {JOB}", capsys)
    assert (code, "FOUND: books: books.idx changed since the cache was built" in shown) == (1, True)
    for record in cache.glob("*-dsindex.json"):
        record.write_text(json.dumps({**json.loads(record.read_bytes()), "source": {}}))
    assert "expected the record of a cache's data, got something else" in check(f"web=60% books=40% {JOB}", capsys)[1]
    for record in cache.glob("*-dsindex.json"):
        record.unlink()
    code, shown = check(f"web=60% books=40% {JOB}", capsys)
    assert (code, "FOUND: books: its cache was built from other data" in shown) == (1, True)


def test_check_compares_valid_and_test_too(tmp_path, capsys):
    (tmp_path / "identifiers.json").write_text('{"class": "T"}')
    job = "--seq-length 10 --num-samples 40,8,0 --tokenizer-identifiers identifiers.json --data-cache-path cache"
    for words in (
        "--data-path 3 web 1 books --split 8,2",
        "--train-data-path 3 web 1 books --valid-data-path 1 code 1 web",
    ):
        assert main(["index", *words.split(), *job.split(), "--executor", "local"]) == 0
    code, shown = check("web=75% books=25% --seq-length 10 --split 8,2", capsys)
    assert "-valid-description.txt: draws what is intended\n  web: 6 of 8 samples, 75%; 60 tokens\n" in shown
    own = "--seq-length 10 --per-split-data-args-path mix.json --valid-data-path"
    for weights, expected in (("1 code 1 web", "draws what is intended"), ("0.1 code 9 web", "draws something else")):
        code, shown = check(f"web=75% books=25% {own} {weights}", capsys)
        assert f"-valid-description.txt: {expected}\n  code: 4 of 8 samples, 50%; 40 tokens\n" in shown
        assert code == 1  # the train split of a job with --split is in the folder, too
        Path("mix.json").unlink()
    assert "--valid-data-path: expected" in check(f"web=75% books=25% {own} -1 code 1 web", capsys)[1]


@pytest.mark.parametrize(
    "case",
    [case for case in json.loads((GOLDEN / "gpt_index_cases.json").read_bytes()) if "blend" in case["name"]],
    ids=lambda case: case["name"],
)
def test_plan_of_a_blend_is_what_megatron_draws(case, monkeypatch, capsys):
    monkeypatch.chdir(GOLDEN)
    weights = [str(weight) for weight in case.get("weights", [])]
    words = [word for pair in zip(weights, case["prefixes"], strict=True) for word in pair] if weights else None
    size = [] if case["num_samples"][0] is None else ["--train-samples", str(case["num_samples"][0])]
    shown = plan(
        f"--data-path {' '.join(words or case['prefixes'])} {' '.join(size)} --seq-length {case['sequence_length']} "
        f"--split {case['split']} --check --data-cache-path cache/{case['name']}",
        capsys,
    )
    assert shown["ok"]
    cache, *others = shown["caches"]
    assert [each["split"] for each in others] == ["valid", "test"][: 2 if "three_splits" in case["name"] else 0]
    assert [sum(each["num_samples"]) for each in others] == [length for length in case["lengths"][1:] if length]
    assert shown["num_samples"] == sum(cache["num_samples"]) == case["lengths"][0]
    for source, drawn in zip(shown["datasets"], cache["num_samples"], strict=True):
        assert abs(source["num_samples"] - drawn) <= 1


def test_check_names_a_damaged_index(cache, capsys):
    [path] = cache.glob("*-BlendedDataset-train-dataset_index.npy")
    np.save(path, np.full(100, 7, np.int16))
    assert check(f"web=60% books=40% {JOB}", capsys)[1].startswith(f"dsindex mix: cache/{path.name}: expected datasets")
    np.save(path, np.zeros(9, np.int16))
    assert "expected 100 samples, as its description says, got 9" in check(f"web=60% books=40% {JOB}", capsys)[1]
    path.unlink()
    assert "cannot be read as a dataset index" in check(f"web=60% books=40% {JOB}", capsys)[1]


@pytest.mark.parametrize(("words", "code", "message"), [
    ("", 2, "give at least one dataset"),
    ("web=3", 2, "web: expected 40% of the tokens or 0.4, 2.5epochs, 10B tokens, or rest, got '3': write 3%, "),
    ("web --tokens 1B --train-samples 3", 2, "give one of --tokens, --train-samples and --train-iters"),
    ("web --valid-data-path code --split 9,1", 2, "--split does not go with --per-split-data-args-path, --valid-data-"),
    ("web 0.5 books", 2, "expected datasets as PREFIX=AMOUNT, got the number 0.5; write the words of a "),
    ("--data-path 1e308 web 1e308 books", 1, "expected weights with a finite sum"),
    ("web linked", 1, "expected every dataset once"),
    ("chat", 1, "chat.idx: no such file; did you mean chat_loss_mask, chat_text_document?"),
    ("chat_loss_mask", 1, "got the loss mask of instruction data; use chat_text_document"),
    ("floats", 1, "expected a dataset of tokens, which are integers, got float32"),
    ("empty", 1, "expected tokens to draw, got a dataset without any"),
    ("--data-path 0.5 web books", 1, "expected a weight before each dataset or before none, got 0.5"),
    ("--data-path 0 web 1 books", 1, "expected a positive weight for web"),
    ("web --tokens 999999T", 1, "more than the 2147483647 that Megatron can count"),
    ("web books --check --data-cache-path nowhere", 1, "nowhere: expected a folder with index caches"),
])  # fmt: skip
def test_wrong_use_is_one_sentence(words, code, message, tmp_path, capsys):
    write_dataset(tmp_path / "chat_text_document", [[[1, 2]]])
    write_dataset(tmp_path / "chat_loss_mask", [[[1, 1]]], dtype=np.uint8)
    write_dataset(tmp_path / "floats", [[[1, 2]]], dtype=np.float32)
    write_dataset(tmp_path / "empty", [[[]]])
    (tmp_path / "linked.idx").symlink_to("web.idx")
    got, out, err = run(f"{words} --seq-length 10", capsys)
    assert (got, out) == (code, "")
    assert message in err
    assert err.count("\n") == 1


def test_mixture_in_python_and_from_a_file(tmp_path, capsys):
    expected = plan(f"web=60% books=40% --tokens 2k {JOB}", capsys)
    mixed = dsindex.mix({Path("web"): "60%", "books": "40%"}, tokens="2k", seq_length=10, split="1")
    assert as_json(mixed) == expected
    assert mixed.data_path == tuple(expected["data_path"])
    assert repr(mixed) == "MixResult(0.6 web 0.4 books: 2,000 tokens)"
    assert str(mixed).startswith("dataset ")
    again = dsindex.mix(data_path=mixed.data_path, tokens=2000, seq_length=10, split="1")
    assert [source.share for source in again.mixture.sources] == [source.share for source in mixed.mixture.sources]
    rest = dsindex.mix({"web": "60%", "books": None}, tokens=2000, seq_length=10, split="1")
    assert rest.data_path == mixed.data_path
    file = tmp_path / "mix.yaml"
    file.write_text("source: [web=60%, books=40%]\ntokens: 2k\nseq-length: 10\nsplit: '1'\n")
    assert plan(f"--config {file}", capsys) == expected
    assert plan(f"--config {file} --tokens 1k", capsys)["tokens"] == 1000
    assert plan(f"--config {file} web=10% books", capsys)["datasets"][0]["share"] == 0.1
    file.write_text("sources: [web]\n")
    assert "sources" in run(f"--config {file}", capsys)[2]
