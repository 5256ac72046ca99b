"""A hint that names a flag or a command helps: it is followed as printed, and the same error does not return."""

import ast
import base64
import errno
import functools
import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import jq
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers

import dsindex
from dsindex.cli.main import main
from dsindex.cli.parser import COMMANDS, make_parser
from tests.support.golden import OWN
from tests.support.pbin_files import joined_by_modalities
from tests.support.published import edit_manifest
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
PACK = "pack --input docs.jsonl --tokenizer-model tok --output NEW.pbin"
AGAIN = INDEX.replace("--data-path A", "--split 1 --data-path 1 B") + " --num-samples 2000,0,0 --continue-from one"
AGAIN += " --consumed-samples 2 --global-batch-size 2"
GROWN = CONTINUED.replace("A ", "G --split 1 ").replace("first", "grown")
MASKS = "chat_template: chatml"
LIKE = "index --like one/A-GPTDataset-train-description.txt --data-cache-path legacy -- "
SIX_SAMPLES = {"--num-samples": "6", "--train-iters": None}
PRINTED = object()
"""The value of a flag is the word after it in the hint."""


def refuse(*_, **__):
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def is_roomy(folder):
    return 0 if "full" in str(folder) else 1 << 50


def write(path, content):
    Path(path).write_text(content)


def pipe(_):
    words = shlex.join([sys.executable, "-m", *shlex.split(f"dsindex {TEXT}".replace("docs.jsonl", "-"))])
    subprocess.run(f"zcat copies/a.jsonl.gz | {words}", shell=True, check=True)
    return ["inspect", "NEW_text_document"]


def paste(_):
    script = Path("run.sh").read_text().replace("torchrun", "echo torchrun")
    pasted = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True).stdout
    return shlex.split(f"index --megatron-release 0.19 --data-cache-path pasted -- {pasted}")


