"""The parts of a sample are found without its tokens: the same ones, and refused where the tokens are refused."""

from pathlib import Path

import numpy as np
import pytest

from dsindex.datasets import GPTDataset, IndexedDataset
from dsindex.datasets.gpt import expect_scattered_reads
from dsindex.errors import FormatError
from tests.support.datasets import write_dataset


def outcome(samples, number, *, by_parts):
    """The tokens of a sample, or why there are none."""
    try:
        if not by_parts:
            tokens = samples.tokens(number).tolist()
            return [token for token in tokens if token >= 0]
        parts = samples.parts(number)
        read = [samples.dataset.get(part.sequence, part.offset, part.num_tokens) for part in parts]
        return [token for own in read for token in own.tolist()]
    except FormatError as error:
        return str(error)


@pytest.mark.parametrize("extra", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_parts_are_refused_where_tokens_are(tmp_path, seed, extra):
    """Any numbers may stand in a damaged index."""
    rng = np.random.default_rng(seed)
    documents = [[rng.integers(0, 99, length).tolist()] for length in rng.choice([0, 1, 2, 5], 12)]
    dataset = IndexedDataset(write_dataset(tmp_path / "d", documents))
    refused = found = 0
    for _ in range(60):
        order = rng.integers(-1, 14, 9).astype(np.int32)
        index = np.sort(rng.integers(-1, 10, (4, 1)), axis=0)
        index = np.hstack([index, rng.integers(-1, 4, (4, 1))]).astype(np.int32)
        shuffle = rng.integers(0, 4, 3).astype(np.uint32)
        samples = GPTDataset(dataset, order, index, shuffle, sequence_length=6, add_extra_token=extra)
        for number in range(3):
            expected = outcome(samples, number, by_parts=False)
            assert outcome(samples, number, by_parts=True) == expected
            refused, found = refused + isinstance(expected, str), found + isinstance(expected, list)
    assert refused
    assert found


def test_pages_beside_scattered_reads_are_left_on_the_disk(tmp_path):
    prefix = write_dataset(tmp_path / "d", [[[1, 2, 3]]])
    np.save(tmp_path / "x.npy", np.arange(9))
    dataset, array = IndexedDataset(prefix), np.load(tmp_path / "x.npy", mmap_mode="r")
    expect_scattered_reads(dataset.token_columns()[0], array[2:4], np.arange(3))
    shown = Path("/proc/self/smaps").read_text()
    for path in (f"{prefix}.bin", tmp_path / "x.npy"):
        flags = shown[shown.index(str(path)) :].split("VmFlags:")[1].splitlines()[0].split()
        assert "rr" in flags
