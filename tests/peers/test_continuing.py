"""megatron-core's datasets and Megatron's sampler read what was planned: continued runs, schedules, and what is left.

Each token is its own position in its dataset ("position data"), so a sample tells its tokens. The sampler needs
`MEGATRON_LM`, the path of a checkout of Megatron-LM, as in test_traced_samples.py.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from dsindex.cli.main import main
from tests.peers.test_indices import IDENTIFIERS, _distributed, build_with_megatron, check_rows  # noqa: F401 - a fixture
from tests.peers.test_traced_samples import sampler  # noqa: F401 - a fixture
from tests.support.datasets import write_dataset

LENGTH, BATCH, SEED = 32, 16, 7
SPLIT = "98,1,1"

pytestmark = pytest.mark.usefixtures("_distributed")


def write_positions(name, lengths, *, base):
    """Write documents whose tokens are their positions in the dataset, from `base` on."""
    ends = base + np.cumsum(lengths)
    documents = [[list(range(end - n, end))] for end, n in zip(ends, lengths, strict=True)]
    write_dataset(Path(name).absolute(), documents, dtype=np.int32)


@pytest.fixture
def datasets(tmp_path, monkeypatch):
    """Datasets A, B and C in the working folder, and a function that lets A grow."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(3)
    lengths = {name: rng.integers(1, 90, count) for name, count in (("A", 900), ("B", 500), ("C", 300))}
    for number, (name, document_lengths) in enumerate(lengths.items()):
        write_positions(name, document_lengths, base=number * 10**6)
    Path("identifiers.json").write_text(json.dumps(IDENTIFIERS))
    return lambda: write_positions("A", np.concatenate([lengths["A"], rng.integers(1, 90, 200)]), base=0)


def index(path, size, cache, *words, length=LENGTH, split=SPLIT):
    flags = ["--data-path", *path, "--seq-length", str(length), "--num-samples", f"{size},2,2", "--split", split]
    flags += ["--seed", str(SEED), "--data-cache-path", cache, "--tokenizer-identifiers", "identifiers.json"]
    assert main(["index", *flags, *map(str, words)]) == 0


def train(path, size, cache, *, length=LENGTH, split=SPLIT, finds_all=True):
    """Start Megatron on a cache, in which it has to find everything."""
    before = {file.name: file.stat().st_mtime_ns for file in Path(cache).glob("*")}
    case = {
        "seed": SEED, "sequence_length": length, "per_split": False, "paths": [path], "split": split,
        "surplus": 0.005, "extra_token": True, "keep_partial": False, "sizes": [size, 2, 2],
    }  # fmt: skip
    dataset = build_with_megatron(case, Path(cache).absolute())[0]
    assert ({file.name: file.stat().st_mtime_ns for file in Path(cache).glob("*")} == before) == finds_all
    return dataset


def read_by_ranks(kind, dataset, consumed):
    """The samples that two ranks read from a number of consumed samples on, in the order of the run."""
    numbers = []
    ranks = [kind(len(dataset), consumed, 2, rank, 2) for rank in range(2)]
    for batches in zip(*map(iter, ranks), strict=True):
        numbers += [number for batch in batches for number in batch]
    return numbers


def tokens(dataset, numbers):
    return np.concatenate([np.zeros(0, np.int64), *(dataset[number]["tokens"].numpy() for number in numbers)])


def times(read, base):
    """How often each position of a dataset was read, up to the last one."""
    positions = read[(read >= base) & (read < base + 10**6)] - base
    return np.bincount(positions)


FIRST = ["60", "A", "40", "B"]
SECOND = ["90", "A", "5", "B", "5", "C"]


@pytest.mark.parametrize("order", ["shuffled", "packed"])
def test_a_run_goes_on_twice_without_reading_anything_again(datasets, sampler, order):  # noqa: F811 - a fixture
    index(FIRST, 900, "first", "--document-order", order)
    first = train(FIRST, 900, "first")
    consumed = 25 * BATCH
    datasets()  # A grows
    after = ["--continue-from", "first", "--consumed-samples", consumed, "--global-batch-size", BATCH]
    index(SECOND, 1300, "second", "--document-order", order, *after)
    second = train(SECOND, 1300, "second")
    later = 40 * BATCH
    third_path = ["1e-9", "A", "1", "B", "2", "C"]
    after = ["--continue-from", "second", "--consumed-samples", later, "--global-batch-size", BATCH]
    index(third_path, 900, "third", "--document-order", order, *after)
    third = train(third_path, 900, "third")
    for member in (*second.datasets, *third.datasets):
        check_rows(member, np.asarray(member.dataset.sequence_lengths))
    # Before the change, every sample is that of the job before: a job may go back.
    for number in range(consumed):
        assert (first[number]["tokens"] == second[number]["tokens"]).all()
    for number in range(later):
        assert (second[number]["tokens"] == third[number]["tokens"]).all()
    # After it, two ranks read what is left, and nothing comes again before its epoch ends.
    for blend, begin in ((second, consumed), (third, later)):
        read = tokens(blend, [*range(begin), *read_by_ranks(sampler, blend, begin)])
        assert [times(read, base).max() for base in (0, 10**6, 2 * 10**6)] == [1, 1, 1]
    stock = train(SECOND, 1300, "stock", finds_all=False)
    before, again = tokens(first, range(consumed)), tokens(stock, range(consumed, len(stock)))
    assert len(np.intersect1d(before, again)) > 1000  # what a job reads again whose caches are Megatron's


def test_one_dataset_is_read_to_the_end_of_its_epoch_and_then_again(datasets, sampler):  # noqa: F811, ARG001
    index(["A"], 500, "first")
    consumed = 20 * BATCH
    after = ["--continue-from", "first", "--consumed-samples", consumed, "--global-batch-size", BATCH]
    index(["A"], 2700, "second", *after)
    second = train(["A"], 2700, "second")
    numbers = [*range(consumed), *read_by_ranks(sampler, second, consumed)]
    total = int(tokens(second, range(len(second))).max()) + 1
    read = tokens(second, numbers)
    for epoch in (1, 2):
        counted = np.bincount(read[: epoch * total], minlength=total)
        assert (counted == epoch).sum() > total - 2 * LENGTH
        assert counted.max() <= epoch + 1
        assert (counted > epoch).sum() <= LENGTH


@pytest.mark.parametrize(("schedule", "weights"), [
    ("0:90,10,0 50%:50,30,20", lambda at: np.where(at[:, None] < 450.5, [0.9, 0.1, 0], [0.5, 0.3, 0.2])),
    ("linear 0:8,2,0 14400tokens:1,1,2",
     lambda at: [0.8, 0.2, 0] + np.minimum(at[:, None] / 450, 1) * [-0.55, 0.05, 0.5]),
], ids=["steps", "linear"])  # fmt: skip
def test_a_schedule_is_followed(datasets, schedule, weights):  # noqa: ARG001
    path = ["1", "A", "1", "B", "1", "C"]
    index(path, 900, "cache", "--blend-schedule", schedule)
    blend = train(path, 900, "cache")
    assert len(blend) == 900
    chosen = np.array([int(blend[number]["dataset_id"]) for number in range(len(blend))])
    drawn = np.cumsum(chosen[:, None] == np.arange(3), axis=0)
    middles = np.arange(900) + 0.5
    assert np.abs(drawn - np.cumsum(weights(middles), axis=0)).max() < 1.01
    read = tokens(blend, range(len(blend)))
    assert [times(read, base).max() for base in (0, 10**6, 2 * 10**6)] == [1, 1, 1]
