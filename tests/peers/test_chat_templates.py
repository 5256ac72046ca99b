"""transformers renders and masks as we do: our own templates, and those of a folder that CHAT_TEMPLATES names.

Every template renders the same drawn conversations here and in `apply_chat_template`, with its masks.
"""

import datetime
import json
import os
from collections import Counter
from pathlib import Path

import pytest

from dsindex.chat import config as named_templates
from dsindex.chat.conversations import ConversationReader
from dsindex.chat.rendering import ChatTemplate
from dsindex.chat.tokens import MarkedText
from dsindex.errors import InputError, RecordProblem
from tests.support.chat_tokenizers import train
from tests.support.drawn_chats import NUM_CONVERSATIONS, draw

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

OWN = sorted((Path(named_templates.__file__).parent / "templates").glob("*.jinja"))
GIVEN = sorted(Path(os.environ["CHAT_TEMPLATES"]).glob("*.jinja")) if "CHAT_TEMPLATES" in os.environ else []


@pytest.fixture(scope="module")
def peer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bytes")
    described = json.loads(train("bytes")._json)
    described["post_processor"]["trim_offsets"] = False  # transformers masks blanks by trimmed offsets
    (folder / "tokenizer.json").write_text(json.dumps(described))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **train("bytes").special_tokens}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return transformers.AutoTokenizer.from_pretrained(folder)


def encode_there(peer, source, record):
    """Tokens and mask, or None, of contents as they are, joined, and as parts: templates read one of these forms."""
    options = {"chat_template": source, "return_dict": True, "return_assistant_tokens_mask": True}
    options |= {"tools": record.get("tools"), **record.get("chat_template_kwargs", {})}
    for change in (lambda content: content, join_parts, as_parts):
        messages = [
            {**message, "content": change(message["content"])} if message.get("content") is not None else message
            for message in record["messages"]
        ]
        try:
            encoding = peer.apply_chat_template(messages, **options)
        except Exception:  # noqa: BLE001 - a template may raise any
            yield None
        else:
            yield list(encoding["input_ids"]), list(encoding["assistant_masks"])


def join_parts(content):
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def as_parts(content):
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def encode_here(template, tokenizer, record):
    try:
        conversation = ConversationReader().read(record)
        rendered = template.render(conversation.messages, **conversation.variables)
    except RecordProblem:
        return None
    spans = [(begin, end) for begin, end, _ in rendered.spans]
    [masked] = tokenizer.encode_spans([MarkedText.of(rendered.text, spans)])
    return masked.tokens.tolist(), masked.mask.tolist()


def is_same(ours, theirs, tokenizer):
    """Whether tokens and masks are equal; `char_to_token` knows one of the tokens that share a character."""
    if ours is None or theirs is None or ours[0] != theirs[0]:
        return ours is theirs
    pairs = zip(ours[0], ours[1], theirs[1], strict=True)
    odd = [tokenizer.decode([token]) for token, our_bit, their_bit in pairs if our_bit != their_bit]
    return all("\ufffd" in piece for piece in odd)


@pytest.mark.parametrize("path", [*OWN, *GIVEN], ids=lambda path: path.stem)
def test_template_is_the_same_in_transformers(peer, path, record_property):
    source, tokenizer = path.read_text(), train("bytes")
    try:
        template = ChatTemplate(source, constants=tokenizer.special_tokens, date=datetime.datetime.now().date())
    except InputError as error:
        pytest.skip(str(error))
    kinds = Counter()
    for seed in range(NUM_CONVERSATIONS):
        record = draw(seed)
        ours, theirs = encode_here(template, tokenizer, record), list(encode_there(peer, source, record))
        same = any(is_same(ours, other, peer) for other in theirs)
        refused = "refused by both" if same else "refused by us alone"
        kinds[refused if ours is None else "equal" if same else f"other: {seed}"] += 1
    record_property("kinds", dict(kinds))
    print(path.stem, dict(kinds))  # noqa: T201 - the table of the page
    assert not [kind for kind in kinds if kind.startswith("other")]
    assert path in GIVEN or not kinds["refused by us alone"]
    assert path in GIVEN or kinds["equal"] > NUM_CONVERSATIONS / 10
