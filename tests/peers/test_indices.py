"""Index caches against megatron-core itself: the same files for any job, and a cache hit for a job started on ours.

`pytest -o addopts= tests/peers/test_indices.py` in an environment with the extra `peers`.
"""

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from dsindex.errors import LimitError
from dsindex.formats.mmididx import IndexBuilder
from dsindex.store.local import atomic_writer
from tests.commands.index.index_jobs import index
from tests.peers.test_gpt_samples import Tokenizer, build_datasets, megatron_config, unchanged
from tests.support.datasets import write_dataset

CASES = int(os.environ.get("DSINDEX_PEER_CASES", "600"))
SPLITS = ("train", "valid", "test")
IDENTIFIERS = {"class": "tests.Tokenizer", "tokenizer_path": ["größer"], "option": 1.5, "nested": {"b": 1, "a": None}}
ENDLESS = "(Megatron would loop forever)"
CAPPED = "so the job would run out of data"


@pytest.fixture(scope="module")
def _distributed(tmp_path_factory):
    """A BlendedDataset builds its indices only where torch.distributed was started."""
    import torch

    store = tmp_path_factory.mktemp("gloo") / "store"
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def write_lengths(prefix, lengths):
    """Write an index whose `.bin` is one hole: no token is read to build indices."""
    builder = IndexBuilder(np.dtype("<u2"), folder=str(prefix.parent))
    builder.add_documents(np.array(lengths, np.int64), np.ones(len(lengths), np.int64))
    with atomic_writer(f"{prefix}.idx") as file:
        builder.write(file)
    builder.close()
    with open(f"{prefix}.bin", "wb") as file:
        file.truncate(2 * sum(lengths))


def build_with_megatron(case, cache):
    from megatron.core.datasets.utils import get_blend_from_list

    blends = [get_blend_from_list(words) for words in case["paths"]]
    options = {
        "blend": blends[0],
        "mid_level_dataset_surplus": case["surplus"],
        "add_extra_token_to_sequence": case["extra_token"],
        "drop_last_partial_validation_sequence": not case["keep_partial"],
        "multiple_validation_sets": case.get("several", False),
    }
    if case["per_split"]:
        options |= {"blend": None, "blend_per_split": blends, "split": None}
    return build_datasets(megatron_config(case, Tokenizer(IDENTIFIERS), cache, options), case["sizes"])


def build_with_dsindex(case, cache, folder, **changes):
    (folder / "identifiers.json").write_text(json.dumps(IDENTIFIERS))
    names = [f"{split}_data_path" for split in SPLITS] if case["per_split"] else ["data_path"]
    return index(
        **dict(zip(names, case["paths"], strict=case["per_split"])),
        seq_length=case["sequence_length"],
        num_samples=["none" if size is None else size for size in case["sizes"]],
        split=None if case["per_split"] else case["split"],
        seed=case["seed"],
        data_cache_path=str(cache),
        tokenizer_identifiers=str(folder / "identifiers.json"),
        no_extra_token=not case["extra_token"],
        keep_partial_validation=case["keep_partial"],
        mid_level_dataset_surplus=case["surplus"],
        **changes,
    )


LENGTH = st.one_of(st.integers(0, 40), st.sampled_from([0, 0, 1, 7, 300, 5000]))
LENGTHS = st.lists(LENGTH, min_size=1, max_size=60).filter(any)  # Megatron cannot map an empty `.bin`
SPLIT_TEXTS = st.one_of(
    st.sampled_from(["969, 30, 1", "1", "80,20", "1/1/1", "0,1,0", "0.5, .25, .25", "99.9,0.05,0.05", "0,0,3"]),
    st.tuples(*[st.integers(0, 100)] * 3).filter(any).map(lambda shares: ",".join(map(str, shares))),
)
WEIGHTS = st.one_of(st.floats(0.01, 100), st.integers(1, 9), st.sampled_from(["0.1", "1e-3", "7"]))


