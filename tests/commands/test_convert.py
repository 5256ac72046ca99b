import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dsindex
from dsindex.commands.api import join_packed
from dsindex.commands.convert import convert_to_indexed, convert_to_pbin
from dsindex.datasets.detect import detect_dataset
from dsindex.datasets.documents import open_documents, permute
from dsindex.errors import FormatError, OutputError
from dsindex.formats.pbin import PBIN_VERSIONS
from tests.support.datasets import write_dataset
from tests.support.pbin_files import VERSION_NAMES, pbin_bytes, write_pbin
from tests.support.published import read_pair

LISTS = st.lists(st.lists(st.integers(0, 255), max_size=5), max_size=12)
SEQUENCES = [[[1, 2, 3]], [], [[250, 9]], [[4]], [], []]


@pytest.mark.parametrize(("documents", "options", "message"), [
    ([[[1]], [[]]], {}, r"sequence 1 has no tokens, .*\nhint: accept that with --flatten"),
    ([[[1]]], {"dtype": "int64"}, "tokens of type int64 could not be restored from a .pbin, only uint8, uint16, int32"),
    ([[[1]]], {"modes": [1]}, "cannot store sequence modes"),
    ([[[1, -1]]], {"dtype": "int32"}, "token id -1 does not fit uint32"),
])  # fmt: skip
def test_what_a_pbin_cannot_say_is_refused(tmp_path, documents, options, message):
    source = write_dataset(tmp_path / "x", documents, **options)
    with pytest.raises(FormatError, match=message):
        convert_to_pbin(source, str(tmp_path / "x.pbin"))
    assert {file.name for file in tmp_path.iterdir()} == {"x.bin", "x.idx"}


def test_flatten_joins_the_sequences_of_a_document(tmp_path):
    source = write_dataset(tmp_path / "x", [[[1], [2, 3]], [[], [4]], [[]], []])
    convert_to_pbin(source, str(tmp_path / "x.pbin"), flatten=True)
    expected = pbin_bytes([[1, 2, 3], [4], [], []], version="current", token_bytes=2)
    assert (tmp_path / "x.pbin").read_bytes() == expected


def test_ids_that_do_not_fit_are_refused(tmp_path):
    packed = write_pbin(tmp_path / "x.pbin", [[2**31]])
    with pytest.raises(FormatError, match="token id 2147483648 does not fit int32"):
        convert_to_indexed(packed, str(tmp_path / "y"))
    assert {file.name for file in tmp_path.iterdir()} == {"x.pbin"}


def test_missing_sources_and_existing_outputs_are_named(tmp_path):
    with pytest.raises(FormatError, match=r"none\.idx: cannot be read"):
        convert_to_pbin(str(tmp_path / "none"), str(tmp_path / "x.pbin"))
    source = write_dataset(tmp_path / "x", SEQUENCES)
    with pytest.raises(OutputError, match="exists already, with other content"):
        convert_to_indexed(write_pbin(tmp_path / "y.pbin", [[1]]), source)
    (tmp_path / "x.bin").unlink()
    with pytest.raises(FormatError, match=r"x\.bin: cannot be read"):
        convert_to_pbin(source, str(tmp_path / "z.pbin"))


@settings(max_examples=100)
@given(LISTS, st.sampled_from(VERSION_NAMES), st.sampled_from(["uint8", "uint16", "int32"]))
def test_any_documents_come_back(tmp_path_factory, documents, version, dtype):
    folder = tmp_path_factory.mktemp("convert")
    source = write_dataset(folder / "x", [[document] if document else [] for document in documents], dtype=dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dsindex.commands.convert.COPY_TOKENS", 3)
        convert_to_pbin(source, str(folder / "x.pbin"), version=PBIN_VERSIONS[version])
        size = 4 if version == "spec" else np.dtype(dtype).itemsize
        assert (folder / "x.pbin").read_bytes() == pbin_bytes(documents, version=version, token_bytes=size)
        named = np.dtype(dtype) if version == "spec" else None
        conversion = convert_to_indexed(str(folder / "x.pbin"), str(folder / "y"), dtype=named)
    assert read_pair(folder / "y") == read_pair(source)
    [dataset] = conversion.datasets
    assert (dataset.num_documents, dataset.token_dtype) == (len(documents), np.dtype(dtype).name)


def test_documents_are_shuffled_alike_in_every_format(tmp_path):
    """The order follows from the seed and the number of documents, whatever is written."""
    rng = np.random.default_rng(5)
    lists = [[rng.integers(1, 99, rng.integers(1, 9)).tolist()] for _ in range(70)]
    source = str(write_dataset(tmp_path / "a", lists))
    expected = [lists[number][0] for number in permute(np.arange(70), 70, seed=3)]
    for number, name in enumerate(("b.pbin", "b", "c.pbin", "c")):
        dsindex.convert(source if number < 2 else tmp_path / "a.pbin", tmp_path / name, shuffle_documents=3)
        documents = open_documents(detect_dataset(str(tmp_path / name)))
        shuffled = [documents.tokens[slice(*documents.span(document))].tolist() for document in range(70)]
        assert shuffled == expected, name
        if number == 1:
            dsindex.convert(source, tmp_path / "a.pbin")
    assert read_pair(tmp_path / "b") == read_pair(tmp_path / "c")
    join_packed(merge=[tmp_path / "a.pbin"], output=tmp_path / "d.pbin", shuffle_documents=3)
    assert (tmp_path / "d.pbin").read_bytes() == (tmp_path / "c.pbin").read_bytes()


def test_shuffled_documents_keep_their_sequences(tmp_path):
    lists = [[[1, 2], [3]], [], [[4]], [[5], [6, 7], [8]], [[9]]]
    dsindex.convert(str(write_dataset(tmp_path / "a", lists)), tmp_path / "b", shuffle_documents=8)
    dataset = dsindex.open(tmp_path / "b")
    documents = [[dataset[sequence].tolist() for sequence in dataset.document_sequences(number)] for number in range(5)]
    assert documents == [lists[number] for number in permute(np.arange(5), 5, seed=8)] != lists
    parts = [write_dataset(tmp_path / name, part) for name, part in {"c": lists[:2], "d": [], "e": lists[2:]}.items()]
    for _ in range(2):  # the same again is as good
        dsindex.merge(parts, output_prefix=tmp_path / "f", shuffle_documents=8)
    assert read_pair(tmp_path / "f") == read_pair(tmp_path / "b")
    with pytest.raises(OutputError, match="exists already, with other content"):
        dsindex.merge(parts[:1], output_prefix=tmp_path / "f", shuffle_documents=8)
    assert len(list(tmp_path.glob("f*"))) == 2
