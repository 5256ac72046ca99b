"""transformers makes of drawn folders what the golden digests say: `python -m tests.peers.test_tokenizer_folders`
writes them again."""

import json
import tempfile
from pathlib import Path

import pytest

from dsindex.errors import TokenizerError
from dsindex.text.tokenizer import load_tokenizer
from tests.support.golden import GOLDEN
from tests.support.tokenizer_folders import FOLDERS, TEXTS, digest, write

transformers = pytest.importorskip("transformers", minversion="5.24")
pytestmark = pytest.mark.filterwarnings("ignore")


def digests(folder):
    """The digest of each folder by transformers; None for one that dsindex refuses."""
    for number in range(FOLDERS):
        path = write(folder, number)
        try:
            load_tokenizer(str(path))
        except TokenizerError:
            yield None
            continue
        peer = transformers.AutoTokenizer.from_pretrained(path)
        special = {token.content for token in peer.added_tokens_decoder.values() if token.special}
        yield digest([peer(text)["input_ids"] for text in TEXTS], len(peer), peer.eos_token, special)


def test_drawn_folders_are_the_tokenizer_of_transformers(tmp_path):
    assert list(digests(tmp_path)) == json.loads((GOLDEN / "tokenizers" / "folders.json").read_text())


if __name__ == "__main__":
    folder_digests = list(digests(Path(tempfile.mkdtemp())))
    (GOLDEN / "tokenizers" / "folders.json").write_text(json.dumps(folder_digests, indent=0) + "\n")