def filter_by_jq(hint):
    """Apply the program of jq in a hint to the file that it was printed for."""
    program = re.search(r"`jq -c '?(.+?)'?`", hint)[1]
    values = jq.compile(program).input_text(Path(f"{'array' if '[]' in program else 'wide'}.jsonl").read_text()).all()
    Path("records.jsonl").write_text("".join(f"{json.dumps(value)}\n" for value in values))


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
    "bad-record": (TEXT.replace("docs", "bad"), {"--on-bad-record": PRINTED}),
    "replace": (TEXT.replace("NEW", "old"), {"--replace": ""}),
    "other-build": (HALTED + " --work-dir halted.build", {"--work-dir": "NEW.work"}),
    "other-options": (HALTED.replace("NEW", "halted"), {"--replace": ""}),
    "dotless": (TEXT + " --where 'id > 3'", {".id": "--where"}),
    "quotes": (TEXT + """ --where ".id != 'a'" """, {"double quotes": "--where '.id != \"a\"'"}),
    "assigns": (TEXT + " --where '.id = 3'", {"==": "--where '.id == 3'"}),
    "and": (TEXT + " --where '.id > 3 && .id < 9'", {"and": "--where '.id > 3 and .id < 9'"}),
    "journal": (HALTED.replace("NEW", "halted") + " --work-dir unreadable.work", {"--work-dir": "NEW.work"}),
    "work-folder": (TEXT + " --work-dir tok", {"--work-dir": "NEW.work"}),
    "eod": (TEXT + " --append-eod --eod-token EOS", {"--eod-token": "'<|endoftext|>'"}),
    "no-eod": (TEXT.replace("tok ", "bare ") + " --append-eod", {"--eod-token": "'<|endoftext|>'"}),
    "lines": (TEXT.replace("docs.jsonl", "a.txt"), {"--input-format": PRINTED}),
    "split": (TEXT.replace("docs.jsonl", "splits"), {"--input-split": "train"}),
    "all-splits": (TEXT.replace("docs.jsonl", "splits"), {"--input-split all": ""}),
    "copies": (TEXT.replace("docs.jsonl", "copies"), {"--exclude": "a.jsonl.gz"}),
    "list": (TEXT.replace("--input ", "--input-list "), {"--input": "docs.jsonl", "--input-list": None}),
    "column": (TEXT.replace("docs.jsonl", "t.parquet"), {"body": "--json-keys"}),
    "vocabulary": (TEXT.replace("tok ", "vocab "),
        {"--vocab-file": "vocab/vocab.json", "--merge-file": "vocab/merges.txt"}),
    "encoding": (TEXT.replace("tok ", "b.tiktoken "), {"--tiktoken-encoding": "gpt2"}),
    "tokenizer": (TEXT.replace("tok ", "docs.jsonl "), {"--tokenizer-model": "tok"}),
    "manifest": (TEXT.replace("NEW", "torn"), {"--replace": ""}),
    "many-values": ("build --config many.yaml --tokenizer-model tok --output-prefix NEW",
        {"list file": "--input-list many.txt", "--config": None}),
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
    "longer": (CHAT.replace("chat.yaml", "long.yaml") + " --seq-length 64", {"--longer-than-pack": PRINTED}),
    "multiple": (CHAT + " --seq-length 250 --pad-to-multiple 64", {"--seq-length": PRINTED}),
    "other-format": (CHAT.replace("tok ", "gpt2.tiktoken "), {"dsindex build": TEXT.replace("tok ", "gpt2.tiktoken ")}),
    # Index caches.
    "job": (INDEX + " --train-iters 3 --global-batch-size 2", SIX_SAMPLES),
    "blend": (BLEND + " --epochs 1", {"--num-samples": "6,1,1", "--epochs": None}),
    "no-samples": (INDEX + " --num-samples 9,9,9 --split 9999,1,0", {"none": "--num-samples 9,none,none"}),
    "maxtext": (INDEX + " --reader maxtext --train-iters 6 --split 100,0", SIX_SAMPLES),
    "plain-list": (BLEND.replace("0.5 ", "") + " --blend-schedule '0:50,50' --num-samples 6,1,1 --plain-names",
        {"--data-path": "1 A 1 B"}),
    "amount": ("mix A 0.5 B 0.3", {**dict.fromkeys(["A", "0.5", "B", "0.3"]), "--data-path": "1 A"}),
    "orders": (INDEX.replace("NEW", "first") + " --epochs 2 --document-order packed", {"--data-cache-path": "NEW"}),
    "other-length": (CONTINUED.replace("16", "8") + " --num-samples 6", {"--seq-length": "16"}),
    "mistyped": (JOB.replace("seq-length", "seq-lenght"), {"--seq-length": "16", "--seq-lenght": None}),
    "repeats": (BLEND + " --num-samples 99999,1,1 --blend-schedule '0:50,50' --plain-names", {"--max-epochs": "999"}),
    # More options of build, pack and instruct.
    "sentences": (TEXT + " --split-sentences",
        {"list of sentences": "--input sentences.jsonl", "--split-sentences": None}),
    "keys": (TEXT + " --json-keys text,title", {"text title": "--json-keys text title"}),
    "inner-key": (TEXT.replace("docs", "inner") + " --json-keys meta.body", {".meta.body": "--json-keys"}),
    "plain-text": (TEXT.replace("docs.jsonl", "a.jsonl"), {"--input-format": PRINTED}),
    "array": (TEXT.replace("docs", "array"), {"jq -c '.[]'": filter_by_jq, "": "--input records.jsonl"}),
    "wide": (TEXT.replace("docs", "wide"), {"jq -c .": filter_by_jq, "": "--input records.jsonl"}),
    "utf-16": (TEXT.replace("docs", "utf16"),
        {"iconv -f UTF-16 -t UTF-8": "< utf16.jsonl > utf8.jsonl", "": "--input utf8.jsonl"}),
    "no-input": (TEXT.replace("docs", "nowhere"), {"--input": "docs.jsonl"}),
    "no-records": (TEXT.replace("docs", "blank"), {"--input": "docs.jsonl"}),
    "no-list": (TEXT.replace("--input docs", "--input-list nowhere"), {"--input-list": "many.txt"}),
    "pipe": (TEXT.replace("docs.jsonl", "-"), {"zcat FILE | dsindex": pipe}, {"sys.stdin": None}),
    "room": (TEXT.replace("NEW", "full/docs"),
        {"--work-dir": "NEW.work", "move the output": "--output-prefix NEW"},
        {"dsindex.runtime.preflight.free_bytes": is_roomy}),
    "no-worker": (TEXT + " --executor processes", {"--executor": PRINTED},
        {"dsindex.runtime.executors.ProcessExecutor.hire": refuse}),
    "no-cluster": (TEXT + " --executor ray", {"--executor": PRINTED}, {"ray.init": refuse}),
    "other-files": (TEXT.replace("tok ", "'odd folder' "), {"--tokenizer-model": PRINTED}),
    "json-column": (PACK.replace("docs.jsonl", "t.parquet"), {"body": "--jq-pattern .body"}),
    "wide-token": (PACK.replace("tok ", "wide.json --eod-token word1 "),
        {"dsindex build": TEXT.replace("tok ", "wide.json "), "dsindex convert": "convert NEW_text_document NEW.pbin"}),
    "pack-prefix": ("pack --config prefix.yaml --input docs.jsonl --tokenizer-model tok",
        {"--output": "NEW.pbin", "--config": None}),
    "template": ("instruct plain.yaml" + CHAT.removeprefix("instruct chat.yaml"),
        {MASKS: lambda _: write("plain.yaml", CONTROL + MASKS)}),
    "flatten": ("convert several_text_document NEW.pbin", {"--flatten": ""}),
    "faulty-line": ("raw-index bad-lines.jsonl --output NEW.idx", {"--drop-faulty-entries": ""}),
    # Tokenizers, datasets and caches of other commands.
    "folder-files": (PACK.replace("tok ", "vocab "), {"--merge-file": lambda _: None, "dsindex build": TEXT.replace(
        "tok ", "x ") + " --vocab-file vocab/vocab.json --merge-file vocab/merges.txt"}),
    "lost-tokenizer": ("verify lost_text_document --against-source", {"--tokenizer-model": "tok"}),
    "not-text": ("index --data-path made.pbin --seq-length 16 --epochs 1 --data-cache-path NEW",
        {"dsindex convert": "convert made.pbin NEW", "": "--data-path NEW"}),
    "is-cache": ("verify first", {"verify its dataset, with --cache": "dsindex verify A --cache first"}),
    "report-folder": ("report A --output NEW.html --cache vocab", {"--cache": "first"}),
    "elsewhere": ("trace far --sample 0", {"trace --prefix": "--prefix A"}),
    "pack-steps": ("trace chat_packing_256 --consumed 0", {"--sample": "0", "--consumed": None}),
    "pack-split": ("trace chat_packing_256 --sample 0 --split train", {"--split": None}),
    "chat-source": ("verify chat_text_document --against-source",
        {"build it again": f"dsindex {CHAT}", "--same-as": "NEW_text_document", "--against-source": None}),
    "few-keys": ("verify keys_text_document --against-source",
        {"--same-as": "made_text_document", "--against-source": None}),
    "old-merge": ("convert old-merge NEW.pbin", {"dsindex merge": "merge --input A B --output-prefix NEW"}),
    "joined-pbin": ("convert joined.pbin NEW", {"dsindex pack": "pack --merge made.pbin made.pbin --output NEW.pbin"}),
    "short-mix": ("mix --data-path A --seq-length 100000", {"--seq-length": "16"}),
    "word-list": ("mix words.txt", {"weights and prefixes": lambda _: write("words.txt", "1 A 1 B")}),
    # More of index.
    "file-order": (INDEX.replace("A ", "A B ") + " --split 1 --num-samples 9 --document-order order.npy",
        {"packed": "--document-order"}),
    "description": (INDEX + " --num-samples 5 --tokenizer-identifiers first/A-GPTDataset-train-description.txt",
        {"--like": "first/A-GPTDataset-train-description.txt", "--tokenizer-identifiers": None}),
    "no-train": (INDEX + " --split 0,1,1 --epochs 1", {"--num-samples": "none,5,5", "--epochs": None}),
    "cache-room": (INDEX.replace("NEW", "full") + " --epochs 1", {"--data-cache-path": "NEW"},
        {"dsindex.commands.index.free_bytes": is_roomy}),
    "commas": (INDEX + " --reader maxtext --num-samples 6 --split 99/1", {"99,1": "--split"}),
    "surplus": (INDEX.replace("A ", "18 A 18 B 92 made_text_document ").replace("16", "938")
        + " --split 1 --num-samples 29,0,0 --mid-level-dataset-surplus 0", {"--mid-level-dataset-surplus": "0.1"}),
    "epochs-of-two": (INDEX.replace("A ", "A B ") + " --split 1 --epochs 1",
        {"--num-samples": "2546", "--epochs": None}),
    "documents": (INDEX + " --split 1 --num-samples 9", {"blend the parts": "--data-path half rest"},
        {"dsindex.megatron.plan.MAX_SEQUENCES": 70}),
    "script": ("index --megatron-release 0.19 --data-cache-path NEW -- bash run.sh",
        {"paste its output after --": paste}),
    "legacy": (JOB.replace("0.19", "0.16") + " --legacy-tokenizer",
        {"--megatron-release": lambda _: shlex.split(LIKE + JOB.partition(" -- ")[2] + " --legacy-tokenizer")}),
    "spent": (CONTINUED + " --num-samples 2", {"request more": "--num-samples 2000"}),
    "other-split": (CONTINUED + " --num-samples 2000 --split 1,9", {"--split": None}),
    "left-out": (AGAIN, {"1e-9": "--data-path 1 B 1e-9 A"}),
    "other-path": (AGAIN, {"--dataset-path-as":
        lambda _: shlex.split(AGAIN.replace("1 B", "1 B 1e-9 C --dataset-path-as C=A"))}),
    "phases": (INDEX + " --split 1 --train-iters 20 --eval-interval 5 --eval-iters 0 --global-batch-size 2"
        " --plain-names --phase-transition-iterations 8 --continue-from one --consumed-samples 2",
        {"--phase-transition-iterations": None}),
    "bare-cache": (GROWN.replace("grown", "bare") + " --num-samples 2400",
        {"dsindex.json": lambda _: shutil.move("bare.json", "bare/G-GPTDataset-train-dsindex.json") and None}),
}  # fmt: skip


