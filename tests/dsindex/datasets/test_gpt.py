"""What samples consist of."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsindex.datasets import GPTDataset, IndexedDataset, SampleOptions, SamplePart
from tests.dsindex.datasets.gpt_samples import EOD, small
from tests.support.datasets import write_dataset
from tests.support.golden import golden_caches

CACHES = golden_caches("GPTDataset")


def open_golden(cache, **options):
    return GPTDataset.open_cache(
        cache.description_path,
        prefix=cache.prefixes()[0],
        add_extra_token=cache.add_extra_token,
        options=SampleOptions(**options),
    )


def reference_samples(dataset, *, pad):
    """All samples cut from one long run of tokens, without a look at the sample index."""
    run = np.concatenate([dataset.dataset[sequence] for sequence in dataset.document_index]).tolist()
    length, extra = dataset.sequence_length, int(dataset.add_extra_token)
    samples = [run[row * length : row * length + length + extra] for row in dataset.shuffle_index.tolist()]
    return [sample + [pad] * (length + extra - len(sample)) for sample in samples]


@pytest.mark.parametrize("cache", CACHES, ids=str)
def test_golden_cache_gives_the_samples_of_its_documents(cache):
    dataset = open_golden(cache)
    assert len(dataset) == cache.num_samples
    expected = reference_samples(dataset, pad=-1)
    assert [dataset.tokens(index).tolist() for index in range(len(dataset))] == expected
    assert dataset.batch(range(len(dataset))).tolist() == expected


@pytest.mark.parametrize("cache", [cache for cache in CACHES if cache.split == "train"], ids=str)
def test_golden_samples_are_megatrons(cache):
    dataset = open_golden(cache)
    for index, (tokens, labels) in enumerate(zip(cache.case["first_tokens"], cache.case["first_labels"], strict=True)):
        sample = dataset[index]
        assert sample["tokens"][: len(tokens)].tolist() == tokens
        assert sample["labels"][-len(labels) :].tolist() == labels


@pytest.mark.parametrize("cache", CACHES, ids=str)
def test_parts_lead_to_the_tokens_of_every_sample(cache):
    dataset = open_golden(cache)
    for index in range(len(dataset)):
        parts = dataset.parts(index)
        found = np.concatenate([dataset.dataset.get(p.sequence, p.offset, p.num_tokens) for p in parts])
        tokens = dataset.tokens(index)
        assert np.array_equal(found, tokens[: len(found)])
        assert (tokens[len(found) :] == -1).all()
        assert all(part.num_tokens for part in parts)


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
    assert {name: values.dtype.name for name, values in sample.items()} == {
        "tokens": "int64",
        "labels": "int64",
        "loss_mask": "float32",
        "position_ids": "int64",
    }


@pytest.mark.parametrize(
    ("number", "bounds", "longest", "positions"),
    [
        (0, [0, 1, 4, 4, 4], 3, [0, 0, 1, 2]),  # 9 | 7 8 9, and the missing label's place
        (1, [0, 4, 4, 4, 4], 4, [0, 1, 2, 3]),  # 4 5 6 9, and of the next document the last label
        (2, [0, 3, 3, 4, 4], 3, [0, 1, 2, 0]),  # 1 2 9 | | 3, and the label 9
    ],
)
def test_bounds_of_documents_are_those_of_megatron(tmp_path, number, bounds, longest, positions):
    dataset = small(tmp_path, options=SampleOptions(inter_document_masking=True))
    for sample in (dataset[number], dataset.__getitems__([number])[0]):
        assert sample["cu_seqlens"].tolist() == bounds
        assert (sample["max_seqlen"], sample["max_seqlen"].shape) == (longest, ())
        assert sample["position_ids"].tolist() == positions
        assert [sample[name].dtype.name for name in ("cu_seqlens", "max_seqlen", "position_ids")] == [
            "int32",
            "int32",
            "int64",
        ]


def test_sample_of_more_empty_parts_than_tokens_has_bounds(tmp_path):
    prefix = write_dataset(tmp_path / "d", [[[1]], [[]], [[]], [[]], [[2, 3]]])
    orders = (np.arange(5, dtype=np.int32), np.array([[0, 0], [4, 1]], np.int32), np.zeros(1, np.uint32))
    options = SampleOptions(inter_document_masking=True)
    dataset = GPTDataset(IndexedDataset(prefix), *orders, sequence_length=2, options=options)
    assert dataset[0]["cu_seqlens"].tolist() == [0, 1, 2]


def test_samples_are_fresh_arrays_that_may_be_written_to(tmp_path):
    dataset = small(tmp_path)
    for values in dataset[1].values():
        values[:] = 77
    assert dataset[1]["tokens"].tolist() == [4, 5, 6, 9]
    assert dataset[1]["loss_mask"].tolist() == [1, 1, 1, 1]
    assert dataset[1]["position_ids"].tolist() == [0, 1, 2, 3]


def test_numbers_count_from_either_end_and_none_fills_a_batch(tmp_path):
    dataset = small(tmp_path)
    assert dataset.tokens(-1).tolist() == dataset.tokens(np.uint8(2)).tolist() == [1, 2, 9, 3, 9]
    assert dataset.batch([-1, 1]).tolist() == [[1, 2, 9, 3, 9], [4, 5, 6, 9, 1]]
    assert dataset.batch([]).shape == (0, 5)
    filler = dataset[None]
    assert filler["tokens"].tolist() == dataset[0]["tokens"].tolist()
    assert not filler["loss_mask"].any()
    for read in (dataset.__getitem__, dataset.tokens, dataset.parts):
        for index in (3, -4):
            with pytest.raises(IndexError, match=f"expected a sample below 3, got {index}"):
                read(index)
    with pytest.raises(IndexError, match="expected a sample below 3, got 3"):
        dataset.batch([0, 3])
    with pytest.raises(TypeError, match="expected sample numbers in one dimension, got float64"):
        dataset.batch([0.5])
    assert len(list(dataset)) == 3


def test_parts_name_sequences_and_offsets(tmp_path):
    dataset = small(tmp_path)
    prefix = str(tmp_path / "d")
    assert dataset.parts(2) == [
        SamplePart(prefix=prefix, sequence=0, offset=0, num_tokens=3),
        SamplePart(prefix=prefix, sequence=3, offset=0, num_tokens=2),
    ]
    assert [(p.sequence, p.offset, p.num_tokens) for p in dataset.parts(0)] == [(3, 1, 1), (4, 0, 3)]


def test_without_extra_token_the_last_label_has_no_loss(tmp_path):
    sample_index = np.array([[0, 0], [1, 0], [3, 1], [4, 3]], np.int64)
    sample = small(tmp_path, sample_index=sample_index, add_extra_token=False)[1]
    assert sample["tokens"].tolist() == [4, 5, 6, 9]
    assert sample["labels"].tolist() == [5, 6, 9, 0]
    assert sample["loss_mask"].tolist() == [1, 1, 1, 0]


def test_pad_token_in_the_data_is_taken_for_padding(tmp_path):
    """As in Megatron, whose tokenizer's pad token must not occur in the data."""
    sample = small(tmp_path, options=SampleOptions(pad_token=5))[1]
    assert sample["tokens"].tolist() == [4, 0, 6, 9]
    assert sample["labels"].tolist() == [0, 6, 9, 1]
    assert sample["loss_mask"].tolist() == [0, 1, 1, 1]


