"""What a path leads to is told from the files."""

import json

import pytest

from dsindex.errors import FormatError, InputError
from dsindex.formats.raw_index import create_raw_index
from dsindex.tools.inspect_kinds import tell_kind
from tests.support.datasets import write_dataset
from tests.support.pbin_files import VERSION_NAMES, write_pbin


@pytest.mark.parametrize("given", ["data", "data.bin", "data.idx", "data.manifest.json"])
def test_files_of_a_dataset_lead_to_its_prefix(given, tmp_path):
    prefix = write_dataset(tmp_path / "data", [[[1, 2]]])
    (tmp_path / "data.manifest.json").write_text("{}")
    subject = tell_kind(str(tmp_path / given))
    assert (subject.kind, subject.path) == ("MMIDIDX", prefix)


@pytest.mark.parametrize("version", VERSION_NAMES)
def test_pbin_is_known_without_its_suffix(version, tmp_path):
    path = write_pbin(tmp_path / "packed", [[1, 2], [3]], version=version)
    assert tell_kind(path).kind == "pbin"


def test_lines_and_their_index_are_a_raw_index(tmp_path):
    lines = tmp_path / "lines.jsonl"
    lines.write_text(json.dumps({"text": "a"}) + "\n")
    with pytest.raises(InputError, match="raw-index"):
        tell_kind(str(lines))
    create_raw_index(str(lines), str(tmp_path / "lines.idx"))
    for given in ("lines.jsonl", "lines.idx", "lines"):
        assert tell_kind(str(tmp_path / given)).kind == "raw index"


def test_instruction_data_is_told_by_its_two_datasets(tmp_path):
    for name in ("chat_text_document", "chat_loss_mask"):
        write_dataset(tmp_path / name, [[[1, 2]]])
    assert tell_kind(str(tmp_path / "chat")).kind == "instruction data"
    assert tell_kind(str(tmp_path / "chat_loss_mask")).kind == "MMIDIDX"


def test_a_folder_or_a_beginning_of_a_name_leads_to_a_choice(tmp_path):
    prefix = write_dataset(tmp_path / "out_text_document", [[[1]]])
    for given in (tmp_path, tmp_path / "out"):
        with pytest.raises(InputError, match=f"choose one of {prefix}"):
            tell_kind(str(given))
    with pytest.raises(InputError, match="check the path"):
        tell_kind(str(tmp_path / "nothing"))


def test_another_file_is_refused_by_its_first_bytes(tmp_path):
    path = tmp_path / "picture"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(64))
    with pytest.raises(FormatError, match="begins with b'\\\\x89PNG"):
        tell_kind(str(path))
