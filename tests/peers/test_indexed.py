"""megatron-core's IndexedDatasetBuilder writes the bytes that we write."""

import numpy as np
import pytest

from dsindex.formats.dtypes import TOKEN_DTYPES
from tests.support.datasets import write_dataset

DOCUMENTS = [[[1, 2, 3]], [], [[4, 5, 6, 7], [8, 9], []], [[10]]]
MODES = [0, 1, 0, 2, 1]


@pytest.mark.parametrize("dtype", TOKEN_DTYPES.values(), ids=str)
@pytest.mark.parametrize("modes", [None, MODES], ids=["plain", "modes"])
def test_megatron_writes_the_same(tmp_path, dtype, modes):
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
    write_dataset(tmp_path / "d", DOCUMENTS, dtype=dtype, modes=modes)
    for suffix in ("bin", "idx"):
        assert (tmp_path / f"d.{suffix}").read_bytes() == (tmp_path / f"m.{suffix}").read_bytes()
