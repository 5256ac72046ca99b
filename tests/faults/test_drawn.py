"""Some dozens of drawn jobs; `make faults` draws thousands."""

import pytest

from tests.faults.drawn import run_seeds

PER_TEST = 6
FAILED_ONCE = (2187, 2384, 2390)
"""Damaged markers beside stored standard input, and a lock that was cut."""


@pytest.mark.parametrize("first", range(0, 24, PER_TEST))
def test_drawn_jobs_end_as_if_nothing_had_disturbed_them(first, zygote, tmp_path):
    failures = list(run_seeds(range(first, first + PER_TEST), zygote, tmp_path))
    assert not failures, "\n\n".join(failures)


def test_drawn_jobs_that_failed_once(zygote, tmp_path):
    failures = list(run_seeds(FAILED_ONCE, zygote, tmp_path))
    assert not failures, "\n\n".join(failures)
