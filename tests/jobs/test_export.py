"""`dsindex export`: what is written beside a dataset for OLMo-core, nanotron and MaxText."""

import gzip
import os
import shutil

import numpy as np
import pytest

import dsindex
from dsindex.errors import FormatError, OutputError
from tests.support.datasets import write_dataset

DOCUMENTS = [[[1, 2], [3]], [], [[4]], [[]], [[5, 6]]]
"""Documents with tokens: [1, 2, 3], [4], [5, 6]."""


def contents(folder):
    found = sorted(path for path in folder.rglob("*") if path.is_symlink() or path.is_file())
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_bytes() for path in found
    }


def test_olmo_gets_a_link_and_the_borders(tmp_path, cli):
    prefix = write_dataset(tmp_path / "x", DOCUMENTS, dtype=np.int32)
    said = cli(["export", f"{prefix}.bin", "--for", "olmo"]).out
    assert f"{prefix}: 5 documents, 6 tokens" in said
    assert f"paths=['{prefix}.npy'], dtype=NumpyDatasetDType.uint32" in said
    made = contents(tmp_path)
    assert made.keys() == {"x.bin", "x.idx", "x.npy", "x.csv.gz"}
    assert made["x.npy"] == "x.bin"
    assert gzip.decompress(made["x.csv.gz"]) == b"0,3\n3,4\n4,6\n"
    assert dsindex.export(prefix, trainer="olmo").num_tokens == 6
    assert contents(tmp_path) == made


def test_nanotron_gets_a_folder_that_may_be_moved_with_the_dataset(tmp_path, cli):
    (tmp_path / "here").mkdir()
    prefix = write_dataset(tmp_path / "here" / "x", DOCUMENTS)
    assert "token_size_in_bytes: 2" in cli(["export", prefix, "--for", "nanotron"]).out
    shutil.move(tmp_path / "here", tmp_path / "there")
    folder = tmp_path / "there" / "x_nanotron"
    assert (folder / "x.ds").is_symlink()
    assert np.fromfile(folder / "x.ds", np.uint16).tolist() == [1, 2, 3, 4, 5, 6]
    assert np.fromfile(folder / "x.ds.index", "<u8").tolist() == [3, 4, 6]


@pytest.mark.parametrize(("dtype", "wanted"), [(np.uint8, "<u2"), (np.int64, "<u4")])
def test_nanotron_gets_copies_of_other_sizes(tmp_path, dtype, wanted):
    prefix = write_dataset(tmp_path / "x", DOCUMENTS, dtype=dtype)
    dsindex.export(prefix, trainer="nanotron")
    path = tmp_path / "x_nanotron" / "x.ds"
    assert not path.is_symlink()
    assert np.fromfile(path, wanted).tolist() == [1, 2, 3, 4, 5, 6]
    made = contents(tmp_path)
    dsindex.export(prefix, trainer="nanotron")
    assert contents(tmp_path) == made


def test_token_that_does_not_fit_leaves_nothing(tmp_path):
    prefix = write_dataset(tmp_path / "x", [[[1 << 33]]], dtype=np.int64)
    before = contents(tmp_path)
    with pytest.raises(FormatError, match=r"x\.bin: .*8589934592"):
        dsindex.export(prefix, trainer="nanotron")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", ["x.npy", "x.csv.gz", "x_nanotron/x.ds", "x_nanotron/x.ds.index"])
@pytest.mark.parametrize("kind", ["file", "link", "broken link"])
def test_other_files_are_in_the_way_and_stay(tmp_path, name, kind):
    prefix = write_dataset(tmp_path / "x", DOCUMENTS)
    (tmp_path / "x_nanotron").mkdir()
    path = tmp_path / name
    if kind == "file":
        path.write_bytes(b"mine")
    else:
        os.symlink(tmp_path / ("x.idx" if kind == "link" else "none"), path)
    before = contents(tmp_path)
    with pytest.raises(OutputError, match=os.path.basename(name)):
        dsindex.export(prefix, trainer="olmo" if "nanotron" not in name else "nanotron")
    assert contents(tmp_path) == before


def test_continues_after_a_kill(tmp_path):
    prefix = write_dataset(tmp_path / "x", DOCUMENTS)
    dsindex.export(prefix, trainer="olmo")
    whole = contents(tmp_path)
    for left in ("x.npy", "x.csv.gz"):
        os.unlink(tmp_path / left)
        dsindex.export(prefix, trainer="olmo")
        assert contents(tmp_path) == whole


def test_complete_export_needs_no_writing(tmp_path, monkeypatch):
    """So the folder may be read-only. Another zlib may pack the borders otherwise."""
    prefix = write_dataset(tmp_path / "x", DOCUMENTS)
    for trainer in ("olmo", "nanotron"):
        dsindex.export(prefix, trainer=trainer)
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(b"0,3\n3,4\n4,6\n", 1))
    before = contents(tmp_path)
    monkeypatch.setattr("dsindex.jobs.trainers.NewFiles", None)
    for trainer in ("olmo", "nanotron"):
        dsindex.export(prefix, trainer=trainer)
    assert contents(tmp_path) == before


def test_borders_of_an_older_dataset_and_a_file_for_the_folder_are_refused(tmp_path, cli):
    prefix = write_dataset(tmp_path / "x", DOCUMENTS)
    dsindex.export(prefix, trainer="olmo")
    write_dataset(tmp_path / "x", DOCUMENTS[1:])
    assert "x.csv.gz: expected the borders of this dataset's" in cli(["export", prefix, "--for", "olmo"], 1).err
    (tmp_path / "x_nanotron").touch()
    assert "x_nanotron: expected a folder or nothing" in cli(["export", prefix, "--for", "nanotron"], 1).err


def test_maxtext_needs_no_file(tmp_path, cli):
    prefix = write_dataset(tmp_path / "x", DOCUMENTS)
    before = contents(tmp_path)
    said = cli(["export", prefix, "--for", "maxtext"]).out
    assert f"dataset_type=grain grain_file_type=mmap grain_train_files='{prefix}'" in said
    assert contents(tmp_path) == before


@pytest.mark.parametrize(("words", "code", "message"), [
    (["none"], 1, "none.idx"), (["s3://b/x"], 2, "address"), (["modes"], 1, "expected a dataset of texts"),
])  # fmt: skip
def test_what_cannot_be_exported_is_refused(tmp_path, cli, words, code, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_dataset(tmp_path / "modes", [[[1]]], modes=[0])
    assert message in cli(["export", *words, "--for", "olmo"], code).err
    assert contents(tmp_path).keys() == {"modes.bin", "modes.idx"}
