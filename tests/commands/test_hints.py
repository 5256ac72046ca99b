"""A hint that names a flag or a command helps: it is followed as printed, and the same error does not return."""

import base64
import gzip
import json
import re
import shlex
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dsindex.cli.main import main
from tests.support.golden import OWN
from tests.support.text_tokenizers import word_piece

TEXT = "build --input docs.jsonl --tokenizer-model tok --output-prefix NEW"
HALTED = TEXT.replace("docs", "halted") + " --shard-size 4KiB --on-bad-record quarantine --append-eod"
INDEX = "index --data-path A --seq-length 16 --data-cache-path NEW"
BLEND = "index --split 8,1,1 --data-path 0.5 A 0.5 B --seq-length 16 --data-cache-path NEW"
CONTINUED = INDEX + " --continue-from first --consumed-samples 2 --global-batch-size 2"
JOB = (
    "index --megatron-release 0.19 --data-cache-path NEW -- torchrun pretrain_gpt.py --data-path A --split 1 "
    "--seq-length 16 --train-iters 2 --global-batch-size 2 --eval-interval 2 --eval-iters 0 "
    "--tokenizer-type HuggingFaceTokenizer --tokenizer-model tok"
)
CHAT = "instruct chat.yaml --input chats.jsonl --tokenizer-model tok --output-prefix NEW"
PRINTED = object()
"""The value of a flag is the word after it in the hint."""

