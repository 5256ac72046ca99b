"""What a person sees: one sentence, the right exit code, nothing under a final name."""

import errno
import os
import re
import shlex

import pytest

from dsindex.errors import OutputError
from tests.support.conversations import CONVERSATIONS
from tests.support.failing import fail_calls
from tests.support.golden import GOLDEN, MODALITIES, OWN
from tests.support.text_tokenizers import word_piece

TOKENIZER = ("--tokenizer-model", str(OWN.plain_tokenizer))


def write(path, data):
    path.write_bytes(data)
    return str(path)


GOOD = b'{"text": "good"}\n'

BAD_INPUT = {
    "not JSON": (
        GOOD + b'{"text": "x" y}\n' + b"the next one\n",
        r"in\.jsonl, line 2: .*column 14.*; . of . shards are kept.hint: fix it and .* with --on-bad-record quarantine",
    ),
    "key missing": (GOOD + b'{"body": "x"}\n', r"in\.jsonl, line 2: .*'text'.*body.* kept.hint: fix it"),
    "empty file": (b"", r"in\.jsonl: the inputs have no record"),
}


@pytest.mark.quick(6)
@pytest.mark.parametrize(("data", "message"), BAD_INPUT.values(), ids=BAD_INPUT)
@pytest.mark.parametrize("shard_size", ["8B", "64MiB"])
def test_bad_input_is_named_by_file_and_line(tmp_path, cli, data, message, shard_size):
    arguments = ["build", "--input", write(tmp_path / "in.jsonl", data), *TOKENIZER]
    printed = cli([*arguments, "--output-prefix", str(tmp_path / "out" / "x"), "--shard-size", shard_size], 1)
    assert_one_sentence(printed, message)
    assert_nothing_published(tmp_path / "out")


def assert_one_sentence(printed, message):
    sentence = re.split(r"^(?=error: |interrupted: )", printed.err, flags=re.MULTILINE)[-1]
    assert re.search(message, sentence, re.DOTALL), sentence
    assert sentence.startswith(("error: ", "interrupted: "))
    assert "Traceback" not in printed.err


def assert_nothing_published(folder):
    names = os.listdir(folder) if folder.exists() else []
    assert not [name for name in names if name.endswith((".bin", ".idx", "manifest.json", ".parquet"))]


