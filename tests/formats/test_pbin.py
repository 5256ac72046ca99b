import os
import pickle
import tracemalloc
from itertools import chain

import numpy as np
import pytest

from dsindex.commands.convert import join_pbin_files
from dsindex.errors import FormatError, LimitError, OutputError
from dsindex.formats import pbin
from dsindex.formats.manifest import LARGEST_MANIFEST_BYTES, read_manifest
from dsindex.store.local import atomic_writer
from tests.support.pbin_files import DOCUMENTS, VERSION_NAMES, pbin_bytes, write_pbin

SHAPES = [(version, size) for version in VERSION_NAMES for size in ([4] if version == "spec" else [1, 2, 4])]


def documents_of(path, **options):
    header = pbin.read_pbin_header(path, **options)
    lengths = pbin.read_document_lengths(path, header)
    tokens = pbin.open_tokens(path, header)
    assert len(tokens) == lengths.sum()
    ends = np.cumsum(lengths)
    return [tokens[end - length : end].tolist() for end, length in zip(ends, lengths, strict=True)]


@pytest.mark.parametrize(("version", "token_bytes"), SHAPES)
@pytest.mark.parametrize("documents", [DOCUMENTS, [[]], [[], [1]]], ids=str)
def test_the_era_is_told_from_the_file(tmp_path, version, token_bytes, documents):
    path = write_pbin(tmp_path / "x.pbin", documents, version=version, token_bytes=token_bytes)
    header = pbin.read_pbin_header(path)
    assert (header.version.name, header.token_bytes) == (version, token_bytes)
    assert documents_of(path) == documents
    assert documents_of(path, version=pbin.PBIN_VERSIONS[version]) == documents


def test_header_refuses_sizes_that_an_era_lacks():
    with pytest.raises(LimitError, match=r"a \.pbin of version spec has tokens of 4 bytes, not tokens of 2"):
        pbin.PbinHeader(version=pbin.PBIN_VERSIONS["spec"], token_bytes=2, data_bytes=0).to_bytes()
    with pytest.raises(LimitError, match="1, 2 or 4 bytes"):
        pbin.PbinHeader(version=pbin.PBIN_VERSIONS["current"], token_bytes=3, data_bytes=0).to_bytes()


@pytest.mark.parametrize("version", VERSION_NAMES)
def test_a_cut_file_is_refused_everywhere(tmp_path, version):
    data = pbin_bytes(DOCUMENTS, version=version)
    path = tmp_path / "x.pbin"
    for end in range(len(data)):
        path.write_bytes(data[:end])
        with pytest.raises(FormatError, match=r"x\.pbin: not a"):
            documents_of(str(path))


@pytest.mark.parametrize(("index", "message"), [
    ([(0, 4), (5, 4)], "document 1 begins at offset 5 instead of 4\nhint: if Modalities joined"),
    ([(0, 3), (3, 5)], "document 0 has 3 bytes, which are not whole tokens within the 8"),
    ([(0, 12)], "document 0 has 12 bytes, which are not whole tokens within the 8"),
    ([(0, 4)], "its documents have 4 bytes, and its tokens 8"),
])  # fmt: skip
def test_an_index_that_is_not_the_tokens_is_refused(tmp_path, index, message):
    path = tmp_path / "x.pbin"
    path.write_bytes(pbin_bytes([[1, 2]], version="current")[:20] + pickle.dumps(index, protocol=4))
    with pytest.raises(FormatError, match=message):
        documents_of(str(path))


@pytest.mark.parametrize("version", VERSION_NAMES)
def test_merge_gives_the_file_of_all_documents(tmp_path, version):
    parts = [DOCUMENTS, [], [[7, 8]], [[]]]
    paths = [write_pbin(tmp_path / f"{n}", part, version=VERSION_NAMES[n]) for n, part in enumerate(parts)]
    join_pbin_files(paths, str(tmp_path / "merged"), version=pbin.PBIN_VERSIONS[version])
    assert (tmp_path / "merged").read_bytes() == pbin_bytes(list(chain.from_iterable(parts)), version=version)


def test_merge_refuses_different_token_sizes_and_existing_files(tmp_path):
    two = write_pbin(tmp_path / "two", [[1]], token_bytes=2)
    four = write_pbin(tmp_path / "four", [[1]], token_bytes=4)
    with pytest.raises(FormatError, match=r"has tokens of 4 bytes, and .*two.* of 2"):
        join_pbin_files([two, four], str(tmp_path / "x"))
    with pytest.raises(OutputError, match="exists already, with other content"):
        join_pbin_files([two], four)
    with pytest.raises(ValueError, match=r"no \.pbin files"):
        join_pbin_files([], str(tmp_path / "x"))
    assert {file.name for file in tmp_path.iterdir()} == {"two", "four"}


def test_the_index_takes_memory_for_its_pairs_only(tmp_path):
    lengths = np.full(300_000, 2)
    header = pbin.PbinHeader(version=pbin.PBIN_VERSIONS["current"], token_bytes=2, data_bytes=4 * len(lengths))
    tracemalloc.start()
    with atomic_writer(str(tmp_path / "index")) as file:
        pbin.write_pbin_index(file, header, lengths)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 * len(lengths) + (4 << 20)  # a tuple of two numbers takes 120 bytes


def test_a_manifest_beyond_the_limit_is_not_read(tmp_path):
    (tmp_path / "x.manifest.json").touch()
    os.truncate(tmp_path / "x.manifest.json", LARGEST_MANIFEST_BYTES + 1)
    with pytest.raises(FormatError, match=r"it has 1,073,741,825 bytes, more than 1,073,741,824"):
        read_manifest(str(tmp_path / "x"))
