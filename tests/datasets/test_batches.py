"""What all map-style datasets share: batches as torch fetches them, tensors, pickling with them, and how they print."""

import json
import pickle
import sys

import numpy as np
import pytest

from dsindex import datasets
from dsindex.errors import DsindexError
from tests.support.datasets import write_dataset
from tests.support.golden import OWN
from tests.support.pbin_files import write_pbin

DOCUMENTS = [[1, 2, 3], [4, 5, 6, 7], [], [8, 9], [10, 11, 12, 13, 14, 15, 16, 17, 18]]


def make_indexed(folder, **options):
    return datasets.IndexedDataset(write_dataset(folder / "d", [[[1, 2, 3], [4, 5]], [], [[6]], [[7, 8]]]), **options)


def make_gpt(folder, name="g", first=10, **options):
    """Three samples of two tokens and a label, in the order 1, 0, 2, of seven tokens from the first on."""
    dataset = datasets.IndexedDataset(write_dataset(folder / name, [[list(range(first, first + 7))]]))
    rows = np.array([[0, 0], [0, 2], [0, 4], [0, 6]], np.int32)
    indices = (np.array([0], np.int32), rows, np.array([1, 0, 2], np.uint32))
    return datasets.GPTDataset(dataset, *indices, **{"sequence_length": 2, **options})


def make_gpt_with_masks(folder, **options):
    masks = ("reset_position_ids", "eod_mask_loss", "create_attention_mask", "reset_attention_mask")
    return make_gpt(folder, options=datasets.SampleOptions(eod_token=12, **dict.fromkeys(masks, True)), **options)


def make_blend(folder, *, numbers=(0, 1, 1, 0), samples=(0, 0, 1, 1), **options):
    parts = [make_gpt(folder, "a", **options), make_gpt(folder, "b", 20, **options)]
    return datasets.BlendedDataset(parts, np.array(numbers, np.int16), np.array(samples, np.int64))


def make_documents(folder, **options):
    return datasets.PbinDocuments(write_pbin(folder / "x.pbin", DOCUMENTS), **options)


def make_continuous(folder, **options):
    return datasets.PackedMemMapDatasetContinuous(write_pbin(folder / "x.pbin", DOCUMENTS), 4, **options)


def make_megatron(folder, **options):
    return datasets.PackedMemMapDatasetMegatron(write_pbin(folder / "x.pbin", DOCUMENTS), 4, **options)


def make_lines(folder):
    path = folder / "x.jsonl"
    if not path.exists():
        path.write_text("".join(json.dumps({"text": "some words " * n}) + "\n" for n in range(1, 6)))
    return datasets.RawLines(path)


def make_tokens(folder, **options):
    return datasets.MemMapDataset(make_lines(folder).path, tokenizer=OWN.plain_tokenizer, **options)


def make_instruction(folder, **options):
    write_dataset(folder / "chat_text_document", [[[1, 2, 3]], [[4, 5]], [[6, 7, 8]]])
    write_dataset(folder / "chat_loss_mask", [[[0, 1, 1]], [[0, 1]], [[0, 0, 1]]], dtype=np.uint8)
    return datasets.PackedInstructionDataset(folder / "chat", sequence_length=5, pad_id=0, **options)


WITH_TENSORS = [make_indexed, make_gpt, make_gpt_with_masks, make_blend, make_documents, make_continuous, make_megatron]
WITH_TENSORS += [make_tokens, make_instruction]
ALL = [*WITH_TENSORS, make_lines]


def as_lists(value):
    """A sample of any dataset as plain values, so that it can be compared."""
    if isinstance(value, dict):
        return {name: as_lists(item) for name, item in value.items()}
    if hasattr(value, "sequence_boundaries"):
        return {name: as_lists(getattr(value, name)) for name in value.__slots__}
    return value.tolist() if hasattr(value, "tolist") else value


@pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
def test_batch_holds_the_items_in_the_order_asked_for(make, tmp_path):
    dataset = make(tmp_path)
    indices = [1, 0, 1, -1]
    batch = dataset.__getitems__(indices)
    assert isinstance(batch, list)
    assert [as_lists(sample) for sample in batch] == [as_lists(dataset[index]) for index in indices]
    assert [type(sample) for sample in batch] == [type(dataset[index]) for index in indices]
    assert dataset.__getitems__([]) == []
    with pytest.raises(IndexError, match=str(len(dataset))):
        dataset.__getitems__([0, len(dataset)])


def test_tensors_without_torch_are_refused_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    message = r"torch=True needs torch, .*\nhint: pip install '.*\[torch\]'"
    with pytest.raises(datasets.MissingPackageError, match=message) as raised:
        make_indexed(tmp_path, torch=True)
    assert isinstance(raised.value, DsindexError)
    assert isinstance(raised.value, ImportError)


@pytest.mark.parametrize("make", WITH_TENSORS, ids=lambda make: make.__name__)
def test_tensors_hold_what_arrays_hold(make, tmp_path):
    torch = pytest.importorskip("torch")
    arrays, tensors = make(tmp_path), make(tmp_path, torch=True)
    for dataset in (tensors, pickle.loads(pickle.dumps(tensors))):  # noqa: S301
        for number in range(len(arrays)):
            assert as_lists(dataset[number]) == as_lists(arrays[number])
            tensors = dataset[number]
            values = tensors.values() if isinstance(tensors, dict) else [tensors]
            assert all(isinstance(value, torch.Tensor | np.integer) for value in values)
            assert all(value.dtype != torch.int32 for value in values if isinstance(value, torch.Tensor))