MISTAKES = {
    "--input {tmp}/*.none TOKENIZER": r"\*\.none: nothing matches this pattern",
    "--input {tmp}/notes TOKENIZER": "notes: no file with records .* it has no files",
    "--input {tmp}/in.jsonl.gz TOKENIZER": "this is not gzip data, as its name says",
    "--input {good} --tokenizer-model {tmp}/notes": "notes: no tokenizer.json in this folder, which has nothing",
    "--input {good} --tokenizer-model gpt9": "gpt9: neither a path nor a tokenizer in the .*Hub .*hint: check the name",
    "--input {good} TOKENIZER --exclude good.jsonl": "--exclude leaves no input",
    "--input {good} TOKENIZER --json-keys 'title + text'": "no key .*; .* a jq expression as `NAME=.a [+] .b`",
    "--input {good} TOKENIZER --where '.x ='": "column 4$",
    "--input {good} TOKENIZER --where '.text + {{}}'": r"good\.jsonl, line 1: pattern `\.text \+ \{\}` fails",
    "--input {good} TOKENIZER --token-ids text": "under the key 'text' is a s.* a list of token ids from 0 to ",
    "--input {good} TOKENIZER --seq-length 16 --epochs 1 --split one": "--split: 'one' is not one to three shares",
    "--input {good} TOKENIZER --seq-length 16 --epochs 1 --split 0,1,0": "--epochs counts epochs of train, .* no data",
    "--input {good} TOKENIZER --seq-length 16 --epochs 1 --like missing.txt": "missing.txt: ",
    "--config {tmp}/build.yaml": r"build\.yaml: cannot be read .*hint: check the path",
    "--input {good} --tokenizer-model /dev/null": "/dev/null: the tokenizer cannot be read: a device in place of",
}
MISUSES = {
    "TOKENIZER": "--input is required",
    "--input {good} TOKENIZER --json-keys ../x": "cannot be part of a file name",
    "--input {good} TOKENIZER --json-keys '.[\"a/b\"]'": r"'a/b' cannot be part of a file .*hint: .*, as in NAME=",
    "--input {good} TOKENIZER --json-keys text valid_text --hold-out 0.1": "the same name: text valid_text valid_text",
    "--input {good} TOKENIZER --token-ids 'x=.a[0]'": r"--token-ids: 'x=\.a\[0\]' is a jq expression",
    "--input {good} TOKENIZER --join '\\x'": "is not an escape",
    "--input {good} TOKENIZER --empty-documents eod": "--empty-documents needs --append-eod",
    "--input {good} TOKENIZER --sample 0.5 --hold-out 0.5": "--hold-out 0.5 leaves nothing to train on",
    "--input {good} TOKENIZER --sample 101%": "--sample: '101%' is not a share",
    "--sample {long}": "--sample: '9{79}… is not a share above 0",
    "--max-record-size 9223372036854775808": "'9223372036854775808' is not an integer from 1 to 92",
    "--seq-length 2147483647 --epochs 1": "--seq-length: '2147483647' is not an integer from 2 to 2147483646",
    "--shard-deadline inf": "--shard-deadline: 'inf' is not a number ",
    "--input {good} TOKENIZER --max-bad-records 5": "--max-bad-records needs --on-bad-record",
    "--tok x": "--tok could be --tokenizer-model",
    "--append-eod=yes": "--append-eod takes no value",
    "--executor slurm": "--executor: 'slurm' is not one of 'auto', 'local'",
    "—-input {good}": "there is no option —-input.hint: did you mean --input",
}


@pytest.mark.parametrize("words", [*MISTAKES, *MISUSES])
def test_wrong_options_and_places_are_named(tmp_path, cli, monkeypatch, words):
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: 1 / 0)
    places = {"tmp": str(tmp_path), "long": "9" * 5000, "good": write(tmp_path / "good.jsonl", GOOD)}
    (tmp_path / "in.jsonl.gz").write_bytes(b"x")
    (tmp_path / "notes").mkdir()
    arguments = shlex.split(words.replace("TOKENIZER", shlex.join(TOKENIZER)).format(**places))
    command = ["build", *arguments, "--output-prefix", str(tmp_path / "out" / "x")]
    assert_one_sentence(cli(command, 1 if words in MISTAKES else 2), (MISTAKES | MISUSES)[words])
    assert_nothing_published(tmp_path / "out")
    assert words in MISTAKES or not (tmp_path / "out").exists()


def test_path_of_a_disk_error_is_named(tmp_path, cli, monkeypatch):
    fail_calls(monkeypatch, "listdir", errno.EIO, times=100)
    words = ["build", "--input", write(tmp_path / "in.jsonl", GOOD), *TOKENIZER, "--output-prefix", f"{tmp_path}/out/x"]
    assert_one_sentence(cli(words, 1), rf"{OWN.plain_tokenizer}: cannot be read \(Input/output error\).hint: make it")


def test_values_of_a_file_are_explained_in_sentences(tmp_path, cli):
    values = {
        "shard_deadline: [1]": "--shard-deadline: [1] is not a number from 0.001 to 1000000000",
        "append_eod: maybe": "--append-eod: 'maybe' is not true or false",
        "engine: fast": "--engine: 'fast' is not one of auto, gigatoken, reference or tokenizers",
        "max_record_size: 0": "--max-record-size: 0 is not an integer from 1 to 9223372036854775807",
        "eod_token: 5": "--eod-token: 5 is not text",
        "vocab_size: 2147483648": "--vocab-size: 2147483648 is not an integer from 1 to 2147483647",
    }
    (tmp_path / "c.yaml").write_text("\n".join(values))
    errors = cli(["build", "--config", str(tmp_path / "c.yaml"), "--input", "x", *TOKENIZER], 2).err
    for sentence in values.values():
        assert sentence in errors
    assert "should" not in errors


