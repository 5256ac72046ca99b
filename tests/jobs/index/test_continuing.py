"""`dsindex index --continue-from` and `--blend-schedule`, and `dsindex rest`: what is read, and in which order."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dsindex
from dsindex.cli.main import main
from dsindex.datasets import BlendedDataset
from dsindex.errors import DsindexError
from dsindex.tools.trace import open_samples, trace_document, trace_forward
from dsindex.tools.verify_source import TracedTexts
from tests.jobs.index.index_jobs import indexed
from tests.support.datasets import write_dataset

pytestmark = pytest.mark.usefixtures("folder")


def write_positions(name, lengths, *, base=0):
    """Write documents in which each token is its own position in the dataset."""
    ends = base + np.cumsum(lengths)
    write_dataset(
        Path(name), [[list(range(end - n, end))] for end, n in zip(ends, lengths, strict=True)], dtype=np.int32
    )


def opened(folder):
    (path,) = Path(folder).glob("*BlendedDataset-train-description.txt")
    return BlendedDataset.open_cache(path)


@st.composite
def runs(draw):
    """Two jobs: documents of three datasets, what they draw from, and where the second begins."""
    lengths = st.lists(st.integers(1, 70), min_size=8, max_size=40)
    return {
        "lengths": [draw(lengths) for _ in range(3)],
        "grown": draw(st.lists(st.integers(1, 70), max_size=9)),
        "first": draw(st.tuples(st.integers(1, 9), st.integers(1, 9))),
        "second": draw(st.tuples(*[st.sampled_from([1e-9, 1, 2, 5])] * 3)),
        "batches": draw(st.integers(0, 7)),
        "order": draw(st.sampled_from(["shuffled", "packed"])),
        "seed": draw(st.integers(0, 99)),
    }


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(run=runs())
def test_nothing_comes_again_before_its_epoch_ends_and_nothing_is_lost(run, tmp_path_factory):
    here = tmp_path_factory.mktemp("run")
    names = [str(here / name) for name in ("a", "b", "c")]
    for name, lengths in zip(names, run["lengths"], strict=True):
        write_positions(name, lengths)
    consumed = 8 * run["batches"]
    shared = {"seq_length": 16, "epochs": None, "split": "1", "seed": run["seed"], "document_order": run["order"],
              "shuffle_epochs": "separately"}  # fmt: skip
    weights = [str(weight) for weight in run["first"]]
    first = {**shared, "data_path": [weights[0], names[0], weights[1], names[1]], "num_samples": "60",
             "data_cache_path": str(here / "first")}  # fmt: skip
    indexed(**first)
    write_positions(names[0], [*run["lengths"][0], *run["grown"]])
    words = [word for weight, name in zip(run["second"], names, strict=True) for word in (repr(weight), name)]
    second = {**shared, "data_path": words, "num_samples": "150", "data_cache_path": str(here / "second"),
              "continue_from": str(here / "first"), "consumed_samples": consumed, "global_batch_size": 8}  # fmt: skip
    indexed(**second)
    before, after = opened(here / "first"), opened(here / "second")
    for number in range(consumed):
        assert (before.tokens(number) == after.tokens(number)).all()
    for dataset, member in enumerate(after.datasets):
        old = before.datasets[dataset] if dataset < 2 else None
        if old is not None:
            assert (member.document_index[: len(old.document_index)] == old.document_index).all()
            assert (member.sample_index[: len(old.sample_index)] == old.sample_index).all()
        drawn = np.cumsum(after.dataset_index[consumed:] == dataset)
        wanted = np.array(run["second"])[dataset] / sum(run["second"])
        assert np.abs(drawn - wanted * np.arange(1, len(drawn) + 1)).max() < 1
        check_epochs(after, dataset, consumed, sum(run["lengths"][dataset]))


def check_epochs(blend, dataset, consumed, num_old):
    """At every tenth of the run, all tokens of a dataset were read equally often, but for those of the open epoch.

    Tokens from `num_old` on are new after `consumed` samples. A sample may have the end of one epoch and the begin of
    the next, which are read early or late.
    """
    total = int(blend.datasets[dataset].dataset.sequence_lengths.sum(dtype=np.int64))
    numbers = np.flatnonzero(blend.dataset_index == dataset)
    taken = int((numbers < consumed).sum())
    joined = taken * 16 // num_old
    for part in range(11):
        own = numbers[: taken + (len(numbers) - taken) * part // 10]
        read = np.concatenate([np.zeros(0, np.int64), *(blend.tokens(number)[:-1] for number in own)]).astype(np.int64)
        times = np.bincount(read, minlength=total)
        slack = 16 * (len(read) // total + joined + 3)
        outside = [
            (~np.isin(times[:num_old] - least, (0, 1))).sum() + (~np.isin(times[num_old:] - least + gone, (0, 1))).sum()
            for least in range(len(read) // num_old + 1)
            for gone in (joined, joined + 1)
        ]
        assert min(outside) <= slack, (part, taken, joined)


FIRST = {
    "data_path": ["60", "web", "40", "books"], "split": "1", "epochs": None, "num_samples": "200",
    "data_cache_path": "first",
}  # fmt: skip
SECOND = {
    **FIRST, "num_samples": "300", "data_cache_path": "second",
    "continue_from": "first", "consumed_samples": 96, "global_batch_size": 24,
}  # fmt: skip
SCHEDULE = {**FIRST, "num_samples": "201", "blend_schedule": "0:90,10 50%:50,50", "max_epochs": 9}


@pytest.mark.parametrize(("changes", "message"), [
    ({"consumed_samples": 100}, "expected a multiple of --global-batch-size 24"),
    ({"seq_length": 60}, r"expected samples of 30 tokens .*dsindex rest first --consumed-samples 96"),
    ({"continue_from": "elsewhere"}, "elsewhere: "),
    ({"consumed_samples": 9600}, "9600"),
], ids=["batch", "length", "no-cache", "too-many"])  # fmt: skip
def test_a_run_that_cannot_go_on_is_refused(changes, message):
    indexed(**FIRST)
    with pytest.raises((DsindexError, ValueError), match=message):
        indexed(**{**SECOND, **changes})
    assert not list(Path().glob("second/*.npy"))


def test_a_dataset_that_changed_since_the_first_job_is_refused(folder):
    indexed(**FIRST)
    write_dataset(folder / "web", [[[1] * length] for length in [21, 49, 60, 30, 100, 5] * 40])
    with pytest.raises(DsindexError, match="web"):
        indexed(**SECOND)


@pytest.mark.parametrize("changes", [{"workers": 1}, {"workers": 2, "executor": "processes"}], ids=["one", "processes"])
def test_planned_caches_do_not_depend_on_workers(changes):
    indexed(**FIRST)
    for options in (SECOND, SCHEDULE):
        indexed(**{**options, "data_cache_path": "this"})
        indexed(**{**options, **changes, "data_cache_path": "that"})
        this, that = ({path.name: path.read_bytes() for path in Path(name).glob("*.npy")} for name in ("this", "that"))
        assert this == that
        assert this


def test_shares_of_a_schedule_count_the_samples_that_the_job_requests():
    """Rounding makes a blend a sample larger than what is requested."""
    indexed(**{**SCHEDULE, "blend_schedule": "0:1,0 50%:0,1"})
    assert opened("first").dataset_index.tolist() == [0] * 100 + [1] * 102


@pytest.mark.parametrize("length", [30, 45], ids=["continued", "views"])
def test_traces_lead_from_samples_to_documents_and_back(length, capsys):
    rng = np.random.default_rng(1)
    for base, name in enumerate(("web", "books")):
        write_positions(name, rng.integers(1, 90, 40), base=base * 10_000)
    indexed(**FIRST, document_order="packed", shuffle_epochs="separately")
    job = {**SECOND, "consumed_samples": 24, "seq_length": length, "num_samples": "100"}
    if length != 30:
        dsindex.rest("first", consumed_samples=24, output_prefix="rest")
        job |= {"data_path": ["60", "rest_web", "40", "rest_books"], "continue_from": None}
    indexed(**job)
    samples = open_samples("second", split="train", prefixes=None)
    texts = TracedTexts(None)
    numbers = range(len(samples))
    there = {
        (shown.sample, part.prefix, part.document, part.begin, part.end)
        for shown in trace_forward(samples, numbers, texts=texts, shown_tokens=0).samples
        for part in shown.parts
    }
    here, before = set(), 0
    for prefix in ("web", "books"):
        for document in range(40):
            report = trace_document(samples, document, prefix=prefix, batches=None, texts=texts)
            (found,) = report.documents
            here |= {(each.sample, found.prefix, document, each.begin, each.end) for each in found.occurrences}
            gaps = [note for note in report.notes if "were read before sample 24, and not again" in note]
            before += sum(int(end) - int(begin) for note in gaps for begin, end in re.findall(r"(\d+):(\d+)", note))
    assert here == there
    assert before == (0 if length == 30 else 24 * 30)
    if length != 30:
        assert main(["trace", "second", "--document", "rest_web:3"]) == 0
        assert "/web, document 3: " in capsys.readouterr().out
        assert main(["trace", "second", "--document", "other:3"]) == 1
        assert "24 samples are placeholders: the caches of the job before know what" in capsys.readouterr().err
