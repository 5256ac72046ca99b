import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsindex.datasets.packed import PackedMemMapDatasetContinuous, PackedMemMapDatasetMegatron, plan_document_blocks
from tests.support.golden import MODALITIES
from tests.support.pbin_files import VERSION_NAMES, write_pbin

CASES = json.loads((MODALITIES / "cases.json").read_text())
DOCUMENTS = [[1, 2, 3], [4, 5, 6, 7], [8, 9], [10, 11, 12, 13, 14, 15, 16, 17, 18]]


@pytest.mark.parametrize("name", CASES)
def test_continuous_gives_what_modalities_gives(name):
    case = CASES[name]
    dataset = PackedMemMapDatasetContinuous(MODALITIES / "nonempty.pbin", case["block_size"], case["reuse_last_target"])
    assert len(dataset) == case["len"]
    assert dataset[0].shape == (case["block_size"],)
    assert dataset[0][:8].tolist() == case["first"]
    assert dataset[-1][-8:].tolist() == case["last"]


@pytest.mark.parametrize("version", VERSION_NAMES)
@pytest.mark.parametrize(("reuse", "expected"), [
    (True, [[1, 2, 3], [3, 4, 5], [5, 6, 7]]), (False, [[1, 2, 3], [4, 5, 6]]),
])  # fmt: skip
def test_continuous_reads_every_era(tmp_path, version, reuse, expected):
    path = write_pbin(tmp_path / "x.pbin", [[1, 2, 3, 4], [5, 6], [7, 8]], version=version)
    dataset = PackedMemMapDatasetContinuous(path, 3, reuse_last_target=reuse)
    assert [block.tolist() for block in dataset] == expected
    assert [block.tolist() for block in dataset[1:]] == expected[1:]
    assert [block.tolist() for block in dataset[::-1]] == expected[::-1]
    assert dataset[-1].tolist() == expected[-1]


@pytest.mark.parametrize("kind", [PackedMemMapDatasetContinuous, PackedMemMapDatasetMegatron])
def test_both_kinds_refuse_what_cannot_be(tmp_path, kind):
    path = write_pbin(tmp_path / "x.pbin", DOCUMENTS)
    for block_size in (1, -3, 19):
        with pytest.raises(ValueError, match=f"block_size is {block_size}, not from 2 to its 18 tokens"):
            kind(path, block_size)
    assert len(kind(path, 18)) == 1
    dataset = kind(path, 5)
    for number in (len(dataset), -len(dataset) - 1):
        with pytest.raises(IndexError, match=f"there is no block {number}; it has {len(dataset)}"):
            dataset[number]
    assert dataset[len(dataset) :] == []


def rule_step_by_step(lengths, block_size):
    begins = [sum(lengths[:number]) for number in range(len(lengths))]
    blocks, begin = [], 0
    while begin + block_size <= sum(lengths):
        blocks.append(begin)
        end = begin + block_size
        if end in begins or end == sum(lengths):
            begin = end
        else:
            not_whole = max(start for start in begins if start < end)
            begin = not_whole if not_whole > begin else end
    return blocks


@given(st.lists(st.integers(0, 12)), st.integers(2, 9))
def test_document_blocks_are_those_of_the_rule_step_by_step(lengths, block_size):
    planned = plan_document_blocks(np.array(lengths, np.int64), block_size)
    assert planned.tolist() == rule_step_by_step(lengths, block_size)