CASES = {
    # Words of the command line.
    "command": ("biuld --help", {"build": "COMMAND"}),
    "no-command": ("frobnicate", {"dsindex --help": ""}),
    "flag": (TEXT.replace("--input", "--inptu"), {"--input": "docs.jsonl", "--inptu": None}),
    "no-flag": (TEXT + " --frobnicate", {"dsindex build -h": ""}),
    "positional": ("build docs.jsonl --tokenizer-model tok --output-prefix NEW",
        {"--input": PRINTED, "docs.jsonl": None}),
    "pack-output": ("pack --input docs.jsonl --tokenizer-model tok --output-prefix x",
        {"--output": "NEW.pbin", "--output-prefix": None}),
    # Options of build.
    "unit": (TEXT + " --shard-size 64", {"64MiB": "--shard-size"}),
    "two-names": (TEXT + " --json-keys text text", {"NAME=.KEY": "--json-keys text again=.text"}),
    "no-name": (TEXT + " --json-keys '.text + .text'", {"NAME=.text + .text": "--json-keys"}),
    "parts": (TEXT + " --max-dataset-size 1MB --seq-length 16 --epochs 1", {"dsindex index": INDEX + " --epochs 1"}),
    "held-out": (TEXT + " --hold-out 10% --seq-length 16 --epochs 1", {"dsindex index": INDEX + " --epochs 1"}),
    "bad-record": (TEXT.replace("docs", "bad"), {"--on-bad-record": PRINTED}),
    "replace": (TEXT.replace("NEW", "old"), {"--replace": ""}),
    "other-build": (HALTED + " --work-dir halted.build", {"--work-dir": "NEW.work"}),
    "other-options": (HALTED.replace("NEW", "halted"), {"--replace": ""}),
    "dotless": (TEXT + " --where 'id > 3'", {".id": "--where"}),
    "and": (TEXT + " --where '.id > 3 && .id < 9'", {"and": "--where '.id > 3 and .id < 9'"}),
    "work-folder": (TEXT + " --work-dir tok", {"--work-dir": "NEW.work"}),
    "eod": (TEXT + " --append-eod --eod-token EOS", {"--eod-token": "'<|endoftext|>'"}),
    "no-eod": (TEXT.replace("tok ", "bare ") + " --append-eod", {"--eod-token": "'<|endoftext|>'"}),
    "lines": (TEXT.replace("docs.jsonl", "a.txt"), {"--input-format": PRINTED}),
    "split": (TEXT.replace("docs.jsonl", "splits"), {"--input-split": "train"}),
    "all-splits": (TEXT.replace("docs.jsonl", "splits"), {"--input-split all": ""}),
    "copies": (TEXT.replace("docs.jsonl", "copies"), {"--exclude": "a.jsonl.gz"}),
    "list": (TEXT.replace("--input ", "--input-list "), {"--input": "docs.jsonl", "--input-list": None}),
    "column": (TEXT.replace("docs.jsonl", "t.parquet"), {"--json-keys": "body"}),
    "vocabulary": (TEXT.replace("tok ", "vocab "),
        {"--vocab-file": "vocab/vocab.json", "--merge-file": "vocab/merges.txt"}),
    "encoding": (TEXT.replace("tok ", "b.tiktoken "), {"--tiktoken-encoding": "gpt2"}),
    "tokenizer": (TEXT.replace("tok ", "docs.jsonl "), {"--tokenizer-model": "tok"}),
    "manifest": (TEXT.replace("NEW", "torn"), {"--replace": ""}),
    "many-values": ("build --config many.yaml --tokenizer-model tok --output-prefix NEW",
        {"--input-list": "many.txt", "--config": None}),
    "engine": (TEXT.replace("tok ", "word.json ") + " --engine gigatoken", {"--engine": PRINTED}),
    "ray": (TEXT + " --address localhost:1", {"--executor": PRINTED, "--address": None}),
    # Other commands.
    "pbin-era": ("convert made.pbin NEW --pbin-era spec", {"--pbin-era": None}),
    "build-it": ("inspect docs.jsonl", {"dsindex build": TEXT}),
    "index-it": ("inspect docs.jsonl", {"dsindex raw-index": "raw-index docs.jsonl --output NEW.idx"}),
    "empty-index": ("raw-index empty.jsonl --output NEW", {"--drop-faulty-entries": ""}),
    "old-format": ("inspect fairseq", {"dsindex build": TEXT}),
    "packs": (CHAT.replace("NEW", "packed") + " --seq-length 256", {"--output-prefix": "NEW"}),
    "report": ("report A --output docs.jsonl", {"--output": "NEW.html"}),
    "no-caches": ("verify A --cache none", {"dsindex index": INDEX.replace("NEW", "none") + " --epochs 1"}),
    "no-source": ("verify plain_text_document --against-source", {"--same-as": "A", "--against-source": None}),
    "longer": (CHAT.replace("chat.yaml", "long.yaml") + " --seq-length 64", {"--longer-than-pack": PRINTED}),
    "multiple": (CHAT + " --seq-length 250 --pad-to-multiple 64", {"--seq-length": PRINTED}),
    "other-format": (CHAT.replace("tok ", "gpt2.tiktoken "), {"dsindex build": TEXT.replace("tok ", "gpt2.tiktoken ")}),
    # Index caches.
    "job": (INDEX + " --train-iters 3 --global-batch-size 2", {"--num-samples": "6", "--train-iters": None}),
    "blend": (BLEND + " --epochs 1", {"--num-samples": "6,1,1", "--epochs": None}),
    "no-samples": (INDEX + " --num-samples 9,9,9 --split 9999,1,0", {"none": "--num-samples 9,none,none"}),
    "maxtext": (INDEX + " --reader maxtext --train-iters 6 --split 100,0",
        {"--num-samples": "6", "--train-iters": None}),
    "plain-list": (BLEND.replace("0.5 ", "") + " --blend-schedule '0:50,50' --num-samples 6,1,1 --plain-names",
        {"--data-path": "1 A 1 B"}),
    "amount": ("mix A 0.5 B 0.3", {**dict.fromkeys(["A", "0.5", "B", "0.3"]), "--data-path": "1 A"}),
    "orders": (INDEX.replace("NEW", "first") + " --epochs 2 --document-order packed", {"--data-cache-path": "NEW"}),
    "interval": (INDEX + " --train-iters 3 --global-batch-size 2 --plain-names",
        {"--num-samples": "6", "--train-iters": None}),
    "other-length": (CONTINUED.replace("16", "8") + " --num-samples 6", {"--seq-length": "16"}),
    "mistyped": (JOB.replace("seq-length", "seq-lenght"), {"--seq-length": "16", "--seq-lenght": None}),
    "repeats": (BLEND + " --num-samples 99999,1,1 --blend-schedule '0:50,50' --plain-names", {"--max-epochs": "999"}),
}  # fmt: skip


