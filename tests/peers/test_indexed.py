"""megatron-core's IndexedDataset opens what we write, and writes what we write."""

import numpy as np
import pytest

from dsindex.datasets import IndexedDataset
from dsindex.formats.dtypes import TOKEN_DTYPES
from tests.support.datasets import write_dataset

DOCUMENTS = [[[1, 2, 3]], [], [[4, 5, 6, 7], [8, 9], []], [[10]]]
MODES = [0, 1, 0, 2, 1]


def assert_same(prefix, *, multimodal):
    from megatron.core.datasets.indexed_dataset import IndexedDataset as MegatronDataset

    theirs, ours = MegatronDataset(prefix, multimodal=multimodal), IndexedDataset(prefix)
    assert len(ours) == len(theirs)
    assert np.array_equal(ours.document_indices, theirs.document_indices)
    assert np.array_equal(ours.sequence_lengths, theirs.sequence_lengths)
    for index in range(len(ours)):
        expected = theirs[index]
        if multimodal:
            expected, mode = expected
            assert ours.sequence_modes[index] == mode
        assert ours[index].dtype == expected.dtype
        assert np.array_equal(ours[index], expected)
        half = len(expected) // 2
        part = theirs.get(index, offset=half)
        assert np.array_equal(ours.get(index, half), part[0] if multimodal else part)
    slices = theirs[1 : len(theirs)]
    for our, their in zip(ours[1:], slices[0] if multimodal else slices, strict=True):
        assert np.array_equal(our, their)


@pytest.mark.parametrize("dtype", TOKEN_DTYPES.values(), ids=str)
@pytest.mark.parametrize("modes", [None, MODES], ids=["plain", "modes"])
def test_megatron_writes_and_reads_the_same(tmp_path, dtype, modes):
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(str(tmp_path / "m.bin"), dtype=dtype.type, multimodal=modes is not None)
    begin = 0
    for document in DOCUMENTS:
        tokens = [token for sequence in document for token in sequence]
        end = begin + len(document)
        document_modes = None if modes is None else modes[begin:end]
        builder.add_document(np.array(tokens), [len(sequence) for sequence in document], document_modes)
        begin = end
    builder.finalize(str(tmp_path / "m.idx"))
    prefix = write_dataset(tmp_path / "d", DOCUMENTS, dtype=dtype, modes=modes)
    for suffix in ("bin", "idx"):
        assert (tmp_path / f"d.{suffix}").read_bytes() == (tmp_path / f"m.{suffix}").read_bytes()
    assert_same(prefix, multimodal=modes is not None)
