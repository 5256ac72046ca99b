"""`--document-order`, `--continue-from` and `--blend-schedule`: what is read, and in which order."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsindex.cli.render import describe
from dsindex.datasets import BlendedDataset
from dsindex.errors import DsindexError, OutputError
from tests.commands.index.index_jobs import indexed
from tests.support.datasets import write_dataset

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


@pytest.mark.parametrize(("options", "other_options", "message"), [
    ({}, {"document_order": "packed"}, "has Megatron's document order, not the document order 'packed'"),
    ({"document_order": "packed"}, {"document_order": "packed", "shuffle_epochs": "separately"},
     "'packed', not the document order 'packed', epochs shuffled separately"),
])  # fmt: skip
def test_another_order_under_the_same_name_is_refused(options, other_options, message):
    indexed(**options)
    before = arrays("cache")
    with pytest.raises(OutputError, match=f"{message}\\nhint: choose another --data-cache-path"):
        indexed(**other_options)
    assert arrays("cache") == before
    assert all(result.reused for result in indexed(**options).results)


def test_swapped_arrays_are_noticed(cli):
    indexed(data_cache_path="stock")
    indexed(document_order="packed")
    assert "it has the document order 'packed': a job that misses" in "\n".join(describe(indexed(explain=True)))
    next(Path("stock").glob("*train-dsindex.json")).unlink()  # as if another program had written it
    unknown = indexed(explain=True, document_order="packed", data_cache_path="stock")
    assert not unknown.ok
    assert "-train-dsindex.json says that it has the document order 'packed'" in "\n".join(describe(unknown))
    for path in Path("stock").glob("*train-*.npy"):
        Path("cache", path.name).write_bytes(path.read_bytes())  # as long, and sound by itself
    assert "-train-shuffle_index.npy changed since dsindex wrote it" in "\n".join(describe(indexed(explain=True)))
    with pytest.raises(OutputError, match="another program's file"):
        indexed(document_order="packed")
    output = cli(["verify", "web", "--cache", "cache"], 1).out
    assert "-train-document_index.npy changed since dsindex wrote it" in output


def test_orders_of_files_are_read_in_their_order():
    numbers = np.arange(240)[::-1].copy()
    np.save("order.npy", numbers)
    indexed(document_order="order.npy", split="1", epochs="1")
    assert document_index("cache").tolist() == numbers.tolist()
    (shuffle,) = Path("cache").glob("*shuffle_index.npy")
    assert (np.diff(np.load(shuffle).astype(np.int64)) == 1).all()
    np.save("order.npy", np.roll(numbers, 1))
    with pytest.raises(OutputError, match=r"has the document order 'order.npy' \(.{8}\), samples not shuffled, not"):
        indexed(document_order="order.npy", split="1", epochs="1")


def write_positions(name, lengths, *, base=0):
    """Write documents in which each token is its own position in the dataset."""
    ends = base + np.cumsum(lengths)
    documents = [[list(range(end - n, end))] for end, n in zip(ends, lengths, strict=True)]
    write_dataset(Path(name), documents, dtype=np.int32)


def open_blend(folder):
    (path,) = Path(folder).glob("*BlendedDataset-train-description.txt")
    return BlendedDataset.open_cache(path)


RUNS = st.fixed_dictionaries({
    "lengths": st.lists(st.lists(st.integers(1, 70), min_size=8, max_size=40), min_size=3, max_size=3),
    "grown": st.lists(st.integers(1, 70), max_size=9), "first": st.tuples(st.integers(1, 9), st.integers(1, 9)),
    "second": st.tuples(*[st.sampled_from([1e-9, 1, 2, 5])] * 3), "batches": st.integers(0, 7),
    "order": st.sampled_from(["shuffled", "packed"]), "seed": st.integers(0, 99),
})  # fmt: skip
"""Two jobs: documents of three datasets, what they draw from, and where the second begins."""


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(run=RUNS)
def test_nothing_comes_again_before_its_epoch_ends_and_nothing_is_lost(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    names = [str(folder / name) for name in ("a", "b", "c")]
    for name, lengths in zip(names, run["lengths"], strict=True):
        write_positions(name, lengths)
    consumed = 8 * run["batches"]
    shared = {"seq_length": 16, "epochs": None, "split": "1", "seed": run["seed"], "document_order": run["order"],
              "shuffle_epochs": "separately"}  # fmt: skip
    weights = [str(weight) for weight in run["first"]]
    first = {**shared, "data_path": [weights[0], names[0], weights[1], names[1]], "num_samples": "60",
             "data_cache_path": str(folder / "first")}  # fmt: skip
    indexed(**first)
    write_positions(names[0], [*run["lengths"][0], *run["grown"]])
    words = [word for weight, name in zip(run["second"], names, strict=True) for word in (repr(weight), name)]
    second = {**shared, "data_path": words, "num_samples": "150", "data_cache_path": str(folder / "second"),
              "continue_from": str(folder / "first"), "consumed_samples": consumed, "global_batch_size": 8}  # fmt: skip
    indexed(**second)
    before, after = open_blend(folder / "first"), open_blend(folder / "second")
    for number in range(consumed):
        assert (before.tokens(number) == after.tokens(number)).all()
    for dataset, member in enumerate(after.datasets):
        old = before.datasets[dataset] if dataset < 2 else None
        if old is not None:
            assert (member.document_index[: len(old.document_index)] == old.document_index).all()
            assert (member.sample_index[: len(old.sample_index)] == old.sample_index).all()
        drawn = np.cumsum(after.dataset_index[consumed:] == dataset)
        share = np.array(run["second"])[dataset] / sum(run["second"])
        assert np.abs(drawn - share * np.arange(1, len(drawn) + 1)).max() < 1
        check_epochs(after, dataset, consumed, sum(run["lengths"][dataset]))


def check_epochs(blend, dataset, consumed, num_old):
    """At every tenth of the run, all tokens of a dataset were read equally often, but for those of the open epoch.

    Tokens from `num_old` on are new after `consumed` samples. A sample may have the end of one epoch and the begin of
    the next, which are read early or late.
    """
    total = int(blend.datasets[dataset].dataset.sequence_lengths.sum(dtype=np.int64))
    numbers = np.flatnonzero(blend.dataset_index == dataset)
    num_taken = int((numbers < consumed).sum())
    joined = num_taken * 16 // num_old
    for part in range(11):
        head = numbers[: num_taken + (len(numbers) - num_taken) * part // 10]
        read = np.concatenate([np.zeros(0, np.int64), *(blend.tokens(number)[:-1] for number in head)]).astype(np.int64)
        times = np.bincount(read, minlength=total)
        slack = 16 * (len(read) // total + joined + 3)
        outside = [
            (~np.isin(times[:num_old] - least, (0, 1))).sum() + (~np.isin(times[num_old:] - least + gone, (0, 1))).sum()
            for least in range(len(read) // num_old + 1)
            for gone in (joined, joined + 1)
        ]
        assert min(outside) <= slack, (part, num_taken, joined)


FIRST = {"data_path": ["60", "web", "40", "books"], "split": "1", "epochs": None}
FIRST |= {"num_samples": "200", "data_cache_path": "first"}
SECOND = {**FIRST, "num_samples": "300", "data_cache_path": "second"}
SECOND |= {"continue_from": "first", "consumed_samples": 96, "global_batch_size": 24}
SCHEDULE = {**FIRST, "num_samples": "201", "blend_schedule": "0:90,10 50%:50,50", "max_epochs": 9}


@pytest.mark.parametrize(("changes", "message"), [
    ({"consumed_samples": 100}, "100 is not a multiple of --global-batch-size 24"),
    ({"continue_from": "elsewhere"}, "elsewhere: "),
    ({"consumed_samples": 9600}, "9600"),
], ids=["batch", "no-cache", "too-many"])  # fmt: skip
def test_a_run_that_cannot_go_on_is_refused(changes, message):
    indexed(**FIRST)
    with pytest.raises((DsindexError, ValueError), match=message):
        indexed(**{**SECOND, **changes})
    assert not list(Path().glob("second/*.npy"))


def test_a_dataset_that_changed_since_the_first_job_is_refused(folder):
    indexed(**FIRST)
    write_dataset(folder / "web", [[[1] * length] for length in [21, 49, 60, 30, 100, 5] * 40])
    with pytest.raises(DsindexError, match="web"):
        indexed(**SECOND)


@pytest.mark.parametrize("job", [SECOND, SCHEDULE], ids=["continued", "schedule"])
def test_planned_caches_do_not_depend_on_workers_or_executors(job):
    indexed(**FIRST)
    indexed(**{**job, "workers": 1, "data_cache_path": "this"})
    indexed(**{**job, "executor": "processes", "data_cache_path": "that"})
    assert arrays("this") == arrays("that") != {}