@pytest.fixture(scope="module")
def _folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("hints"))
        shutil.copy(OWN.docs, "docs.jsonl")
        Path("bad.jsonl").write_text('{"text": "good"}\n{"body": "bad"}\n')
        Path("empty.jsonl").write_text("")
        Path("halted.jsonl").write_bytes(OWN.docs.read_bytes() + b"not JSON\n")
        Path("a.txt").write_text("a line\n")
        Path("none").mkdir()
        Path("fairseq.idx").write_bytes(b"TNTIDX\0\0" + bytes(40))
        Path("fairseq.bin").write_bytes(bytes(40))
        for name in ("bin", "idx"):
            Path(f"packed_packing_256.{name}").write_bytes(b"not ours")
        Path("many.yaml").write_text(f"input: [{'docs.jsonl, ' * 200_000}]\n")
        Path("many.txt").write_text("docs.jsonl\n")
        for folder, names in (("splits", ("train.jsonl", "test.jsonl")), ("copies", ("a.jsonl",))):
            Path(folder).mkdir()
            for name in names:
                shutil.copy(OWN.docs, f"{folder}/{name}")
        Path("copies/a.jsonl.gz").write_bytes(gzip.compress(OWN.docs.read_bytes()))
        pq.write_table(pa.table({"body": ["a text"]}), "t.parquet")
        shutil.copytree(OWN.plain_tokenizer, "tok")
        Path("bare").mkdir()
        shutil.copy(OWN.plain_tokenizer / "tokenizer.json", "bare/tokenizer.json")
        model = json.loads((OWN.plain_tokenizer / "tokenizer.json").read_text())["model"]
        Path("vocab").mkdir()
        Path("vocab/vocab.json").write_text(json.dumps(model["vocab"]))
        merges = (merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"])
        Path("vocab/merges.txt").write_text("#version: 0.2\n" + "".join(f"{merge}\n" for merge in merges))
        Path("word.json").write_bytes(word_piece())
        ranks = (f"{base64.b64encode(bytes([byte])).decode()} {byte}\n" for byte in range(256))
        Path("b.tiktoken").write_text("".join(ranks))
        shutil.copy("b.tiktoken", "gpt2.tiktoken")
        messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "word " * 40}]
        Path("chats.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
        settings = "chat_template: chatml\ncontrol_tokens: allow\n"
        Path("chat.yaml").write_text(settings)
        Path("long.yaml").write_text(settings + "max_length: 1000\n")
        for words in (
            TEXT.replace("NEW", "old --append-eod"),
            TEXT.replace("NEW", "made --append-eod"),
            TEXT.replace("NEW", "other --append-eod"),
            TEXT.replace("NEW", "plain --append-eod --no-provenance"),
            "merge --input made_text_document --output-prefix A",
            "merge --input other_text_document --output-prefix B",
            "convert A made.pbin",
            TEXT.replace("NEW", "torn"),
            INDEX.replace("NEW", "first") + " --epochs 2",
        ):
            assert main(shlex.split(words)) == 0
        Path("torn_text_document.manifest.json").write_text("{")
        assert main(shlex.split(HALTED.replace("NEW", "halted").replace("quarantine --append-eod", "fail"))) == 1
        yield


def run(words, capsys):
    capsys.readouterr()
    try:
        code = main(words)
    except SystemExit as stop:
        code = stop.code
    return code, capsys.readouterr().err


def set_flag(words, flag, values):
    """Return the words with other values of a flag; None leaves it out."""
    if flag in words:
        place = words.index(flag)
        end = next((n for n in range(place + 1, len(words)) if words[n].startswith("--")), len(words))
        words = words[:place] + words[end:]
    return words if values is None else [*words, flag, *values]


@pytest.mark.usefixtures("_folder")
@pytest.mark.parametrize("name", CASES)
def test_a_hint_that_is_followed_ends_the_error(name, capsys):
    line, answers = CASES[name]
    words = shlex.split(line.replace("NEW", f"{name}-new"))
    code, shown = run(words, capsys)
    assert code in {1, 2}, shown
    error, hint = re.search(r"^error: (.*)\nhint: (.*)$", shown, re.MULTILINE).groups()
    for printed, answer in answers.items():
        assert answer is None or printed in hint, hint
        given = shlex.split(answer.replace("NEW", f"{name}-new")) if isinstance(answer, str) else answer
        if printed.startswith("dsindex "):
            command = given or shlex.split(printed)[1:]
            assert command[0] == printed.split()[1]
            assert run(command, capsys)[0] == 0
            words = words if name == "no-caches" else command
        elif answer == "COMMAND":
            words[0] = printed
        elif answer is None and printed in words and not printed.startswith("-"):
            words.remove(printed)
        elif not printed.startswith("-"):  # a value
            flag, *values = given
            words = set_flag(words, flag, values or [printed])
        elif answer is PRINTED:
            words = set_flag(words, printed, [re.search(rf"{printed} '?([^ ',;?]+)", hint)[1]])
        else:
            flag, *values = printed.split()
            words = set_flag(words, flag, None if answer is None else values or given)
    code, shown = run(words, capsys)
    assert (code, error in shown) == (0, False), shown
