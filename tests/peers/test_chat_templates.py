"""transformers renders and masks as we do: our own templates, and those of a folder that CHAT_TEMPLATES names."""

import json
import os
from pathlib import Path

import pytest

from dsindex.instruction import config as named_templates
from tests.peers.chat_templates import compare_all
from tests.support.chat_tokenizers import train

pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore")

OWN = Path(named_templates.__file__).parent / "templates"
GIVEN = os.environ.get("CHAT_TEMPLATES")
NUM_CONVERSATIONS = 40
DIFFERENT = ("other tokens", "other mask", "refused by transformers", "refused by us")


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bytes")
    tokenizer_json, special_tokens, _ = train("bytes").__reduce__()[1]
    described = json.loads(tokenizer_json)
    described["post_processor"]["trim_offsets"] = False  # transformers masks blanks by trimmed offsets
    (folder / "tokenizer.json").write_text(json.dumps(described))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **special_tokens}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return [folder]


def test_own_templates_are_the_same_in_transformers(tokenizers):
    table, lines, found = compare_all(OWN, tokenizers, NUM_CONVERSATIONS)
    for counts in table.values():
        assert not [counts[kind] for kind in DIFFERENT if counts[kind]], "\n".join(lines)
        assert counts["equal"] > 5 * NUM_CONVERSATIONS
    assert found["templates with marks"] == len(named_templates.template_names())


@pytest.mark.skipif(GIVEN is None, reason="CHAT_TEMPLATES names no folder of templates")
def test_given_templates_have_the_same_tokens_in_transformers(tokenizers):
    table, lines, _ = compare_all(Path(GIVEN or ""), tokenizers, NUM_CONVERSATIONS)
    for counts in table.values():
        assert not counts["other tokens"], "\n".join(lines)
