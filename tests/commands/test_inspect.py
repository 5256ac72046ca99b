"""`dsindex inspect` shows what there is, says what is missing, and never ends in a traceback."""

import contextlib
import io
import json
import shutil
from pathlib import Path

import pytest

import dsindex
from dsindex.commands.inspect import run_inspect
from dsindex.commands.token_data import cut_pieces
from dsindex.errors import BadRecordError
from dsindex.options.datasets import InspectConfig
from dsindex.store.lock import hold_lock
from dsindex.text.encoders import encode_by_reference
from dsindex.text.tokenizer import load_tokenizer
from tests.support.datasets import write_dataset
from tests.support.foreign_tokenizers import sentencepiece_model, tiktoken_file
from tests.support.golden import OWN, TOKENIZERS
from tests.support.jobs import run_config

TOKENIZER = str(OWN.plain_tokenizer)
TEXTS = ["The river is old. The river is slow.", "\x1b[2Jevil\x9b31m \u202etext", "No such thing."]


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """The folder of a small build whose text and tokenizer are in it, too, all named by relative paths."""
    folder = tmp_path_factory.mktemp("built")
    (folder / "source.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    shutil.copytree(TOKENIZER, folder / "tokenizer")
    with contextlib.chdir(folder):
        dsindex.build("source.jsonl", tokenizer="tokenizer", append_eod=True, output_prefix="docs")
    return folder


@pytest.fixture
def built(original, in_folder):
    """The prefix of a copy of it, whose files a test may change."""
    shutil.copytree(original, in_folder, dirs_exist_ok=True)
    manifest = in_folder / "docs_text_document.manifest.json"
    manifest.write_text(manifest.read_text().replace(str(original), str(in_folder)))
    return str(in_folder / "docs_text_document")


def inspect(cli, *arguments, code=0):
    return json.loads(cli(["inspect", *arguments, "--json"], code).out)


def test_overview_of_a_build_shows_its_documents_and_their_lines(built, cli):
    overview = inspect(cli, built)
    assert (overview["kind"], overview["facts"]["documents"], overview["findings"]) == ("MMIDIDX", 3, [])
    texts = ["".join(piece["text"] or "?" for piece in excerpt["pieces"]) for excerpt in overview["excerpts"]]
    assert [text.removesuffix("<|endoftext|>") for text in texts] == TEXTS
    assert [excerpt["origin"]["source"]["line"] for excerpt in overview["excerpts"]] == [1, 2, 3]
    assert overview["lengths"]["documents"]["total"] == overview["facts"]["tokens"]
    result, stream = dsindex.inspect(built), io.StringIO()
    dsindex.show(result, stream)
    assert stream.getvalue() == cli(["inspect", built]).out
    assert (repr(result), result.ok) == (f"InspectResult(path='{built}', kind='MMIDIDX', notes=[], findings=[])", True)


def test_a_source_of_other_content_is_told(built, tmp_path):
    source = tmp_path / "source.jsonl"
    source.write_bytes(source.read_bytes().replace(b"river", b"RIVER"))
    result = run_inspect(InspectConfig(path=built, document=0))
    [note] = result.notes
    assert "has changed: it has the same size and other content" in note
    assert result.excerpts[0].pieces


def test_another_tokenizer_is_told_and_never_taken_in_silence(built, tmp_path):
    other = str(OWN.plain_tokenizer.parent / "bos")
    result = run_inspect(InspectConfig(path=built, document=0, tokenizer_model=other))
    assert any("another tokenizer" in note for note in result.notes)
    shutil.rmtree(tmp_path / "tokenizer")
    shutil.copytree(other, tmp_path / "tokenizer")
    result = run_inspect(InspectConfig(path=built, document=0))
    assert all(piece.text is None for piece in result.excerpts[0].pieces)
    assert any("the tokenizer of the dataset" in note for note in result.notes)


@pytest.mark.parametrize("suffix", ["idx", "bin", "manifest.json", "provenance.parquet"])
@pytest.mark.parametrize("damage", ["empty", "cut", "zeros"])
def test_damage_is_a_finding_and_no_traceback(built, suffix, damage, cli):
    path = Path(f"{built}.{suffix}")
    content = path.read_bytes()
    if damage == "zeros":
        path.write_bytes(content[:10] + bytes(len(content) - 10))
    else:
        path.write_bytes(b"" if damage == "empty" else content[: len(content) // 2])
    is_seen = (suffix, damage) != ("bin", "zeros")  # other tokens are no damage that a look can see
    printed = cli(["inspect", built], int(is_seen))
    assert "internal error" not in printed.err
    assert ("FOUND: " in printed.out) is is_seen


def test_a_blend_shows_its_weights_and_documents_of_all_of_a_dataset(in_folder, cli):
    write_dataset(in_folder / "a", [[[number] * 9] for number in range(12)])
    write_dataset(in_folder / "b", [[[7] * 90]])
    words = ["--seq-length", "8", "--num-samples", "16", "--split", "1,0,0", "--data-cache-path", "cache"]
    cli(["index", "--data-path", "3", "a", "1", "b", *words])
    parts = ["  a: weight 0.75, 12 samples (75.0%)", "  b: weight 0.25, 4 samples (25.0%)"]
    assert inspect(cli, "cache")["facts"]["caches"][:3] == ["train: a blend of 2, 16 samples", *parts]
    assert [excerpt["document"] for excerpt in inspect(cli, "a")["excerpts"]] == [2, 6, 10]


def test_instruction_data_shows_its_trainable_tokens(tmp_path, cli):
    write_dataset(tmp_path / "chat_text_document", [[[5, 6, 7]], [[8]]])
    write_dataset(tmp_path / "chat_loss_mask", [[[0, 1, 1]], [[0]]], dtype="u1")
    write_dataset(tmp_path / "chat_packing_8", [[[0, 1]]], dtype="i4")
    overview = inspect(cli, str(tmp_path / "chat"))
    facts = overview["facts"]
    assert (facts["trainable tokens"], facts["block layouts"]) == ("2 of 4", ["chat_packing_8"])
    assert [excerpt["mask"] for excerpt in overview["excerpts"]] == [[0, 1, 1], [0]]
    output = cli(["inspect", str(tmp_path / "chat"), "--document", "0", "--tokens", "2"]).out
    assert "\n    5│[6]│ … 1 more token\n" in output
    write_dataset(tmp_path / "chat_loss_mask", [[[0, 1]]], dtype="u1")
    findings = inspect(cli, str(tmp_path / "chat"), code=1)["findings"]
    assert any("not a uint8 mask for every token" in finding for finding in findings)


def test_a_work_folder_says_how_far_its_job_is(make_config, tmp_path, cli):
    """A build that failed; and, as its files say later, one that runs and one whose driver was killed."""
    (tmp_path / "a").write_bytes(OWN.docs.read_bytes() + b"\n{bad")
    config = make_config(input=(str(tmp_path / "a"),), shard_size="16KiB", workers=1)
    with pytest.raises(BadRecordError):
        run_config(config)
    folder, beside = Path(f"{config.output_prefix}.build"), Path(f"{config.output_prefix}.progress.json")
    overview = inspect(cli, str(folder))
    assert overview["kind"] == "work folder"
    assert overview == inspect(cli, f"{config.output_prefix}_text_document")  # a dataset that is not there yet
    assert (overview["facts"]["state"], overview["facts"]["stage"].partition(":")[0]) == ("failed", "tokenize")
    assert overview["facts"]["inputs"] == [str(tmp_path / "a")]
    stage = {"stage": "tokenize", "unit": "bytes", "done": 900, "total": 2000, "tasks": "shards"}
    stage |= {"tasks_done": 11, "tasks_total": 20, "eta_seconds": 3.0}
    beside.write_text(json.dumps({**json.loads(beside.read_bytes()), "state": "running", "stage": stage}))
    lock = folder / "owner.json"
    with hold_lock(str(lock), resource="this"):
        owner = lock.read_bytes()
        facts = inspect(cli, str(folder))["facts"]
    assert (facts["state"], facts["stage"]) == ("running", "tokenize: 45%, 11 of 20 shards, ETA 3.0 s")
    lock.write_bytes(owner)  # its process holds no lock any more
    assert inspect(cli, str(folder))["facts"]["state"] == "running when it ended: its driver is gone"
    assert lock.read_bytes() == owner


FILES = {"m.model": sentencepiece_model("llama2"), "cl100k_base.tiktoken": tiktoken_file()}


@pytest.mark.parametrize("name", ["gpt2", *FILES])
def test_pieces_together_are_the_text(name, tmp_path):
    for file, content in FILES.items():
        (tmp_path / file).write_bytes(content)
    tokenizer = load_tokenizer(str(tmp_path / name if name in FILES else TOKENIZERS[name]))
    text = "a fox and 数 twice" if name in FILES else "A naïve fox, 数 and 🦊🦊\r\n  twice\x1b[2J."
    ids = encode_by_reference(tokenizer, [text], add_special_tokens=False)[0]
    pieces = cut_pieces(tokenizer, ids)
    assert "".join(piece.text or "" for piece in pieces) == text
    assert [token for piece in pieces for token in piece.ids] == ids
    assert len(pieces) > 5
    after = cut_pieces(tokenizer, ids[2:], before=ids[:2])
    assert [piece.text for piece in after] == [piece.text for piece in pieces][-len(after) :]


def test_ids_outside_the_vocabulary_have_no_text():
    tokenizer = load_tokenizer(str(TOKENIZERS["plain"]))
    pieces = cut_pieces(tokenizer, [5, 10_000_000, -1, 6])
    assert [piece.text is None for piece in pieces] == [False, True, True, False]