CONTROL = "control_tokens: allow\n"
RANKS = "".join(f"{base64.b64encode(bytes([byte])).decode()} {byte}\n" for byte in range(256))
FILES = {
    "a.jsonl": "a line\n", "a.txt": "a line\n", "words.txt": "a list of words\n", "many.txt": "docs.jsonl\n",
    "bad.jsonl": '{"text": "good"}\n{"body": "bad"}\n', "bad-lines.jsonl": '{"text": "a"}\na line\n',
    "empty.jsonl": "", "blank.jsonl": "\n", "array.jsonl": '[{"text": "a"},\n{"text": "b"}]\n',
    "wide.jsonl": '{\n"text": "a"\n}\n', "inner.jsonl": '{"meta": {"body": "a text"}}\n',
    "sentences.jsonl": '{"text": ["A sentence.", "Another one."]}\n', "run.sh": JOB.partition(" -- ")[2] + "\n",
    "chat.yaml": CONTROL + MASKS, "long.yaml": CONTROL + MASKS + "\nmax_length: 1000\n", "plain.yaml": CONTROL,
    "prefix.yaml": "output_prefix: x\n", "b.tiktoken": RANKS, "gpt2.tiktoken": RANKS,
    "packed_packing_256.bin": "not ours", "packed_packing_256.idx": "not ours",
}  # fmt: skip
"""Inputs of these cases."""