@st.composite
def jobs(draw):
    datasets = draw(st.lists(LENGTHS, min_size=1, max_size=4))
    weighted = draw(st.booleans())
    per_split = draw(st.integers(0, 3)) == 0

    def draw_path():
        chosen = draw(st.lists(st.sampled_from(range(len(datasets))), min_size=1, max_size=4, unique=True))
        return [word for n in chosen for word in ([str(draw(WEIGHTS))] if weighted else []) + [f"d{n}"]]

    sizes = st.integers(0, 400) if weighted else st.one_of(st.none(), st.integers(0, 400))
    return {
        "datasets": datasets,
        "per_split": per_split,
        "paths": [draw_path() for _ in range(3 if per_split else 1)],
        "sizes": [draw(sizes) for _ in SPLITS],
        "split": draw(SPLIT_TEXTS),
        "seed": draw(st.integers(0, 2**32 - 1)),
        "sequence_length": draw(st.one_of(st.integers(2, 64), st.integers(2, 4096))),
        "extra_token": draw(st.integers(0, 3)) > 0,
        "keep_partial": draw(st.booleans()),
        "surplus": draw(st.sampled_from([0.005, 0.005, 0.0, 0.3])),
    }


def few_epochs(case):
    """Keep cases small: a few tokens and a long sequence would take thousands of epochs, one by one in Python."""
    smallest = min(max(1, sum(lengths)) for lengths in case["datasets"])
    return max(size or 0 for size in case["sizes"]) * case["sequence_length"] <= 300 * smallest