def reference_resets(tokens):
    """Positions and forbidden attention, token by token."""
    document, positions, documents = 0, [], []
    for place, token in enumerate(tokens):
        positions.append(0 if place == 0 or tokens[place - 1] == EOD else positions[-1] + 1)
        documents.append(document)
        document += token == EOD
    places = range(len(tokens))
    return positions, [[column > row or documents[column] < documents[row] for column in places] for row in places]


@settings(max_examples=100)
@given(tokens=st.lists(st.sampled_from([1, 2, EOD]), min_size=1, max_size=12))
def test_resets_at_eod_follow_the_slow_reference(tmp_path_factory, tokens):
    dataset = dataset_of(tokens, tmp_path_factory)
    sample = dataset[0]
    positions, forbidden = reference_resets(tokens)
    assert sample["position_ids"].tolist() == positions
    assert sample["attention_mask"].tolist() == [forbidden]
    assert sample["attention_mask"].dtype == np.bool_
    assert sample["loss_mask"].tolist() == [float(token != EOD) for token in tokens]


def dataset_of(tokens, folders):
    """One sample of these tokens and one more, cut from a dataset of all of them, written once."""
    prefix = folders.getbasetemp() / f"eod-{'-'.join(map(str, tokens))}"
    if not prefix.with_suffix(".idx").exists():
        write_dataset(prefix, [[[*tokens, 1]]])
    return GPTDataset(
        IndexedDataset(prefix),
        np.array([0], np.int32),
        np.array([[0, 0], [0, len(tokens)]], np.int32),
        np.array([0], np.uint32),
        sequence_length=len(tokens),
        options=SampleOptions(
            eod_token=EOD,
            reset_position_ids=True,
            reset_attention_mask=True,
            eod_mask_loss=True,
            create_attention_mask=True,
        ),
    )


def test_attention_mask_without_resets_is_causal(tmp_path):
    dataset = small(tmp_path, options=SampleOptions(create_attention_mask=True))
    assert np.array_equal(dataset[1]["attention_mask"], ~np.tri(4, dtype=bool)[np.newaxis])
    assert "attention_mask" not in small(tmp_path)[1]


@pytest.mark.parametrize(
    ("dtype", "sample_dtype"),
    [*[(dtype, np.int32) for dtype in ("u1", "i1", "i2", "u2", "i4", "i8")], ("u2", np.int64)],
)
def test_every_integer_type_makes_the_same_samples(tmp_path, dtype, sample_dtype):
    sample_index = np.array([[0, 0], [1, 0], [3, 1], [4, 2]], sample_dtype)
    dataset = small(tmp_path, dtype=np.dtype(f"<{dtype}"), sample_index=sample_index)
    assert dataset.batch([0, 1, 2]).tolist() == [[9, 7, 8, 9, -1], [4, 5, 6, 9, 1], [1, 2, 9, 3, 9]]
    assert dataset[0]["labels"].tolist() == [7, 8, 9, 0]


def test_no_samples_are_an_empty_dataset(tmp_path):
    np.save(tmp_path / "shuffle.npy", np.zeros(0, np.uint32))
    dataset = small(
        tmp_path, sample_index=np.zeros((1, 2), np.int32), shuffle_index=tmp_path / "shuffle.npy", sequence_length=99
    )
    assert len(dataset) == 0
    assert list(dataset) == []
    with pytest.raises(IndexError, match="expected a sample below 0, got 0"):
        dataset.tokens(0)