JOB = f"job: {{input: [x], tokenizer_model: {OWN.plain_tokenizer}, output_prefix: x}}"
BUILD = "build --config c.yaml --output-prefix x"
CHAT = f"instruct c.yaml --input {CONVERSATIONS} {shlex.join(TOKENIZER)} --output-prefix x"
PACK = f"pack --input {OWN.docs} {shlex.join(TOKENIZER)}"
DATASET = f"{GOLDEN}/eod_text_document"


@pytest.mark.parametrize(("command", "text", "code", "message"), [
    (BUILD, "input: [a", 1, "not valid YAML"),
    (BUILD, "outptu_prefix: x", 2, r"^error: there is no option 'outptu_prefix'; --.*\nhint: did you mean 'output_p"),
    (f"{BUILD} {shlex.join(TOKENIZER)}", "input: ['']", 2, "--input: '' is not a text of at least one character"),
    ("instruct c.yaml", f"chat_template_file: none.jinja\n{JOB}", 1, r"none\.jinja: cannot be read \(No such file or"),
    ("instruct c.yaml", f"template_date: x\n{JOB}", 1, "template_date: not a date such as 2026-01-31"),
    (CHAT, "{message_construction: [role], job: {inptu: x}}", 2, "there is no option 'inptu'"),
    (f"{CHAT} --seq-length 1", "message_construction: [role]", 2, "'1' is not an integer from 2 to 134217728"),
    (f"{CHAT} --seq-length 64", "{message_construction: [role], max_length: 99}", 2, "must fit into a pack"),
    (f"{CHAT} --seq-length 64 --longer-than-pack truncate",
     "{message_construction: [role], too_long: split, max_length: 9}", 2, "contradict each other"),
    (f"{PACK} --output x.bin", "", 2, "--output: 'x.bin' is not the name of a .pbin file"),
    (f"{PACK} --output x.pbin --jq-pattern '.text + (now | tostring)'", "", 1,
     "'now' is not allowed, since output must depend on the record alone"),
    (f"pack --input {OWN.docs} --merge a.pbin --output b.pbin", "", 2, "there is no option 'input'"),
    (f"{PACK} --config c.yaml", "merge: null", 2, "^error: --output is required$"),
    (CHAT, "{message_construction: [role], max_length: many}", 1, "c.yaml: max_length: must be an integer, not text$"),
    (f"merge --input {DATASET} --output-prefix s3://b/x --shuffle-documents 1", "", 2, "needs an output on a disk"),
    ("verify --config c.yaml", f"{{prefix: {DATASET}, sampel: 1}}", 2, "there is no option 'sampel'"),
    ("build --config .", "", 1, r"cannot be read \(Is a directory\).hint: name a file$"),
    (f"{BUILD}/y", f"{{input: {OWN.docs}, tokenizer_model: {OWN.plain_tokenizer}, work_dir: c.yaml/a/b}}", 1,
     "/c.yaml: a file is in place of this folder"),
    (f"inspect {DATASET} --document 102", "", 1, "there is no document 102; it has 102"),
    (f"inspect {DATASET} --sample 0", "", 1, "--sample does not apply"),
    (f"verify {DATASET} --sample 1%", "", 2, "--sample needs --against-source"),
    (f"report {MODALITIES}/nonempty.jsonl -o r.html", "", 1, r"neither .* nor a \.pbin, but: raw index"),
    (f"report {DATASET} {DATASET}.bin -o r.html", "", 1, "this dataset is given twice"),
    (f"report {DATASET} --cache none -o r.html", "", 1, "none: there is no such folder"),
])  # fmt: skip
def test_messages_are_sentences_about_what_was_given(command, text, code, message, in_folder, cli):
    """The options are words, or keys of c.yaml."""
    (in_folder / "c.yaml").write_text(text)
    assert_one_sentence(cli(shlex.split(command), code), message)
    assert os.listdir() == ["c.yaml"]


