"""Document orders other than Megatron's, against what they promise."""

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dsindex.errors import FormatError, InputError
from dsindex.megatron.building import build_arrays
from dsindex.megatron.document_order import GROUP
from dsindex.megatron.epochs import DocumentOrder, SampleRule, count_epochs
from dsindex.store.read import digest_file

PACKED = DocumentOrder(documents="packed")


def build(lengths, order=PACKED, *, length=512, epochs=2, begin=0, seed=1234, threads=1):
    lengths = np.asarray(lengths, np.int32)
    rule = SampleRule(sequence_length=length)
    tokens = int(lengths.sum())
    counts = count_epochs(tokens, max(0, epochs * tokens - 1) // length, rule=rule, place="test")
    return build_arrays(lengths, counts, begin=begin, rule=rule, seed=seed, threads=threads, order=order), counts


def count_cut(lengths, documents, length):
    """Return how many documents of at most `length` tokens a border cuts, and how many cuts of others are too many."""
    document_lengths = np.asarray(lengths)[documents].astype(np.int64)
    ends = np.cumsum(document_lengths)
    borders = np.where(document_lengths > 0, (ends - 1) // length - (ends - document_lengths) // length, 0)
    is_short = document_lengths <= length
    needed = np.maximum(0, -(-document_lengths // length) - 1)
    return int((borders[is_short] > 0).sum()), int((borders - needed)[~is_short].sum())


def lognormal(count, mean, spread):
    return np.maximum(1, np.random.default_rng(7).lognormal(mean, spread, count)).astype(np.int32)


@pytest.mark.parametrize(("count", "mean", "spread"), [
    (20_000, 7.5, 1.5), (GROUP + 50_000, 5.5, 1.0),
], ids=["long", "groups"])  # fmt: skip
def test_packed_samples_end_where_documents_end(count, mean, spread):
    length, lengths = 2048, lognormal(count, mean, spread)
    (stock, *_), _ = build(lengths, DocumentOrder(), length=length)
    (documents, *_), counts = build(lengths, length=length)
    assert (np.sort(documents.reshape(counts.num_epochs, -1)) == np.arange(count)).all()
    short, extra = count_cut(lengths, documents, length)
    stock_short, stock_extra = count_cut(lengths, stock, length)
    assert stock_short > count / 10
    assert short <= 1
    assert extra <= 0.05 * stock_extra


def test_order_depends_on_the_seed_alone():
    lengths = lognormal(3000, 5.5, 1.0)
    arrays = build(lengths)[0]
    assert all((a == b).all() for a, b in zip(arrays, build(lengths, threads=4)[0], strict=True))
    assert (arrays[0] != build(lengths, seed=1)[0][0]).any()
    assert hashlib.md5(arrays[0].tobytes()).hexdigest() == "a373f34e307ffc53f1740043d87a4c41"


def test_position_in_training_does_not_depend_on_length():
    lengths = lognormal(40_000, 5.5, 1.0)
    (documents, _, shuffle), counts = build(lengths, epochs=1, length=2048)
    place = np.empty(counts.num_samples, np.int64)
    place[shuffle] = np.arange(counts.num_samples)  # when each sample is read
    starts = np.cumsum(lengths[documents], dtype=np.int64) - lengths[documents]
    read = place[np.minimum(starts // 2048, counts.num_samples - 1)]
    decile = np.argsort(np.argsort(lengths[documents])) * 10 // len(lengths)
    for number in range(10):
        mean = read[decile == number].mean() / counts.num_samples
        assert mean == pytest.approx(0.5, abs=0.02)


def file_order(path, numbers):
    if path.suffix == ".npy":
        np.save(path, np.asarray(numbers))
    else:
        pq.write_table(pa.table({"score": np.zeros(len(numbers)), "document": numbers}), path)
    return DocumentOrder(documents=str(path), samples="never", digest=digest_file(str(path)))


@pytest.mark.parametrize("name", ["order.npy", "order.parquet"])
@pytest.mark.parametrize("epochs", [1, 2])
def test_order_of_a_file(tmp_path, name, epochs):
    lengths = lognormal(300, 5.5, 1.0)
    numbers = np.concatenate([np.random.default_rng(e).permutation(300) + 5 for e in range(epochs)])
    order = file_order(tmp_path / name, numbers)
    (index, *_), _ = build(lengths, order, begin=5)
    assert index.tolist() == np.tile(numbers, 2 // epochs).tolist()


@pytest.mark.parametrize(("numbers", "said"), [
    ([0, 1, 2], r"int64 of shape \(3,\)\nhint: it needs 4 integers .*, or 8 for all 2"),
    ([0, 1, 2, 4], "document 3 is not in epoch 0\nhint: each number from 0 to 3"),
    ([0, 1, 2, 2], "document 3 is not in epoch 0"),
    ([0, 1, 2, 3, 0, 1, 1, 3], "document 2 is not in epoch 1"),
    ([0.0, 1.0, 2.0, 3.0], "float64 of shape"),
    ([[0, 1]] * 4, r"int64 of shape \(4, 2\)"),
    (np.array([{}], object), "cannot be read"),
])  # fmt: skip
def test_order_of_a_file_is_checked(tmp_path, numbers, said):
    with pytest.raises((InputError, FormatError), match=said):
        build([600, 500, 700, 800], file_order(tmp_path / "order.npy", numbers))
