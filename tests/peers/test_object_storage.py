"""megatron-core's own reader opens our datasets in a bucket, and its job finds the caches that we made from there.

boto3 reads AWS_ENDPOINT_URL, as we do. `pytest -o addopts= tests/peers/test_object_storage.py` in an environment with
the extra `peers`, boto3 and obstore.
"""

import json
import os
from unittest.mock import patch

import numpy as np
import pytest

pytest.importorskip("obstore")
pytest.importorskip("boto3")

from dsindex.cli.main import main
from dsindex.datasets import GPTDataset, IndexedDataset
from tests.peers.test_gpt_samples import Tokenizer, build_datasets, megatron_config, unchanged
from tests.support.buckets import ENVIRONMENT, serving_buckets
from tests.support.datasets import write_dataset

IDENTIFIERS = {"class": "tests.Tokenizer"}


@pytest.fixture
def store(tmp_path):
    rng = np.random.default_rng(0)
    served = tmp_path / "served"
    served.mkdir()
    documents = [[rng.integers(1, 999, size).tolist()] for size in rng.integers(0, 90, 50)]
    write_dataset(served / "x_text_document", documents)
    with serving_buckets() as server:
        server.put("bucket/data", served)
        address = {"AWS_ENDPOINT_URL": server.url, "AWS_DEFAULT_REGION": "us-east-1"}
        with patch.dict(os.environ, ENVIRONMENT, **address):
            yield server


def test_megatron_reads_our_objects(store, tmp_path):
    from megatron.core.datasets.indexed_dataset import IndexedDataset as MegatronDataset
    from megatron.core.datasets.object_storage_utils import ObjectStorageConfig

    address = "s3://bucket/data/x_text_document"
    config = ObjectStorageConfig(path_to_idx_cache=str(tmp_path / "idx"), bin_chunk_nbytes=1000)
    theirs, ours = MegatronDataset(address, mmap=False, object_storage_config=config), IndexedDataset(address)
    assert (tmp_path / "idx/bucket/data/x_text_document.idx").is_file()  # its cache has the names of the bucket
    for number in range(len(ours)):
        assert np.array_equal(theirs[number], ours[number])
    assert sum("x_text_document.bin" in request for request in store.requests) > 2


def test_megatron_finds_caches_that_were_made_from_the_bucket(store, tmp_path, monkeypatch):
    address, cache = "s3://bucket/data/x_text_document", tmp_path / "cache"
    (tmp_path / "tokenizer.json").write_text(json.dumps(IDENTIFIERS))
    words = ["--seq-length", 32, "--split", "9,1,0", "--num-samples", "100,5,0", "--data-cache-path", cache]
    words += ["--tokenizer-identifiers", tmp_path / "tokenizer.json"]
    assert main(["index", "--data-path", address, *map(str, words)]) == 0
    assert main(["index", "--explain", "--data-path", address, *map(str, words)]) == 0

    def build(*_, **__):
        raise AssertionError("the job built an index, instead of finding it")

    monkeypatch.setattr(np, "save", build)
    job = {"seed": 1234, "sequence_length": 32, "prefixes": [address], "split": "9,1,0"}
    remote = {"object_storage_cache_path": str(tmp_path / "idx"), "mmap_bin_files": False}
    config = megatron_config(job, Tokenizer(IDENTIFIERS), cache, remote)
    with unchanged(cache):
        train, valid, _ = build_datasets(config, [100, 5, 0])
    for dataset, split in ((train, "train"), (valid, "valid")):
        [description] = cache.glob(f"*-{split}-description.txt")
        ours = GPTDataset.open_cache(description, prefix=address)
        assert len(ours) == len(dataset)
        for number in range(len(ours)):
            assert np.array_equal(ours[number]["tokens"], dataset[number]["tokens"].numpy())
    assert not any("PUT" in request for request in store.requests)
