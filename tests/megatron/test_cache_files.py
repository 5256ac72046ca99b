"""One cache on disk: no kill leaves a mixture that Megatron would take, and nobody else's file is written over."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dsindex.commands.index import _artifact, write_cache
from dsindex.errors import OutputError
from dsindex.megatron.cache import CacheFiles, CacheRecord, Settings
from dsindex.runtime.publish import hold_artifacts

DESCRIPTION = "x-GPTDataset-train-description.txt"


def files_in(folder):
    return CacheFiles(str(folder / "x-GPTDataset-train"))


def put(folder, number):
    """Write another cache for each number; the description is the same, since its name is its hash."""
    contents = (*(np.full(9 + number, number, np.int32) for _ in range(3)), b"{}")
    files = files_in(folder)
    with hold_artifacts([files.stem], [_artifact(files)], waits=True):
        return write_cache(files, contents, CacheRecord(settings=Settings(taken=number)))


def there(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture
def whole(tmp_path_factory):
    """What the cache of a number is when nothing happens."""

    def write(number):
        folder = tmp_path_factory.mktemp("whole")
        (folder / "x-GPTDataset-train.dsindex-lock").touch()  # of a writer that died
        assert not put(folder, number)
        return there(folder)

    return write


def test_tasks_that_write_one_cache_at_once_leave_no_mixture(tmp_path, whole):
    expected = [whole(number) for number in range(2)]
    for _ in range(20):
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda number: put(tmp_path, number), range(2)))
        assert there(tmp_path) in expected, "no lock is left, too"


@pytest.mark.parametrize("missing", [DESCRIPTION, "x-GPTDataset-train-sample_index.npy", None])
def test_another_programs_cache_that_differs_is_refused_and_kept(tmp_path, whole, missing):
    """One that is not whole may be about to be built by a job."""
    for name, content in whole(1).items():
        if name not in {missing, "x-GPTDataset-train-dsindex.json"}:
            (tmp_path / name).write_bytes(content)
    before = there(tmp_path)
    with pytest.raises(OutputError, match=r"document_index.npy: damaged, or another program's file: .*"):
        put(tmp_path, 2)
    assert there(tmp_path) == before


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("mine", path)], ids=range(3))
def test_what_is_no_file_is_refused_and_kept(tmp_path, make):
    put(tmp_path, 1)
    path = tmp_path / DESCRIPTION
    path.unlink()
    make(path)
    before = os.lstat(path)
    with pytest.raises(OutputError, match=f"{DESCRIPTION}: damaged, or another program's file"):
        put(tmp_path, 2)
    assert os.path.samestat(os.lstat(path), before)


@pytest.mark.parametrize("record", [
    "{",
    '{"version": 99}',
    '{"version": 1, "files": {"x-GPTDataset-train-document_index.npy": [["1", 2]]}, "building": "../../x"}',
    '{"version": 1, "files": {"x-GPTDataset-train-document_index.npy": 7}, "building": 7}',
])  # fmt: skip
def test_damaged_record_proves_nothing(tmp_path, record):
    put(tmp_path, 1)
    (tmp_path / "x-GPTDataset-train-dsindex.json").write_text(record)
    with pytest.raises(OutputError, match=r"document_index.npy: damaged, or another program's file"):
        put(tmp_path, 2)
    assert files_in(tmp_path).read_record() is None
    assert put(tmp_path, 1)
