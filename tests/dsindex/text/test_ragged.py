from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
{first}
import gigatoken, numpy as np
from dsindex.text.ragged import encode_ragged

fast = gigatoken.Tokenizer.from_json(open({model!r}, "rb").read())
texts = [b"not a text of the array", b"one text", b"", "zwei Wörter".encode(), b"<|end|>", b"neither"]
offsets = np.cumsum([0, *map(len, texts)])[1:-1]
for _ in range(2):
    tokens, lengths = encode_ragged(fast, offsets, np.frombuffer(b"".join(texts), np.uint8), parallel=False)
    assert tokens.dtype == np.uint32 and lengths.dtype == np.int64
    expected = [fast.encode(text).tolist() for text in texts[1:-1]]
    assert [part.tolist() for part in np.split(tokens, np.cumsum(lengths)[:-1])] == expected
print("numpy.ma" in sys.modules, lengths.tolist())
{last}
"""


def run(tmp_path: Path, model: Path, first: str = "", last: str = "") -> tuple[str, str]:
    (tmp_path / "program.py").write_text(PROGRAM.format(model=str(model), first=first, last=last))
    command = [sys.executable, str(tmp_path / "program.py")]
    root = Path(__file__).parents[3]
    ended = subprocess.run(
        command, cwd=root, env={"PYTHONPATH": str(root)}, capture_output=True, text=True, check=False
    )
    return ended.stdout, ended.stderr


@pytest.fixture
def model(tmp_path: Path) -> Path:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<|end|>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(["one text of zwei Wörter"] * 4, trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_the_stand_in_and_the_package_give_the_tokens_of_single_texts(tmp_path: Path, model: Path) -> None:
    stand_in, package = run(tmp_path, model), run(tmp_path, model, first="import awkward")
    assert stand_in[1] == package[1] == ""
    assert (stand_in[0].split(" ", 1)[0], package[0].split(" ", 1)[0]) == ("False", "True")  # awkward imports numpy.ma
    assert stand_in[0].split(" ", 1)[1] == package[0].split(" ", 1)[1]


def test_who_wants_the_package_later_is_told_when_to_import_it(tmp_path: Path, model: Path) -> None:
    stdout, stderr = run(tmp_path, model, last="import awkward\nawkward.zip([])")
    assert stdout
    assert "awkward.zip: this process encodes texts with a stand-in for awkward; import awkward before" in stderr