@pytest.fixture(scope="module")
def _folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("hints"))
        for folder in ("none", "bare", "vocab", "splits", "copies"):
            Path(folder).mkdir()
        for name in ("docs.jsonl", "splits/train.jsonl", "splits/test.jsonl", "copies/a.jsonl"):
            shutil.copy(OWN.docs, name)
        Path("halted.jsonl").write_bytes(OWN.docs.read_bytes() + b"not JSON\n")
        Path("fairseq.idx").write_bytes(b"TNTIDX\0\0" + bytes(40))
        Path("fairseq.bin").write_bytes(bytes(40))
        Path("many.yaml").write_text(f"input: [{'docs.jsonl, ' * 200_000}]\n")
        wide = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0, "!": 1}, unk_token="?"))
        wide.add_tokens([f"word{number}" for number in range(300)])
        wide.save("wide.json")
        for name, content in FILES.items():
            Path(name).write_text(content)
        Path("utf16.jsonl").write_bytes('{"text": "a"}\n'.encode("utf-16"))
        np.save("order.npy", np.arange(100))
        lines = OWN.docs.read_bytes().split(b"\n")
        Path("half.jsonl").write_bytes(b"\n".join(lines[:50]))
        Path("rest.jsonl").write_bytes(b"\n".join(lines[50:]))
        Path("copies/a.jsonl.gz").write_bytes(gzip.compress(OWN.docs.read_bytes()))
        pq.write_table(pa.table({"body": ["a text"]}), "t.parquet")
        for folder in ("tok", "lost", "odd folder"):
            shutil.copytree(OWN.plain_tokenizer, folder)
        Path("odd folder/tokenizer_config.json").write_text('{"eos_token": "<none>"}')
        shutil.copy(OWN.plain_tokenizer / "tokenizer.json", "bare/tokenizer.json")
        model = json.loads((OWN.plain_tokenizer / "tokenizer.json").read_text())["model"]
        Path("vocab/vocab.json").write_text(json.dumps(model["vocab"]))
        merges = (merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"])
        Path("vocab/merges.txt").write_text("#version: 0.2\n" + "".join(f"{merge}\n" for merge in merges))
        Path("word.json").write_bytes(word_piece())
        messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "word " * 40}]
        Path("chats.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
        for words in (
            TEXT.replace("NEW", "old --append-eod"),
            TEXT.replace("NEW", "made --append-eod"),
            TEXT.replace("NEW", "other --append-eod"),
            "merge --input made_text_document --output-prefix A",
            "merge --input other_text_document --output-prefix B",
            "convert A made.pbin",
            TEXT.replace("NEW", "torn"),
            INDEX.replace("NEW", "first") + " --epochs 2",
            INDEX.replace("NEW", "one") + " --epochs 2 --split 1",
            INDEX.replace("NEW", "far") + " --num-samples 9,1,none --dataset-path-as A=s3://bucket/A",
            TEXT.replace("NEW", "several").replace("docs", "sentences"),
            TEXT.replace("NEW", "keys --json-keys text title --append-eod"),
            CHAT.replace("NEW", "chat --seq-length 256"),
            TEXT.replace("tok ", "lost ").replace("NEW", "lost"),
            *(TEXT.replace("docs", name).replace("NEW", f"{name} --append-eod") for name in ("half", "rest")),
            *(f"merge --input {name}_text_document --output-prefix {name}" for name in ("half", "rest")),
        ):
            assert main(shlex.split(words)) == 0
        shutil.rmtree("lost")
        index = bytearray(Path("A.idx").read_bytes())
        index[-8:] = (99).to_bytes(8, "little")  # as merge_file_ of old Megatron-LM wrote it
        Path("old-merge.idx").write_bytes(index)
        shutil.copy("A.bin", "old-merge.bin")
        for suffix in ("bin", "idx", "manifest.json"):
            shutil.copy(f"A.{suffix}", f"C.{suffix}")
        edit_manifest("keys_text_document", lambda manifest: manifest["run"]["plan"]["settings"].pop("json-keys"))
        Path("joined.pbin").write_bytes(joined_by_modalities([Path("made.pbin").read_bytes()] * 2))
        for prefix, line in (
            ("half", INDEX + " --epochs 2.5"),
            ("A", GROWN.replace("samples 2 ", "samples 1300 ") + " --num-samples 2200"),
        ):
            for suffix in ("bin", "idx", "manifest.json"):
                shutil.copy(f"{prefix}.{suffix}", f"G.{suffix}")
            line = line.replace("A ", "G --split 1 ").replace("NEW", "bare" if prefix == "A" else "grown")
            assert main(shlex.split(line)) == 0
        shutil.move("bare/G-GPTDataset-train-dsindex.json", "bare.json")
        Path("torn_text_document.manifest.json").write_text("{")
        assert main(shlex.split(HALTED.replace("NEW", "halted").replace("quarantine --append-eod", "fail"))) == 1
        shutil.copytree("halted.build", "unreadable.work")
        Path("unreadable.work/journal.jsonl").unlink()
        Path("unreadable.work/journal.jsonl").mkdir()
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
        index = words.index(flag)
        end = next((n for n in range(index + 1, len(words)) if words[n].startswith("--")), len(words))
        words = words[:index] + words[end:]
    return words if values is None else [*words, flag, *values]


ELSEWHERE = {
    r"--contact \S+$": "tests/objects/test_addresses.py follows it",
    r"choose (with|another with) --input-config NAME": "tests/commands/test_input_paths.py follows it",
    r"HF_|AWS_|aws configure": "needs a store, see tests/objects",
    r"RAY_AUTH|on every node": "needs a cluster, see tests/commands/test_ray.py",
    r"--debug|git lfs|pip install|flatten_indices|ulimit|--shard-deadline": "needs another machine or package, or time",
    r"give its version with --pbin-era": "no file of Modalities fits two versions",
    r"accept that with --flatten": "tests/commands/test_convert.py follows it",
}
"""Hints that are not followed here → the reason."""
FOREIGN = {"--data-args-path", "--seq-lenght"}
"""Flags in hints that are not options of the command."""


def texts_of(node, values):
    """Yield the texts in an expression, with {} for values; `values` has the values of names in the module."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in parts)
    elif isinstance(node, ast.Name):
        for value in values.pop(node.id, ()):
            yield from texts_of(value, values)
    else:
        for child in ast.iter_child_nodes(node):
            yield from texts_of(child, values)


def hints_of_the_source():
    """Return the hints of the package that name a flag, a command, a variable or a package."""
    texts = set()
    for path in Path(dsindex.__file__).parent.rglob("*.py"):
        nodes, values = list(ast.walk(ast.parse(path.read_text()))), {}
        for node in nodes:
            for target in node.targets if isinstance(node, ast.Assign) else ():
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                for name in names:
                    values.setdefault(getattr(name, "id", None), []).append(node.value)
        hints = [word.value for node in nodes for word in getattr(node, "keywords", ()) if word.arg == "hint"]
        hints += [value for name in values if "hint" in (name or "").lower() for value in values[name]]
        texts |= {text for hint in hints for text in texts_of(hint, dict(values))}
    return {text for text in texts if re.search(r"--[a-z]|`[a-z]+ |dsindex (?!needs)[a-z]|pip |[A-Z]_[A-Z]|\(\)", text)}


@functools.cache
def flags_of(command):
    [commands] = [action for action in make_parser(command)._actions if action.choices]
    return {*FOREIGN, *commands.choices[command]._option_string_actions}


def follow(words, hint, printed, remedy):
    """Return the words of a command after following a part of a hint."""
    if callable(remedy):
        return remedy(hint) or words
    if isinstance(remedy, str) and remedy.startswith("< "):
        subprocess.run(f"{printed} {remedy}", shell=True, check=True)
        return words
    if remedy == "COMMAND":
        return [printed, *words[1:]]
    if remedy is PRINTED:
        return set_flag(words, printed, [re.search(rf"{printed} ('[^']*'|[^ ,;?]+)", hint)[1].strip("'")])
    if remedy is None and printed in words and not printed.startswith("-"):
        return [*words[: words.index(printed)], *words[words.index(printed) + 1 :]]
    flag, *values = shlex.split(printed if printed.startswith("-") else remedy)
    flag_values = shlex.split(remedy or "") if printed.startswith("-") else values
    return set_flag(words, flag, None if remedy is None else values or flag_values or [printed])


FOLLOWED = set[str]()
"""The hints that were followed."""


@pytest.mark.usefixtures("_folder")
@pytest.mark.parametrize("name", CASES)
def test_a_hint_that_is_followed_ends_the_error(name, capsys, monkeypatch):
    line, remedies, *changed = CASES[name]
    for target, value in dict(*changed).items():
        monkeypatch.setattr(target, value)
    first = words = shlex.split(line.replace("NEW", f"{name}-new"))
    code, errors = run(words, capsys)
    assert code in {1, 2}, errors
    error, hint = re.search(r"^error: (.*)\n(?:hint: (.*))?", errors, re.MULTILINE).groups()
    flags = re.findall(r"--[a-z][a-z-]+", re.sub(r"(dsindex|inspect|trace) .*", "", hint or ""))
    assert words[0] not in COMMANDS or set(flags) <= flags_of(words[0]), hint
    problem, hint = error.partition("; ")[0], f"{hint or ''} {error}"
    FOLLOWED.add(hint)
    command = None
    for printed, remedy in remedies.items():
        assert remedy is None or printed in hint, hint
        filled_remedy = remedy.replace("NEW", f"{name}-new") if isinstance(remedy, str) else remedy
        if printed.startswith("dsindex ") or (isinstance(remedy, str) and remedy.startswith("dsindex ")):
            command = shlex.split(filled_remedy.removeprefix("dsindex ") or printed.removeprefix("dsindex "))
            assert command[0] == (remedy if remedy.startswith("dsindex ") else printed).split()[1]
            code, errors = run(command, capsys)
            assert (code, problem in errors) == (0, False), errors
        else:
            words = follow(words, hint, printed, filled_remedy)
    if command is None or words != first:
        code, errors = run(words, capsys)
        assert (code, problem in errors) == (0, False), errors


def test_every_hint_that_names_a_command_or_a_flag_is_followed(request):
    if sum("hint_that_is" in item.name for item in request.session.items) < len(CASES):
        pytest.skip("all cases have to run before")
    hints = {hint for hint in hints_of_the_source() if not any(re.search(pattern, hint) for pattern in ELSEWHERE)}
    printed = "\n".join(FOLLOWED)
    assert {hint for hint in hints if not re.search(".*".join(map(re.escape, hint.split("{}"))), printed)} == set()
