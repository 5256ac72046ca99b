"""`dsindex index --document-order`: caches in another order than Megatron's, under the names that a job looks for."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

import dsindex
from dsindex.cli.main import main
from dsindex.errors import FormatError, InputError, OutputError
from dsindex.options.config import UsageError, validated
from dsindex.options.index import IndexConfig
from tests.jobs.index.index_jobs import indexed, options
from tests.support.datasets import write_dataset
from tests.support.golden import OWN

pytestmark = pytest.mark.usefixtures("folder")


def arrays(folder):
    return {path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in sorted(Path(folder).glob("*.npy"))}


def document_index(folder, split="train"):
    (path,) = Path(folder).glob(f"*-{split}-document_index.npy")
    return np.load(path)


def test_packed_caches_have_the_names_and_sizes_of_stock_ones():
    stock = indexed(data_cache_path="stock")
    packed = indexed(data_cache_path="packed", document_order="packed")
    assert [result.num_samples for result in packed.results] == [result.num_samples for result in stock.results]
    theirs, ours = arrays("stock"), arrays("packed")
    assert theirs.keys() == ours.keys()
    assert {name.split("-")[2] for name in ours if ours[name] != theirs[name]} == {"train"}
    assert sorted(document_index("packed")) == sorted(document_index("stock"))


@pytest.mark.parametrize("executor", ["local", "processes", pytest.param("ray", marks=pytest.mark.ray)], indirect=True)
def test_executors_and_workers_write_the_same_bytes(executor):
    blend = {"data_path": ["2", "web", "1", "books"], "epochs": None, "num_samples": "900,9,9", "split": "8,1,1"}
    indexed(data_cache_path="one", workers=1, document_order="packed", **blend)
    indexed(data_cache_path="other", workers=2, executor=executor, document_order="packed", **blend)
    assert arrays("one") == arrays("other")


def test_splits_are_chosen():
    indexed(data_cache_path="stock")
    indexed(data_cache_path="both", document_order="packed", document_order_splits=["train", "valid"])
    assert (document_index("both", "valid") != document_index("stock", "valid")).any()
    assert (document_index("both", "test") == document_index("stock", "test")).all()


@pytest.mark.parametrize(("there", "asked", "said"), [
    ({}, {"document_order": "packed"}, "has Megatron's document order, not the document order 'packed'"),
    ({"document_order": "packed"}, {}, "has the document order 'packed', not Megatron's document order"),
    ({"document_order": "packed"}, {"document_order": "packed", "shuffle_epochs": "separately"},
     "'packed', not the document order 'packed', epochs shuffled separately"),
])  # fmt: skip
def test_another_order_under_the_same_name_is_refused(there, asked, said):
    indexed(**there)
    before = arrays("cache")
    with pytest.raises(OutputError, match=f"{said}; .*choose another --data-cache-path"):
        indexed(**asked)
    assert arrays("cache") == before
    assert all(result.reused for result in indexed(**there).results)


def test_explain_says_that_a_name_holds_a_plan():
    built = "\n".join(indexed(document_order="packed").lines())
    assert "note: train: the document order 'packed'; start the job with --dataloader-defer-npy-index-mmap" in built
    plain, asked = indexed(explain=True), indexed(explain=True, document_order="packed")
    assert plain.ok
    assert asked.ok
    shown = "\n".join(plain.lines())
    assert shown.count("this name holds the document order 'packed'") == 1
    assert "--dataloader-defer-npy-index-mmap" in shown
    other = indexed(explain=True, document_order="length")
    assert not other.ok
    assert "has the document order 'packed', not the document order 'length'" in "\n".join(other.lines())


def test_swapped_arrays_are_noticed(capsys):
    indexed(data_cache_path="stock")
    indexed(document_order="packed")
    for path in Path("stock").glob("*train-*.npy"):
        Path("cache", path.name).write_bytes(path.read_bytes())  # as long, and sound by itself
    assert "-train-shuffle_index.npy changed since dsindex wrote it" in "\n".join(indexed(explain=True).lines())
    with pytest.raises(OutputError, match="expected no file or one that dsindex wrote"):
        indexed(document_order="packed")
    assert main(["verify", "web", "--cache", "cache"]) == 1
    assert "-train-document_index.npy changed since dsindex wrote it" in capsys.readouterr().out


def test_inspect_counts_cut_documents(capsys):
    indexed(data_cache_path="stock")
    indexed(document_order="packed")
    for folder, said in (("stock", "171 of 348"), ("cache", "1 of 348")):
        assert main(["inspect", folder]) == 0
        assert f"documents cut: {said} documents of at most 30 tokens" in capsys.readouterr().out
        assert main(["report", "web", "--cache", folder, "--output", f"{folder}.html"]) == 0
        share = "49.14%" if folder == "stock" else "0.29%"
        assert f">{share}<" in Path(f"{folder}.html").read_text(encoding="utf-8")


def test_orders_of_files_are_read_in_their_order():
    numbers = np.arange(240)[::-1].copy()
    np.save("order.npy", numbers)
    indexed(document_order="order.npy", split="1", epochs="1")
    assert document_index("cache").tolist() == numbers.tolist()
    (shuffle,) = Path("cache").glob("*shuffle_index.npy")
    assert (np.diff(np.load(shuffle).astype(np.int64)) == 1).all()
    np.save("order.npy", np.roll(numbers, 1))
    with pytest.raises(
        OutputError, match=r"has the document order 'order.npy' \(.{8}\), samples not shuffled, not the"
    ):
        indexed(document_order="order.npy", split="1", epochs="1")


def longest_twice(documents):
    """Order documents by line, backwards; the longest come twice, and empty ones not at all."""
    assert documents.column_names == ["document", "length", "source", "line", "offset"]
    assert set(documents["source"].to_pylist()) == {"text.jsonl"}
    lengths = documents["length"].to_numpy()
    times = np.where(lengths == lengths.max(), 2, 1) * (documents["line"].to_numpy() != 3)
    return np.repeat(documents["document"].to_numpy(), times)[::-1], times


@pytest.mark.parametrize(("function", "first", "entries"), [
    (longest_twice, [4, 3, 3, 1, 0], 5),
    (lambda documents: np.argsort(-documents["length"].to_numpy(), kind="stable"), [3, 0, 1, 2, 4], 5),
], ids=["repeats", "longest-first"])  # fmt: skip
def test_functions_and_their_files_give_the_same_bytes(function, first, entries):
    texts = ["a b", "a", "a", "a b c d", "a"]
    Path("text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    dsindex.build("text.jsonl", output_prefix="built", tokenizer=OWN.plain_tokenizer, executor="local")
    job = {"split": "1", "seq_length": 3, "num_samples": 9, "plain_names": True, "executor": "local"}
    job["document_order"] = function
    dsindex.build_index("built_text_document", data_cache_path="here", workers=1, **job)
    numbers = document_index("here")
    assert numbers.tolist()[: 2 * entries] == first * 2
    before = arrays("here")
    (path,) = Path("here").glob("*-document_order.npy")
    words = ["index", "--data-path", "built_text_document", "--split", "1", "--seq-length", "3", "--num-samples", "9"]
    words += ["--plain-names", "--executor", "processes", "--workers", "2", "--document-order", str(path)]
    assert main([*words, "--data-cache-path", "there"]) == 0
    there = arrays("there")
    assert there.items() <= before.items()
    assert before.keys() - there.keys() == {path.name}
    assert main(["verify", "built_text_document", "--cache", "there"]) == 0
    for name in ("here", "there"):  # as if each had been killed
        next(Path(name).glob("*train-sample_index.npy")).unlink()
    dsindex.build_index("built_text_document", data_cache_path="here", workers=2, **job)
    assert main([*words, "--data-cache-path", "there"]) == 0
    assert (arrays("here"), arrays("there")) == (before, there)
    assert "was there already" in "\n".join(
        dsindex.build_index("built_text_document", data_cache_path="here", **job).lines()
    )
    checked = dsindex.build_index("built_text_document", data_cache_path="other", check=True, **job)
    assert checked.tasks[0].num_positions == len(numbers)
    assert not Path("other").exists()


@pytest.mark.parametrize(("returned", "said"), [
    (lambda _: "order", r"expected the function to return document numbers, .* got <U5 of shape \(\)"),
    (lambda _: (np.arange(240), np.ones(3, int)), r"of the 240 documents, .* and int64 of shape \(3,\)"),
    (lambda _: np.arange(239), r"expected document numbers of one epoch \(240\)"),
    (lambda _: (np.arange(240), np.full(240, 2)), "got document 0 with 1 row that state 2 times"),
    (lambda _: (np.arange(1, 241), np.ones(240, int)), "expected document numbers from 0 to 239, got 240"),
])  # fmt: skip
def test_functions_that_return_no_order(returned, said):
    with pytest.raises(InputError, match=said):
        dsindex.build_index("web", seq_length=30, epochs=1, split="1", data_cache_path="cache", plain_names=True,
                            executor="local", document_order=returned)  # fmt: skip
    assert not list(Path("cache").glob("*-train-*"))


def test_a_run_whose_order_states_repeats_cannot_change(capsys):
    numbers = np.repeat(np.arange(240), 2)
    np.save("order.npy", np.stack([numbers, np.full(480, 2)], axis=1))
    job = {"data_path": ["1", "web"], "split": "1", "epochs": None, "num_samples": "400"}
    assert indexed(document_order="order.npy", **job).results[0].num_epochs == 1
    assert main(["rest", "cache", "--consumed-samples", "8", "--output-prefix", "rest"]) == 1
    assert "whose order states repeats" in capsys.readouterr().err


@pytest.mark.parametrize(("changes", "error", "said"), [
    ({"document_order": "none.npy"}, InputError, "none.npy"),
    ({"document_order": "text.npy"}, FormatError, "text.npy: expected document numbers, got a file that cannot"),
    ({"document_order": "few.npy"}, InputError, r"few.npy: expected document numbers of one epoch \(233\) or of all"),
    ({"document_order": "few.npy", "data_path": ["web", "books"], "epochs": None, "num_samples": "9"}, InputError,
     "expected one dataset, whose documents the file lists, got 2"),
])  # fmt: skip
def test_files_that_are_no_orders(changes, error, said):
    Path("text.npy").write_text("0 1 2")
    np.save("few.npy", np.arange(3))
    with pytest.raises(error, match=said):
        indexed(**changes)
    assert not arrays("cache")


@pytest.mark.parametrize(("changes", "said"), [
    ({"document_order": "sorted"}, "expected shuffled, packed, length, or a file .npy or .parquet, got 'sorted'"),
    ({"document_order": "s3://b/order.npy"}, "s3://b/order.npy"),
    ({"document_order": "packed", "layout": "bigscience"}, "leave out --layout bigscience"),
    ({"document_order": "packed", "dataset_class": "GPTFIMDataset"}, "were not tried with --fim-data"),
])  # fmt: skip
def test_options_that_do_not_go_with_an_order(changes, said):
    with pytest.raises(UsageError, match=said):
        validated(options(**changes), IndexConfig)


def test_a_document_of_several_sequences_is_ordered_by_sequences():
    write_dataset(Path("web"), [[[1] * 20, [1] * 12], [[1] * 18], [[1] * 40, [1] * 30]] * 30)
    indexed(document_order="packed", split="1", epochs="1")
    assert sorted(document_index("cache")) == list(range(150))
