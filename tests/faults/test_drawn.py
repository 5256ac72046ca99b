"""Some dozens of drawn jobs; `make faults` draws thousands."""

import pytest

from tests.faults.drawn import run_seeds

PER_TEST = 6


@pytest.mark.parametrize("first", range(0, 24, PER_TEST))
def test_drawn_jobs_end_as_if_nothing_had_disturbed_them(first, zygote, tmp_path):
    failures = list(run_seeds(range(first, first + PER_TEST), zygote, tmp_path))
    assert not failures, "\n\n".join(failures)
