"""Tests against the real readers: `pytest -o addopts= tests/peers` in an environment with the extra `peers`."""

import os
import typing
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest
import typing_extensions

from tests.peers.three_datasets import write_three_datasets

HERE = Path(__file__).parent
WITHOUT_MEGATRON = ("chat_templates", "maxtext", "releases", "reply_masks", "tokenizer_folders", "trainers")
HAS_MEGATRON = find_spec("megatron") is not None and find_spec("torch") is not None
NEEDS_MEGATRON = pytest.mark.skipif(not HAS_MEGATRON, reason="megatron-core is not installed: extra `peers`")

if HAS_MEGATRON:
    # It measures nothing here, and says much while it is imported.
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not hasattr(typing, "override"):  # later releases are written for Python 3.12
            typing.override = typing_extensions.override
        import megatron.core.datasets.blended_megatron_dataset_builder
        import megatron.core.datasets.gpt_dataset  # noqa: F401 - imported once, without its warnings


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with the three datasets."""
    folder = tmp_path_factory.mktemp("data")
    write_three_datasets(folder)
    return folder


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.filterwarnings("ignore"))
            if item.path.stem.removeprefix("test_") not in WITHOUT_MEGATRON:
                item.add_marker(NEEDS_MEGATRON)
