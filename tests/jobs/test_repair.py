"""Which way a repair goes, what it proves, and what it refuses."""

import json
import shutil
from pathlib import Path

import pytest

from dsindex.cli.main import main
from dsindex.engine.manifest import manifest_path
from dsindex.errors import FormatError, OutputError
from dsindex.execution.progress.reporter import Reporter
from dsindex.jobs.repair import run_repair
from dsindex.options.datasets import RepairConfig
from tests.support.golden import OWN
from tests.support.jobs import run_config
from tests.support.published import move_tokenizer_away

PLAIN_TEXTS = "".join(json.dumps({"text": f"text number {number}"}) + "\n" for number in range(50))


@pytest.fixture
def built(make_config, tmp_path):
    """The prefix of a dataset with empty documents and EOD in texts, its work folder beside it."""
    run_config(make_config(keep_shards=True))
    return str(tmp_path / "out" / "docs_text_document")


@pytest.fixture
def plain(make_config, tmp_path):
    """The prefix of a dataset whose `.bin` alone tells its documents."""
    source = tmp_path / "plain.jsonl"
    source.write_text(PLAIN_TEXTS)
    run_config(make_config(input=(str(source),)))
    return str(tmp_path / "out" / "docs_text_document")


def repair(prefix, **options):
    defaults = {"executor": "local", "workers": 2, "output": f"{prefix}_new"}
    return run_repair(prefix, RepairConfig(**{**defaults, **options}), reporter=Reporter())


def assert_same(prefix, whole, suffixes=("bin", "idx")):
    for suffix in suffixes:
        assert Path(f"{prefix}.{suffix}").read_bytes() == whole[suffix], suffix


def files_of(prefix):
    return {suffix: Path(f"{prefix}.{suffix}").read_bytes() for suffix in ("bin", "idx")}


def test_whole_dataset_is_left_alone(built):
    assert repair(built).outputs == ()
    assert not Path(f"{built}_new.idx").exists()


@pytest.mark.parametrize("lost", ["idx", "bin", "both"])
def test_shards_restore_everything(lost, built):
    whole = files_of(built)
    for suffix in ("idx", "bin") if lost == "both" else (lost,):
        Path(f"{built}.{suffix}").unlink()
    report = repair(built)
    assert report.lost == ()
    assert "the shards" in report.way
    assert "by digest" in report.notes[0]
    assert_same(f"{built}_new", whole)
    assert json.loads(Path(f"{built}_new.repair.json").read_bytes())["num_documents"] == 102


def test_missing_shards_are_accounted_for(built):
    folder = Path(built).parent / "docs.build"
    [path] = folder.glob("shards/*/00000002.*.0.bin")
    path.write_bytes(b"damaged")
    ledger = folder / "ledger.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if b'"shard":4,' not in line]
    assert len(kept) < len(lines)
    ledger.write_bytes(b"".join(kept))
    for suffix in ("idx", "bin"):
        Path(f"{built}.{suffix}").unlink()
    report = repair(built)
    assert 0 < report.num_documents < 102
    assert "bytes 16384 to 24576: its shard is damaged" in report.lost[0]
    assert "bytes 32768 to 40960: its shard was never finished" in report.lost[1]


def test_tokens_alone_are_enough_where_the_manifest_says_so(plain):
    whole = files_of(plain)
    Path(f"{plain}.idx").unlink()
    report = repair(plain)
    assert report.way == "EOD in the .bin"
    assert_same(f"{plain}_new", whole)


@pytest.mark.parametrize("executor", ["local", "processes"])
def test_source_restores_what_tokens_cannot(executor, built):
    whole = files_of(built)
    Path(f"{built}.idx").unlink()
    shutil.rmtree(Path(built).parent / "docs.build")
    move_tokenizer_away(built)
    with pytest.raises(FormatError, match="5 EOD from text, 2 empty documents"):
        repair(built)
    report = repair(built, tokenizer_model=str(OWN.plain_tokenizer), executor=executor)
    assert report.way == "the source, tokenized again"
    assert_same(f"{built}_new", whole)


def test_crashed_megatron_build_gives_its_whole_documents(tmp_path):
    golden = OWN.run("eod").prefixes["text"]
    prefix = str(tmp_path / "crashed")
    shutil.copy(f"{golden}.idx", f"{prefix}.idx")
    Path(f"{prefix}.bin").write_bytes(Path(f"{golden}.bin").read_bytes()[:20_001])
    report = repair(prefix)
    assert "documents, from document" in report.lost[0]
    assert main(["verify", f"{prefix}_new", "--executor", "local"]) == 0
    new = Path(f"{prefix}_new.bin").read_bytes()
    assert Path(f"{golden}.bin").read_bytes().startswith(new)
    assert len(new) > 15_000


def test_index_that_fits_but_is_another_is_not_copied(built):
    shutil.rmtree(Path(built).parent / "docs.build")
    tokens = bytearray(Path(f"{built}.bin").read_bytes())
    tokens[100] ^= 1
    Path(f"{built}.bin").write_bytes(tokens)
    with pytest.raises(FormatError, match="so it is unknown what is damaged"):
        repair(built)


def test_damaged_manifest_is_said_and_not_used(built):
    Path(f"{built}.idx").unlink()
    Path(manifest_path(built)).write_bytes(b"{}")
    report = repair(built)
    assert "the manifest could not be used" in report.notes[0]
    assert report.num_documents == 102


def test_existing_output_is_never_overwritten(built):
    Path(f"{built}.idx").unlink()
    with pytest.raises(OutputError, match=r"\.bin: expected another file than the input .*; choose another name"):
        repair(built, output=built)
    Path(f"{built}.linked.bin").symlink_to(f"{built}.bin")
    with pytest.raises(OutputError, match=r"linked\.bin: expected another file than the input .*document\.bin"):
        repair(built, output=f"{built}.linked")


@pytest.mark.parametrize("suffix", ["bin", "idx", "repair.json"])
def test_file_of_a_new_name_is_kept(built, tmp_path, suffix):
    Path(f"{built}.idx").unlink()
    mine = tmp_path / f"new.{suffix}"
    mine.write_text("mine")
    with pytest.raises(OutputError, match=rf"new\.{suffix}: expected a file that does not exist yet"):
        repair(built, output=str(tmp_path / "new"))
    assert [path.name for path in tmp_path.glob("new*")] == [mine.name]
    assert mine.read_text() == "mine"


def test_packed_file_joined_with_low_offsets(tmp_path, capsys):
    import pickle

    index = [(0, 8), (8, 4), (0, 4)]  # the second file's offsets count from 12 bytes too low
    path = tmp_path / "joined.pbin"
    head = (16).to_bytes(8, "little") + (4).to_bytes(4, "little")
    path.write_bytes(head + bytes(range(16)) + pickle.dumps(index, protocol=4))
    assert main(["repair", str(path), "--output", str(tmp_path / "new.pbin"), "--executor", "local"]) == 0
    assert "1 joints with low offsets repaired" in capsys.readouterr().out
    assert pickle.dumps([(0, 8), (8, 4), (12, 4)], protocol=4) == (tmp_path / "new.pbin").read_bytes()[28:]
    assert main(["repair", str(path), "--output", str(tmp_path / "new")]) == 2
