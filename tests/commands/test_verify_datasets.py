"""Verification finds damage in caches, and none in whole ones; and where two datasets differ."""

import shutil

import numpy as np
import pytest

from dsindex.commands.verify_caches import is_cache_of, list_caches, verify_cache
from tests.support.golden import golden_cases

CASES = golden_cases()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_caches_of_megatron_are_whole(case):
    caches = list_caches(str(case.cache))
    tasks = [(each, prefix) for prefix in case.prefixes() for each in caches if is_cache_of(each, prefix)]
    assert tasks
    assert [sentence for task in tasks for sentence in verify_cache(*task)] == []


def swap_ends(array):
    array[0], array[-1] = array[-1].copy(), array[0].copy()


def repeat_first(array):
    array[-1] = array[0]


def point_outside(array):
    array[1] = 10**6


def move_token(array):
    array[5, 1] += 1


@pytest.mark.parametrize(("name", "damage", "message"), [
    ("document_index", repeat_first, "not every sequence is there once per epoch"),
    ("document_index", point_outside, "sequence 1000000 is not from 0 to 99"),
    ("document_index", swap_ends, "of the sample index"),
    ("sample_index", move_token, "row 5 of the sample index is at token 321 instead of token 320"),
    ("sample_index", point_outside, "of the sample index"),
    ("shuffle_index", repeat_first, "not every sample is there once per epoch"),
    ("shuffle_index", point_outside, "sample 1000000 is not from 0 to 317"),
])  # fmt: skip
def test_damaged_cache_is_found(name, damage, message, tmp_path):
    case = CASES["own-one_epoch"]
    shutil.copytree(case.cache, tmp_path / "cache")
    [path] = (tmp_path / "cache").glob(f"*{name}.npy")
    array = np.load(path)
    damage(array)
    np.save(path, array)
    [prefix] = case.prefixes()
    [cache] = [each for each in list_caches(str(tmp_path / "cache")) if is_cache_of(each, prefix)]
    findings = verify_cache(cache, prefix)
    assert message in findings[0]
    assert "move its files away and build the cache again" in findings[0]