def test_slow_engine_and_repeated_inputs_are_said_before_the_work(tmp_path, cli):
    good = write(tmp_path / "good.jsonl", GOOD)
    tokenizer = write(tmp_path / "tokenizer.json", word_piece())
    words = ["build", "--input", good, f"{tmp_path}/./good.jsonl", "--output-prefix", str(tmp_path / "x")]
    words += ["--tokenizer-model", tokenizer]
    lines = cli(words).err.splitlines()
    [slow] = [line for line in lines if "not gigatoken" in line]
    assert slow.startswith("note: tokenizers encodes, and not gigatoken, which is up to fifty times as fast: ")
    [twice] = [line for line in lines if f"given more than once: {good} (2 times)" in line]
    [begun] = [line for line in lines if line.startswith("tokenize: ")]
    assert lines.index(slow) < lines.index(twice) < lines.index(begun)
    assert "which takes" not in cli([*words, "--replace", "--engine", "reference"]).err


def test_inputs_and_bad_records_are_accounted_for(tmp_path, cli):
    folder = tmp_path / "in"
    folder.mkdir()
    write(folder / "a.jsonl", GOOD + b'{"body": "x"}\n{"body": "y"}\nnot json\n')
    write(folder / "stats.json", b'{"x": 1}\n')
    write(folder / "README.md", b"about")
    words = ["build", "--input", str(folder), *TOKENIZER, "--output-prefix", str(tmp_path / "x")]
    estimate = cli([*words, "--dry-run"]).out
    assert re.search(rf"bad records +4 in the sample: .*\n  2 × .*'text'.* \({folder}/a.jsonl\)\n  1 × ", estimate)
    printed = cli([*words, "--on-bad-record", "quarantine"])
    assert f"note: {folder}: reads stats.json, a.jsonl; skips README.md\n" in printed.err
    lines = [line.strip() for line in printed.out.splitlines() if line.startswith(("  ", "warning"))]
    assert re.match(rf"2 × .*'text'.* \({folder}/a.jsonl, line \d+\)$", lines[0])
    assert [line.partition(" ×")[0] for line in lines[:3]] == ["2", "1", "1"]
    assert lines[3] == f"all in {tmp_path}/x_text_document.quarantine.jsonl.zst"
    assert re.match(r"warning: \d+(\.\d+)?% of the records are quarantined$", lines[4])


def test_documents_that_run_together_are_noted(tmp_path, cli):
    source, tokenizer = write(tmp_path / "a.jsonl", GOOD), write(tmp_path / "tokenizer.json", word_piece())
    builds = {"plain": TOKENIZER, "ended": [*TOKENIZER, "--append-eod"], "sep": ["--tokenizer-model", tokenizer]}
    errors = {name: cli(["build", "--input", source, *flags, "--output-prefix", str(tmp_path / name)]).err
            for name, flags in builds.items()}  # fmt: skip
    assert [name for name, shown in errors.items() if "note: documents run together" in shown] == ["plain"]


@pytest.mark.parametrize(("error", "code", "message"), [
    (KeyboardInterrupt(), 130, "interrupted: finished shards are kept.*rerun the command"),
    (OutputError("full"), 1, "error: full"),
    (ZeroDivisionError("division"), 1, "internal error: ZeroDivisionError.*--debug"),
], ids=["Ctrl-C", "ours", "fault"])  # fmt: skip
def test_how_a_build_ends(tmp_path, cli, monkeypatch, error, code, message):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("dsindex.commands.build.run_build", fail)
    printed = cli(["build", "--input", "x", *TOKENIZER, "--output-prefix", str(tmp_path / "x")], code)
    assert_one_sentence(printed, message)
