from hypothesis import given, settings
from hypothesis import strategies as st

from dsindex.datasets import indexed as document_ranges
from dsindex.datasets.indexed import IndexedDataset, plan_ranges, read_range
from tests.support.datasets import write_dataset

SHAPES = st.lists(st.lists(st.integers(0, 6), max_size=3), max_size=12)
"""Tokens of each sequence of each document."""


@settings(max_examples=60)
@given(shapes=SHAPES, num_ranges=st.integers(1, 9), block_bytes=st.integers(1, 20))
def test_ranges_hold_every_document_once_in_order(tmp_path, monkeypatch, shapes, num_ranges, block_bytes):
    monkeypatch.setattr(document_ranges, "BLOCK_BYTES", block_bytes)
    written = [[list(range(length)) for length in document] for document in shapes]
    prefix = write_dataset(tmp_path / "d", written)
    with IndexedDataset(prefix) as dataset:
        ranges = plan_ranges(dataset, num_ranges, prefix=prefix)
        total = dataset.num_tokens * dataset.dtype.itemsize
    assert len(ranges) <= num_ranges
    assert all(one.begin < one.end for one in ranges)
    assert sum(one.size_bytes for one in ranges) == total
    rows = [row for one in ranges for table in read_range(one) for row in table.to_pylist()]
    assert [row["document"] for row in rows] == list(range(len(shapes)))
    assert [row["tokens"] for row in rows] == [[token for part in document for token in part] for document in written]


def test_ranges_are_of_about_equal_bytes(tmp_path):
    prefix = write_dataset(tmp_path / "d", [[[7] * length] for length in (100, 1, 1, 98, 50, 50, 100)])
    with IndexedDataset(prefix) as dataset:
        ranges = plan_ranges(dataset, 4, prefix=prefix)
    assert [(one.begin, one.end, one.size_bytes) for one in ranges] == [
        (0, 1, 200),
        (1, 4, 200),
        (4, 6, 200),
        (6, 7, 200),
    ]


def test_tables_have_the_type_of_the_tokens(tmp_path):
    prefix = write_dataset(tmp_path / "d", [[[1, 2]], []], dtype="<i4")
    with IndexedDataset(prefix) as dataset:
        [one] = plan_ranges(dataset, 1, prefix=prefix)
    [table] = read_range(one)
    assert str(table.schema.field("tokens").type) == "large_list<item: int32>"
    assert table.to_pylist() == [{"document": 0, "tokens": [1, 2]}, {"document": 1, "tokens": []}]
