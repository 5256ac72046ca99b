"""`dsindex compare`: what it prints and its exit code."""

import json

import pytest

import dsindex
from dsindex.cli.main import main
from tests.support.datasets import write_dataset
from tests.support.golden import GOLDEN, MODALITIES, OWN
from tests.support.jobs import run_config

GOLDEN_EOD = str(GOLDEN / "eod_text_document")


@pytest.fixture
def built(make_config, tmp_path):
    def build(name, **options):
        run_config(make_config(output_prefix=str(tmp_path / name), **options))
        return str(tmp_path / f"{name}_text_document")

    return build


def test_same_data_of_two_tools(built, cli):
    ours = built("ours")
    shown = cli(["compare", ours, f"{GOLDEN_EOD}.bin"]).out.splitlines()
    assert shown[0].startswith(f"A  {ours}: 102 documents, ")
    assert shown[2:] == ["the same"]


def test_rule_and_settings_are_told(built, cli):
    shown = cli(["compare", built("with"), built("without", append_eod=False)], 1).out.splitlines()
    assert shown[2:] == [
        "DIFFERENT",
        "  rule: A ends documents with token 0 (EOD?), B does not",
        "  that is all: apart from it every document has the same tokens",
        "settings and counts:",
        "  append-eod  A on · B off",
    ]


def test_first_difference_is_shown_with_its_source_and_text(built, tmp_path, capsys):
    lines = OWN.docs.read_bytes().splitlines()
    record = json.loads(lines[7])
    changed = tmp_path / "changed.jsonl"
    changed.write_bytes(b"\n".join([*lines[:7], json.dumps({**record, "text": "§ one"}).encode(), *lines[8:]]))
    assert main(["compare", built("a"), built("b", input=(str(changed),))]) == 1
    shown = capsys.readouterr().out
    assert f"    A  document 7 ({OWN.docs}, line 8): …  | " in shown
    assert f"    B  document 7 ({changed}, line 8): …  | " in shown
    assert "       '§ one<|endoftext|>'\n    the texts differ, too\n" in shown
    assert "  only document 7 differs; all other documents are the same\n" in shown
    changed.write_bytes(b"\n".join([*lines[:7], *lines[8:]]))
    assert main(["compare", built("c", input=(str(changed),)), str(tmp_path / "a_text_document")]) == 1
    sentence = f"  A lacks document 7 of B, from {OWN.docs}, line 8; all other documents are the same\n"
    assert sentence in capsys.readouterr().out
    found = dsindex.compare(str(tmp_path / "c_text_document"), str(tmp_path / "a_text_document"))
    assert sentence in str(found)
    assert (bool(found), repr(found)) == (False, "DatasetComparison(DIFFERENT)")
    assert main(["compare", "--json", str(tmp_path / "a_text_document"), str(tmp_path / "b_text_document")]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["is_same"] is False
    assert found["first_difference"][1]["document"] == 7
    assert [row["name"] for row in found["settings"]] == ["inputs"]


def test_another_tokenizer_of_the_same_text(built, cli):
    other = built("other", tokenizer_model=str(MODALITIES / "gpt2"), append_eod=False)
    shown = cli(["compare", built("plain", append_eod=False), other], 1).out
    assert "  no rule for the edges of documents explains it\n" in shown
    assert "    both tokenize the same text: another tokenizer, or special tokens read in another way\n" in shown
    assert "  tokenizer  A plain (" in shown


def test_packed_data_is_compared_too(tmp_path, capsys):
    packed = str(tmp_path / "x.pbin")
    assert main(["convert", GOLDEN_EOD, packed]) == 0
    capsys.readouterr()
    assert main(["compare", GOLDEN_EOD, packed]) == 0
    assert main(["compare", packed, str(GOLDEN / "noeod_text_document")]) == 1
    assert "  rule: A ends documents with token 0 (EOD?), B does not\n" in capsys.readouterr().out


@pytest.mark.parametrize(("words", "says"), [
    (["nowhere", GOLDEN_EOD], "nowhere: expected a dataset, found no nowhere.idx"),
    ([GOLDEN_EOD, str(GOLDEN / "noeod_text_document"), "--tokenizer-model", "nowhere"], "nowhere"),
])  # fmt: skip
def test_what_is_missing_is_one_sentence(words, says, cli):
    shown = cli(["compare", *words], 1)
    assert says in shown.err.splitlines()[-1]
    assert "Traceback" not in shown.err


@pytest.mark.parametrize(("one", "other", "borders", "rule"), [
    ([[[1, 2]], [], [[3]]], [[[1, 2]], [[3]]], "documents", "A has 1 empty document, B has none"),
    ([[[1, 2]], []], [[[1, 2]], [[]]], "sequences within documents",
     "A has 0 sequences without tokens, B has 1 sequence; that is all"),
], ids=["documents", "sequences"])  # fmt: skip
def test_empty_texts_alone_are_a_rule(tmp_path, cli, one, other, borders, rule):
    words = [write_dataset(tmp_path / name, documents) for name, documents in (("one", one), ("other", other))]
    assert cli(["compare", *words], 1).out.splitlines()[2:] == [
        "DIFFERENT",
        f"  the tokens are the same one after the other; the boundaries of {borders} differ",
        f"  rule: empty texts: {rule}",
    ]
