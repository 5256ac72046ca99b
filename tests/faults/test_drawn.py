"""Some dozens of drawn jobs, of which `make faults` draws thousands, and damage to each file that a kill leaves."""

from collections import Counter

import pytest

from tests.faults.damage import DAMAGES
from tests.faults.drawn import Event, Job, describe, run_seeds, try_job
from tests.faults.trial import file_kind

PER_TEST = 6


@pytest.mark.parametrize("first", range(0, 36, PER_TEST))
def test_drawn_jobs_end_as_if_nothing_had_disturbed_them(first, zygote, memory):
    failures = list(run_seeds(range(first, first + PER_TEST), zygote, memory))
    assert not failures, "\n\n".join(failures)


FAILED_ONCE = (5006, 5540, 7006, 44051, 70692)
"""A moved output that was committed, with a work folder elsewhere; damage to what a commit has renamed; a temporary
file in a kept work folder; a kept work folder that moved with an output of fewer inputs; a lock with zeros in it."""


def test_drawn_jobs_that_failed_once(zygote, memory):
    failures = list(run_seeds(FAILED_ONCE, zygote, memory))
    assert not failures, "\n\n".join(failures)


ALWAYS = {  # what few seeds draw
    "a run of another plan in between": ("long 0", Event(kind="other", what="--append-eod", share=0.6, replaces=True)),
    "a partial file that grows": ("long 0", Event(kind="strike", what="lengthen partial")),
    "a partial file that shrinks": ("long 0", Event(kind="strike", what="truncate partial")),
    "a shard that is damaged in the run": ("long 0", Event(kind="strike", what="flips", share=0.1)),
    "a file twice": ("twice 0", Event(kind="strike", what="kill", share=0.5)),
    "Ctrl-C at once": ("long 0", Event(kind="strike", what="SIGINT", share=0.03)),
    "another driver": ("plain 0", Event(kind="strike", what="meet", share=0.5)),
}


@pytest.mark.parametrize("name", ALWAYS)
def test_jobs_that_are_seldom_drawn(name, zygote, memory):
    kind, event = ALWAYS[name]
    events = (event, Event(kind="strike", what="kill", share=0.25))
    job = Job(seed=2, command="build", inputs=(kind,), options=(), events=events, range_bytes=512, is_keeping=True)
    failure = try_job(job, zygote, memory, counts := Counter())
    assert failure is None, describe(job, failure)
    assert {group for group, _ in counts} & {"Interruptions", "Runs of another job"}


LEFT = [  # a file, the share of calls after which it is there, whether of those that publish, and damage of quick runs
    ("work-folder.json", 0.3, False, {"flip", "remove"}),
    ("owner.json", 0.3, False, {"truncate"}),
    ("-lock", 0.3, False, {"zeros"}),
    ("journal", 0.6, False, {"digits", "flips", "truncate"}),
    ("shard-size.txt", 0.4, False, {"digits"}),
    ("stdin", 0.3, False, {"flip"}),
    ("/shards/", 0.5, False, {"flips", "remove"}),
    (r"\.bin\..*partial", 0.7, False, {"flips", "lengthen", "remove"}),
    (r"\.idx\..*partial", 0.42, True, {"flip"}),
    ("commit", 0.69, True, {"empty", "flip"}),
    (r"x_text_document\.bin$", 0.85, True, {"flip", "lengthen"}),
    (r"x_text_document\.idx$", 0.97, True, {"flip"}),
    (r"x_text_document\.manifest\.json$", 0.97, True, {"flip", "empty"}),
]
CASES = [
    pytest.param(file, share, is_publishing, how, marks=[] if how in always else [pytest.mark.exhaustive])
    for file, share, is_publishing, always in LEFT
    for how in dict.fromkeys(DAMAGES)
]


@pytest.mark.parametrize(("file", "share", "is_publishing", "how"), CASES)
def test_any_file_that_is_left_may_be_damaged(file, share, is_publishing, how, zygote, memory):
    kill = Event(kind="strike", what="kill", share=share, is_publishing=is_publishing)
    events = (kill, Event(kind="damage", what=how, file=file))
    job, counts = Job(seed=5, command="build", inputs=("stdin 0", "long 1"), options=(), events=events), Counter()
    failure = try_job(job, zygote, memory, counts)
    assert failure is None, describe(job, failure)
    assert counts["Files damaged between runs", file_kind(file)] == 1
