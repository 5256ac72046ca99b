"""Options, indices and files that samples cannot be read by are refused."""

import pickle

import numpy as np
import pytest

from dsindex.datasets import GPTDataset, IndexedDataset, SampleOptions
from dsindex.errors import FormatError
from tests.dsindex.datasets.gpt_samples import DOCUMENT_INDEX, SEQUENCES, small
from tests.support.datasets import write_dataset


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reset_position_ids": True}, "need an eod_token, got None"),
        ({"inter_document_masking": True, "create_attention_mask": True}, "in place of an attention mask"),
        ({"eod_mask_loss": True}, "need an eod_token, got None"),
        ({"eod_token": 1, "reset_attention_mask": True}, "without create_attention_mask would change nothing"),
        ({"eod_token": 1, "pad_token": 1}, "pad_token 1 is the eod_token"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SampleOptions(**options)


def test_floats_make_no_samples(tmp_path):
    with pytest.raises(ValueError, match="expected integer tokens, got float32"):
        small(tmp_path, dtype=np.float32)


def test_sequence_length_below_one_is_refused(tmp_path):
    with pytest.raises(ValueError, match="sequence length of at least 1, got 0"):
        small(tmp_path, sequence_length=0)


LARGEST = (1 << 63) - 1

DAMAGED = [
    ("sequence-too-large", {"document_index": np.array([5, 0, 1, 3, 4], np.int32)}),
    ("sequence-below-0", {"document_index": np.array([-1, 0, 1, 3, 4], np.int32)}),
    ("position-too-large", {"sample_index": np.array([[0, 0], [5, 0], [3, 1], [4, 2]])}),
    ("position-below-0", {"sample_index": np.array([[-1, 0], [1, 0], [3, 1], [4, 2]])}),
    ("positions-fall", {"sample_index": np.array([[2, 0], [1, 0], [3, 1], [4, 2]])}),
    ("offset-too-large", {"sample_index": np.array([[0, 5], [1, 0], [3, 1], [4, 2]])}),
    ("offset-below-0", {"sample_index": np.array([[0, -1], [0, 1], [3, 1], [4, 2]])}),
    ("end-too-large", {"sample_index": np.array([[0, 0], [1, 3], [3, 1], [4, 2]])}),
    ("end-that-wraps", {"sample_index": np.array([[0, 0], [1, LARGEST], [3, 1], [4, 2]])}),
    ("end-before-begin", {"sample_index": np.array([[0, 3], [0, 1], [3, 1], [4, 2]])}),
    ("sample-too-long", {"sample_index": np.array([[0, 0], [1, 1], [3, 1], [4, 2]])}),
    ("row-too-large", {"shuffle_index": np.array([2, 3, 1], np.uint32)}),
    ("row-below-0", {"shuffle_index": np.array([2, -1, 1], np.int64)}),
]


@pytest.mark.parametrize("changes", [case[1] for case in DAMAGED], ids=[case[0] for case in DAMAGED])
def test_indices_that_point_elsewhere_are_a_format_error(tmp_path, changes):
    dataset = small(tmp_path, **changes)
    reads = [lambda: dataset.tokens(1), lambda: dataset[1], lambda: dataset.batch([1]), lambda: dataset.parts(1)]
    for read in reads:
        with pytest.raises(FormatError, match="expected at most 5 tokens of the dataset for sample 1"):
            read()


@pytest.mark.parametrize("pointer", [-2, 22, 1 << 62, (1 << 63) - 2])
def test_damaged_pointer_is_a_format_error(tmp_path, pointer):
    write_dataset(tmp_path / "d", [[sequence] for sequence in SEQUENCES])
    content = bytearray((tmp_path / "d.idx").read_bytes())
    content[34 + 20 + 16 : 34 + 20 + 24] = pointer.to_bytes(8, "little", signed=True)
    (tmp_path / "d.idx").write_bytes(content)
    dataset = GPTDataset(
        IndexedDataset(tmp_path / "d", check=False),
        DOCUMENT_INDEX,
        np.array([[0, 0], [1, 0]]),
        np.array([0], np.uint32),
        sequence_length=4,
    )
    with pytest.raises(FormatError, match="for sample 0"):
        dataset.tokens(0)


WRONG_ARRAYS = [
    ("floats", "document_index", np.zeros(5), "expected a document index of any integers, got float64"),
    ("flat", "sample_index", np.zeros(8, np.int32), "expected a sample index of any x 2 integers"),
    ("columns", "sample_index", np.zeros((4, 3), np.int32), r"any x 2 integers, got int32 of shape \(4, 3\)"),
    ("short", "shuffle_index", np.zeros(2, np.uint32), r"shuffle index of 3 integers, got uint32 of shape \(2,\)"),
]


@pytest.mark.parametrize("as_file", [True, False], ids=["file", "array"])
@pytest.mark.parametrize(
    ("name", "array", "message"), [case[1:] for case in WRONG_ARRAYS], ids=[case[0] for case in WRONG_ARRAYS]
)
def test_index_of_another_form_is_refused(tmp_path, name, array, message, as_file):
    np.save(tmp_path / "wrong.npy", array)
    with pytest.raises(FormatError, match=message):
        small(tmp_path, **{name: tmp_path / "wrong.npy" if as_file else array})


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"not an array", pickle.dumps([1])], ids=repr)
def test_file_that_is_no_array_is_refused(tmp_path, content):
    (tmp_path / "wrong.npy").write_bytes(content)
    with pytest.raises(FormatError, match=r"wrong\.npy: cannot be read as a document index"):
        small(tmp_path, document_index=tmp_path / "wrong.npy")
    with pytest.raises(FormatError, match=r"gone\.npy: cannot be read as a document index"):
        small(tmp_path, document_index=tmp_path / "gone.npy")


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<i4', 'fortran_order': False, 'shape': (True,), }",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (-1,), }",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (9223372036854775807,), }",
        "{'descr': '<i99', 'fortran_order': False, 'shape': (1,), }",
        "{'descr': 'V0', 'fortran_order': False, 'shape': (1,), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
        "{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (1,), }",
        "{'descr': '<i4', 'fortran_order': False, 'shape': 1, }",
        "{'descr': '<i4', 'shape': (1,), }",
        "(" * 5000 + ")" * 5000,
    ],
    ids=lambda header: header[:70],
)
@pytest.mark.filterwarnings("error")
def test_damaged_header_is_refused(tmp_path, header):
    """numpy raises other errors for some of them, and a shape of 2**63 - 1 may end the process."""
    head = b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header.encode()
    (tmp_path / "wrong.npy").write_bytes(head + bytes(4))
    with pytest.raises(FormatError, match=r"wrong\.npy: (cannot be read as|expected) a document index"):
        small(tmp_path, document_index=tmp_path / "wrong.npy")


def test_array_of_another_size_is_refused(tmp_path):
    np.save(tmp_path / "whole.npy", np.zeros(1000, np.int32))
    whole = (tmp_path / "whole.npy").read_bytes()
    for content in (whole[:-4], whole + b"x", whole + bytes(100)):
        (tmp_path / "other.npy").write_bytes(content)
        with pytest.raises(FormatError, match=r"other\.npy: expected a document index of 4128 bytes, .* got \d+"):
            small(tmp_path, document_index=tmp_path / "other.npy")