@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("_distributed")
@settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=jobs().filter(few_epochs))
def test_any_job_gets_the_files_that_megatron_writes(case, tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    before = Path.cwd()
    os.chdir(folder)  # so that paths are the same words for both
    try:
        for number, lengths in enumerate(case["datasets"]):
            write_lengths(folder / f"d{number}", lengths)
        written, expected = written_by_both(case, folder)
        assert sorted(written) == sorted(expected)
        assert [name for name in expected if written[name] != expected[name]] == []
    finally:
        os.chdir(before)
        shutil.rmtree(folder)


def cap_sizes(case, folder):
    """Ask of each split what there is: Megatron caps without a word, and the hash knows the capped size only."""
    capped = []
    for split, size in enumerate(case["sizes"]):
        alone = {**case, "sizes": [size if n == split else None for n in range(3)]}
        try:
            build_with_dsindex(alone, folder / "probe", folder)
        except LimitError as refusal:
            match = re.search(r"the datasets have (\d+)", str(refusal))
            capped.append(int(match[1]) if match else size)
        else:
            capped.append(size)
    return capped


def written_by_both(case, folder, *, as_asked=None):
    """Return the files of both programs, ours first; none if both refuse the job."""
    theirs, ours = folder / "theirs", folder / "ours"
    try:
        build_with_dsindex(case, ours, folder)
    except LimitError as refusal:
        if ENDLESS in str(refusal):
            event("refused: endless")
            return {}, {}
        if CAPPED in str(refusal):
            event("asked for less: the blend is smaller")
            return written_by_both({**case, "sizes": cap_sizes(case, folder)}, folder, as_asked=case)
        event("refused: megatron fails")
        with pytest.raises((AssertionError, IndexError, ValueError)):
            build_with_megatron(as_asked or case, theirs)
        return {}, {}
    build_with_megatron(as_asked or case, theirs)
    event("compared")
    expected = {path.name: path.read_bytes() for path in theirs.iterdir()}
    written = {path.name: path.read_bytes() for path in ours.iterdir() if not path.name.endswith("-dsindex.json")}
    return written, expected


@given(total=st.integers(2**24 - 3, 2**24 + 2**20), length=st.integers(2, 50), extra=st.booleans())
@settings(max_examples=60, deadline=None)
def test_kept_partial_samples_are_counted_in_float32(total, length, extra):
    from megatron.core.datasets.helpers import build_sample_idx

    from dsindex.megatron.arrays import build_sample_index
    from dsindex.megatron.epochs import SampleRule, count_samples

    lengths, documents = np.array([total - 5, 5], np.int32), np.arange(2, dtype=np.int32)
    rule = SampleRule(sequence_length=length, extra_token=extra, keep_partial=True)
    expected = build_sample_idx(lengths, documents, length, 1, total, False, extra)
    assert np.array_equal(build_sample_index(lengths, documents, count_samples(total, rule=rule), rule=rule), expected)


def check_rows(dataset, lengths):
    """Check a sample index by Megatron's own loop; return the tokens of each document in the order of the cache."""
    from megatron.core.datasets import helpers

    documents, length = np.asarray(dataset.document_index), dataset.config.sequence_length
    document_lengths = lengths[documents].astype(np.int64)
    rows = helpers.build_sample_idx(lengths, documents, length, 1, int(document_lengths.sum()), True, True)
    assert np.array_equal(rows, dataset.sample_index)
    return document_lengths


def check_read(dataset, lengths, *, size, epochs, short):
    """Check one dataset without a blend: every label of each epoch, and its sample index by Megatron's own loop.

    Args:
        dataset: Megatron's.
        lengths: Tokens of all sequences; each token is its own position.
        size: Samples that are read.
        epochs: Least and largest number of times that a token is read.
        short: Largest number of cut sequences that fit a sample.
    """
    length, document_lengths = dataset.config.sequence_length, check_rows(dataset, lengths)
    ends = np.cumsum(document_lengths)
    assert (((ends - 1) // length != (ends - document_lengths) // length) & (document_lengths <= length)).sum() <= short
    homes = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    part = np.concatenate([np.arange(homes[n], homes[n + 1]) for n in np.unique(dataset.document_index)])
    read = np.concatenate([dataset[number]["labels"].numpy() for number in range(min(size, len(dataset)))])
    times = np.bincount(read, minlength=homes[-1])
    assert times.sum() == times[part].sum()
    min_times, max_times = epochs
    assert times.max() == max_times
    assert (times[part] < min_times).sum() <= max_times * (length + 1)


BLEND = ["3", "d0", "1", "d1"]
PACKED = {  # changes of the job; tokens of train's samples, in epochs of d0; least and largest times that they are read
    "one-epoch": ({}, 1, (1, 1)),
    "three-epochs": ({}, 3, (3, 3)),
    "two-and-a-half": ({}, 2.5, (2, 3)),
    "split": ({"split": "70,20,10"}, None, (1, 1)),
    "blend": ({"paths": [BLEND], "split": "90,8,2", "sizes": [200, 20, 0]}, None, (1, 1)),
    "validation-sets": (
        {"paths": [BLEND, ["d1", "d2"], ["d2"]], "per_split": True, "several": True, "sizes": [200, None, None]},
        None,
        (1, 1),
    ),
}


@pytest.mark.usefixtures("_distributed")
@pytest.mark.parametrize("sequences", [1, 3], ids=["documents", "sequences"])
@pytest.mark.parametrize("kind", PACKED)
def test_packed_caches_are_read_as_they_are(kind, sequences, tmp_path, monkeypatch):
    """Each token is its own position in its dataset, so every label can be told."""
    changes, size, epochs = PACKED[kind]
    monkeypatch.chdir(tmp_path)
    random, lengths, length = np.random.default_rng(5), {}, 64
    for name in ("d0", "d1", "d2"):
        token_counts = lengths[name] = np.maximum(1, random.lognormal(4, 1, 900)).astype(np.int32)
        ends = np.cumsum(token_counts)
        runs = [list(range(end - n, end)) for end, n in zip(ends, token_counts, strict=True)]
        documents = [runs[first : first + sequences] for first in range(0, len(runs), sequences)]
        write_dataset(tmp_path / name, documents, dtype=np.int32)
    size = size and int(size * int(lengths["d0"].sum()) - 1) // length
    case = {
        "per_split": False, "paths": [["d0"]], "sizes": [size, None, None], "split": "1", "seed": 1234,
        "sequence_length": length, "extra_token": True, "keep_partial": False, "surplus": 0.005, **changes,
    }  # fmt: skip
    more = {"document_order": "packed", "document_order_splits": ["train", "valid"]}
    more |= {"multiple_validation_sets": True} if "several" in case else {}
    build_with_dsindex(case, tmp_path / "cache", tmp_path, **more)
    with unchanged(tmp_path / "cache"):
        train, valid, _ = build_with_megatron(case, tmp_path / "cache")
    assert isinstance(valid, list) == ("several" in case)
    valid_sets = [valid_set for valid_set in (valid if isinstance(valid, list) else [valid]) if valid_set is not None]
    for split_data in (train, *valid_sets):
        for dataset in getattr(split_data, "datasets", [split_data]):
            is_whole = split_data is train and dataset is train
            check_read(
                dataset,
                lengths[Path(dataset.dataset_path).name],
                size=(is_whole and case["sizes"][0]) or len(dataset),
                epochs=epochs if is_whole else (1, 1),
                short=3,
            )
