"""What samples consist of, by arrays and by the description of a cache, and which files and options are refused."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsindex.datasets import GPTDataset, IndexedDataset, SampleOptions
from dsindex.errors import FormatError
from tests.support.datasets import write_dataset
from tests.support.golden import golden_caches

EOD = 9

# Five sequences in the order 2, 0, 1, 3, 4, one of them without tokens: 4 5 6 9 | 1 2 9 | | 3 9 | 7 8 9
SEQUENCES = [[1, 2, EOD], [], [4, 5, 6, EOD], [3, EOD], [7, 8, EOD]]


def small(folder, *, options=None, dtype=np.uint16, **changes):
    """Twelve tokens: samples 4 5 6 9 1, 1 2 9 3 9, and 9 7 8 9 with one token missing, in the order 2, 0, 1."""
    settings = {
        "document_index": np.array([2, 0, 1, 3, 4], np.int32),
        "sample_index": np.array([[0, 0], [1, 0], [3, 1], [4, 2]], np.int32),
        "shuffle_index": np.array([2, 0, 1], np.uint32),
        "sequence_length": 4,
        "options": options or SampleOptions(),
    }
    prefix = write_dataset(folder / "d", [[sequence] for sequence in SEQUENCES], dtype=dtype)
    return GPTDataset(IndexedDataset(prefix), **{**settings, **changes})


CACHES = golden_caches("GPTDataset")


def open_golden(cache, **options):
    arguments = {"prefix": cache.prefixes()[0], "add_extra_token": cache.add_extra_token}
    return GPTDataset.open_cache(cache.description_path, **arguments, options=SampleOptions(**options))


def reference_samples(dataset, *, pad):
    """All samples cut from one long run of tokens, without a look at the sample index."""
    run = np.concatenate([dataset.dataset[sequence] for sequence in dataset.document_index]).tolist()
    length, extra = dataset.sequence_length, int(dataset.add_extra_token)
    samples = [run[row * length : row * length + length + extra] for row in dataset.shuffle_index.tolist()]
    return [sample + [pad] * (length + extra - len(sample)) for sample in samples]


@pytest.mark.parametrize("cache", CACHES, ids=str)
def test_golden_cache_gives_the_samples_of_its_documents_as_megatron_does(cache):
    dataset = open_golden(cache)
    assert len(dataset) == cache.num_samples
    expected = reference_samples(dataset, pad=-1)
    assert [dataset.tokens(index).tolist() for index in range(len(dataset))] == expected
    assert dataset.batch(range(len(dataset))).tolist() == expected
    firsts = zip(cache.case["first_tokens"], cache.case["first_labels"], strict=True)
    for index, (tokens, labels) in enumerate(firsts if cache.split == "train" else ()):
        assert dataset[index]["tokens"][: len(tokens)].tolist() == tokens
        assert dataset[index]["labels"][-len(labels) :].tolist() == labels


def test_partial_last_sample_is_padded_without_loss(tmp_path):
    dataset = small(tmp_path)
    assert dataset.tokens(0).tolist() == [9, 7, 8, 9, -1]
    sample = dataset[0]
    assert {name: values.tolist() for name, values in sample.items()} == {
        "tokens": [9, 7, 8, 9],
        "labels": [7, 8, 9, 0],
        "loss_mask": [1, 1, 1, 0],
        "position_ids": [0, 1, 2, 3],
    }
    assert [values.dtype.name for values in sample.values()] == ["int64", "int64", "float32", "int64"]


@pytest.mark.parametrize(("number", "bounds", "longest", "positions"), [
    (0, [0, 1, 4, 4, 4], 3, [0, 0, 1, 2]),  # 9 | 7 8 9, and the missing label's place
    (1, [0, 4, 4, 4, 4], 4, [0, 1, 2, 3]),  # 4 5 6 9, and of the next document the last label
    (2, [0, 3, 3, 4, 4], 3, [0, 1, 2, 0]),  # 1 2 9 | | 3, and the label 9
])  # fmt: skip
def test_bounds_of_documents_are_those_of_megatron(tmp_path, number, bounds, longest, positions):
    dataset = small(tmp_path, options=SampleOptions(inter_document_masking=True))
    for sample in (dataset[number], dataset.__getitems__([number])[0]):
        assert sample["cu_seqlens"].tolist() == bounds
        assert (sample["max_seqlen"], sample["max_seqlen"].shape) == (longest, ())
        assert sample["position_ids"].tolist() == positions
        assert [sample[name].dtype.name for name in ("cu_seqlens", "max_seqlen")] == ["int32", "int32"]


def reference_resets(tokens):
    """Positions and forbidden attention, token by token."""
    document, positions, documents = 0, [], []
    for place, token in enumerate(tokens):
        positions.append(0 if place == 0 or tokens[place - 1] == EOD else positions[-1] + 1)
        documents.append(document)
        document += token == EOD
    places = range(len(tokens))
    return positions, [[column > row or documents[column] < documents[row] for column in places] for row in places]


@settings(max_examples=25)
@given(tokens=st.lists(st.sampled_from([1, 2, EOD]), min_size=1, max_size=12))
def test_resets_at_eod_follow_the_slow_reference(tmp_path_factory, tokens):
    prefix = write_dataset(tmp_path_factory.mktemp("eod") / "d", [[[*tokens, 1]]])
    masks = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "create_attention_mask")
    indices = (np.array([0], np.int32), np.array([[0, 0], [0, len(tokens)]], np.int32), np.array([0], np.uint32))
    options = SampleOptions(eod_token=EOD, **dict.fromkeys(masks, True))
    sample = GPTDataset(IndexedDataset(prefix), *indices, sequence_length=len(tokens), options=options)[0]
    positions, forbidden = reference_resets(tokens)
    assert sample["position_ids"].tolist() == positions
    assert sample["attention_mask"].tolist() == [forbidden]
    assert sample["attention_mask"].dtype == np.bool_
    assert sample["loss_mask"].tolist() == [float(token != EOD) for token in tokens]


def test_cache_opens_by_its_description(tmp_path, monkeypatch):
    cache = CACHES[0]
    dataset = open_golden(cache)
    assert isinstance(dataset.document_index.base, np.memmap)
    monkeypatch.chdir(cache.folder)
    assert np.array_equal(GPTDataset.open_cache(cache.description_path).tokens(1), dataset.tokens(1))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FormatError, match=r"_text_document\.idx: cannot be read"):
        GPTDataset.open_cache(cache.description_path)


def test_pickle_holds_paths_and_settings(tmp_path):
    dataset = open_golden(CACHES[0], eod_token=EOD, reset_position_ids=True)
    pickled = pickle.dumps(dataset)
    assert b"description" not in pickled
    assert len(pickled) < 1500
    again = pickle.loads(pickled)  # noqa: S301
    assert again.options == dataset.options
    assert np.array_equal(again[1]["position_ids"], dataset[1]["position_ids"])
    from_arrays = pickle.loads(pickle.dumps(small(tmp_path)))  # noqa: S301
    assert from_arrays.tokens(1).tolist() == [4, 5, 6, 9, 1]


@pytest.mark.parametrize(("options", "message"), [
    ({"reset_position_ids": True}, "need an eod_token, got None"),
    ({"eod_token": 1, "pad_token": 1}, "pad_token 1 is the eod_token"),
], ids=lambda value: "-".join(value) if isinstance(value, dict) else "")  # fmt: skip
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SampleOptions(**options)


LARGEST = (1 << 63) - 1


@pytest.mark.parametrize("changes", [
    {"document_index": np.array([-1, 0, 1, 3, 4], np.int32)},
    {"sample_index": np.array([[0, 0], [1, LARGEST], [3, 1], [4, 2]])},
    {"shuffle_index": np.array([2, -1, 1], np.int64)},
], ids=["sequence-below-0", "end-that-wraps", "row-below-0"])  # fmt: skip
def test_indices_that_point_elsewhere_are_a_format_error(tmp_path, changes):
    dataset = small(tmp_path, **changes)
    reads = [lambda: dataset.tokens(1), lambda: dataset[1], lambda: dataset.batch([1]), lambda: dataset.parts(1)]
    for read in reads:
        with pytest.raises(FormatError, match="the indices of sample 1 point outside"):
            read()
