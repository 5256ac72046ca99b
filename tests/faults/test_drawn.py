"""Some dozens of drawn jobs, of which `make faults` draws thousands, and damage to each file that a kill leaves."""

import itertools
from collections import Counter

import pytest

from tests.faults.damage import DAMAGES
from tests.faults.drawn import Event, Job, describe, run_seeds, try_job

PER_TEST = 6


@pytest.mark.parametrize("first", range(0, 36, PER_TEST))
def test_drawn_jobs_end_as_if_nothing_had_disturbed_them(first, zygote, memory):
    failures = list(run_seeds(range(first, first + PER_TEST), zygote, memory))
    assert not failures, "\n\n".join(failures)


LEFT = {
    "work-folder.json": 0.3, "owner.json": 0.3, "-lock": 0.3, "journal": 0.6, "shard-size": 0.4, "inputs/stdin": 0.3,
    "/shards/": 0.5, r"\.bin\..*partial": 0.7, r"\.idx\..*partial": 0.6, "commit": 0.6, r"x_text_document\.bin$": 0.9,
}  # fmt: skip
"""Files that a killed build leaves, and after what share of its calls each is there; see Event.is_publishing."""
PUBLISHING = {r"\.idx\..*partial", "commit", r"x_text_document\.bin$"}


@pytest.mark.quick(20)
@pytest.mark.parametrize(("file", "how"), [*itertools.product(LEFT, dict.fromkeys(DAMAGES))])
def test_any_file_that_is_left_may_be_damaged(file, how, zygote, memory):
    kill = Event(kind="strike", what="kill", share=LEFT[file], is_publishing=file in PUBLISHING)
    events = (kill, Event(kind="damage", what=how, file=file))
    job, counts = Job(seed=5, command="build", inputs=("stdin 0", "long 1"), options=(), events=events), Counter()
    failure = try_job(job, zygote, memory, counts)
    assert failure is None, describe(job, failure)
    assert counts["Damage between runs", how] == 1
