"""`dsindex mix`: the plan, token budgets, and refusals."""

import json
from pathlib import Path

import numpy as np
import pytest

import dsindex
from tests.support.datasets import write_dataset
from tests.support.golden import GOLDEN, golden_cases


@pytest.fixture(autouse=True)
def _datasets(in_folder):
    """Three datasets of 10 documents with 1000, 500 and 100 tokens, in the working folder."""
    for name, length in {"web": 100, "books": 50, "code": 10}.items():
        write_dataset(in_folder / name, [[[1] * length] for _ in range(10)])


@pytest.fixture
def run(cli):
    return lambda words, code=0: cli(["mix", *words.split()], code)


@pytest.fixture
def plan(run):
    return lambda words: json.loads(run(f"{words} --json").out)


JOB = "--seq-length 10 --split 1"


def test_weights_of_a_job_are_explained(plan):
    mixture = plan(f"--data-path 2 web 1 code --tokens 900 {JOB}")
    assert [source["tokens_drawn"] for source in mixture["datasets"]] == [600, 300]
    assert mixture["data_path"] == ["2", "web", "1", "code"]
    assert mixture["warnings"] == []


def test_weights_of_splits_with_different_sums_are_told(tmp_path, plan):
    write_dataset(tmp_path / "other", [[[1] * 50]])
    mixture = plan("--data-path 60 web 40 books --valid-data-path 0.3 code 0.7 other --seq-length 10")
    warning = "the weights sum to 100 in train, 1 in valid: Megatron divides each split's by their sum"
    assert mixture["warnings"] == [warning]


def test_splits_have_flags_of_their_own(run):
    out = run("web=75% books=25% --seq-length 10 --valid-data-path code web").out
    assert "web is in valid and in train" in out
    assert "from all of each dataset" in out
    assert out.endswith("--train-data-path 0.75 web 0.25 books\n--valid-data-path code web\n")


def test_token_budgets(plan):
    """A share, a limit in epochs, and the rest."""
    mixture = plan(f"code=30% books=max2epochs web --tokens 4k {JOB}")
    drawn = {dataset["prefix"]: (dataset["tokens_drawn"], dataset["epochs"]) for dataset in mixture["datasets"]}
    assert drawn == {"code": (1200, 12.0), "books": (930, 1.86), "web": (1870, 1.87)}
    mixture = plan(f"code=30% books=max1epoch web --tokens 4k {JOB}")
    assert [dataset["tokens_drawn"] for dataset in mixture["datasets"]] == [1200, 500, 2300]


def test_every_split_is_counted(plan):
    mixture = plan("web books --seq-length 10 --split 8,1,1")
    counted = [(dataset["tokens"], dataset["valid_tokens"], dataset["test_tokens"]) for dataset in mixture["datasets"]]
    assert counted == [(800, 100, 100), (400, 50, 50)]


@pytest.mark.parametrize("name", [name for name in golden_cases() if name.startswith("own-blend")])
def test_plan_of_a_blend_is_what_megatron_draws(name, monkeypatch, plan):
    monkeypatch.chdir(GOLDEN)
    case = golden_cases()[name].case
    weights = [str(weight) for weight in case.get("weights", [])]
    words = [word for pair in zip(weights, case["prefixes"], strict=True) for word in pair] if weights else None
    size = [] if case["num_samples"][0] is None else ["--train-samples", str(case["num_samples"][0])]
    job = f"--seq-length {case['sequence_length']} --split {case['split']} {' '.join(size)}"
    mixture = plan(f"--data-path {' '.join(words or case['prefixes'])} {job}")
    [index] = Path(f"cache/{case['name']}").glob("*-BlendedDataset-train-dataset_index.npy")
    drawn = np.bincount(np.load(index), minlength=len(case["prefixes"])).tolist()
    assert mixture["num_samples"] == sum(drawn) == case["lengths"][0]
    for dataset, num_drawn in zip(mixture["datasets"], drawn, strict=True):
        assert abs(dataset["num_samples"] - num_drawn) <= 1


@pytest.mark.parametrize(("words", "code", "message"), [
    ("", 2, "give at least one dataset"),
    ("web=3", 2, "web: '3' is not an amount such as 40% of the tokens or 0.4, 2.5epochs, 10B tokens, rest, or a limit"),
    ("web --tokens 1B --train-samples 3", 2, "--tokens and --train-samples cannot be combined"),
    ("web --valid-data-path code --split 9,1", 2, "--split and --valid-data-path cannot be combined"),
    ("0.5 web 0.5 books", 2, "0.5 is an amount, not a dataset\nhint: write PREFIX=AMOUNT, or give the words of a job"),
    ("web=60% books=60%", 1, "the shares add up to 120%, more than 100%\nhint: make them smaller"),
    ("web linked", 1, "this dataset is given twice"),
    ("chat", 1, "chat.idx: no such file\nhint: give the prefix of a .bin and .idx"),
    ("empty", 1, "empty.idx: there are no tokens in train"),
    ("--data-path 0.5 web books", 1, "0.5.idx: no such file"),
    ("--data-path 0 web 1 books", 1, "Megatron refuses the weight 0 of web"),
    ("web --tokens 999999T", 1, "more than the 2147483647 that Megatron can count"),
])  # fmt: skip
def test_wrong_use_is_one_sentence(words, code, message, tmp_path, run):
    write_dataset(tmp_path / "chat_text_document", [[[1, 2]]])
    write_dataset(tmp_path / "chat_loss_mask", [[[1, 1]]], dtype=np.uint8)
    write_dataset(tmp_path / "empty", [[[]]])
    (tmp_path / "linked.idx").symlink_to("web.idx")
    printed = run(f"{words} --seq-length 10", code)
    assert message in printed.err
    assert (printed.out, printed.err.count("\n")) == ("", 1 + ("hint: " in printed.err))


def test_mixture_in_python_and_from_a_file(tmp_path, plan, run):
    expected = plan(f"web=60% books=40% --tokens 2k {JOB}")
    mixed = dsindex.mix({Path("web"): "60%", "books": "40%"}, tokens="2k", seq_length=10, split="1")
    assert [row.tokens_drawn for row in mixed.datasets] == [row["tokens_drawn"] for row in expected["datasets"]]
    assert mixed.data_path == tuple(expected["data_path"])
    second_mix = dsindex.mix(data_path=mixed.data_path, tokens=2000, seq_length=10, split="1")
    assert [row.share for row in second_mix.datasets] == [row.share for row in mixed.datasets]
    mixed_with_rest = dsindex.mix({"web": "60%", "books": None}, tokens=2000, seq_length=10, split="1")
    assert mixed_with_rest.data_path == mixed.data_path
    file = tmp_path / "mix.yaml"
    file.write_text("source: [web=60%, books=40%]\ntokens: 2k\nseq-length: 10\nsplit: '1'\n")
    assert plan(f"--config {file}") == expected
    assert plan(f"--config {file} --tokens 1k")["tokens"] == 1000
    assert plan(f"--config {file} web=10% books")["datasets"][0]["share"] == 0.1
    file.write_text("sources: [web]\n")
    assert "sources" in run(f"--config {file}", 2).err
