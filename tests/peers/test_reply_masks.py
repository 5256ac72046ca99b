"""Masks of stock templates equal the masks of TRL, which has templates with `{% generation %}` next to them.

A chat counts for a pair of templates if both write the same text. White space, empty thoughts and the header may
differ: TRL trains on the header of some families, and on empty thoughts.
"""

import datetime
import re
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from dsindex.chat.conversations import ConversationReader
from dsindex.chat.rendering import ChatTemplate
from dsindex.errors import RecordProblem
from tests.support.drawn_chats import HARD_KINDS, KINDS, draw

SPEC = find_spec("trl")
if SPEC is None:
    pytest.skip("trl is not installed", allow_module_level=True)
FOLDER = Path(SPEC.origin).parent / "chat_templates"
NAMES = sorted(path.stem.removesuffix("_training") for path in FOLDER.glob("*_training.jinja"))
NUM_CHATS = 500
FREE = re.compile(r"\s+|<think>\s*</think>|<\|start\|>assistant|<｜Assistant｜>|<｜tool▁outputs▁end｜>")
MAY_REFUSE = {"deepseek_r1_distill", "deepseekv3", "diffusion_gemma", "glm4moe"}
"""The prompt of two opens a thought, which the template leaves out of replies; two write replies without an end."""


def trained(rendered):
    """Each character with whether it is trained on; those that may differ are left out."""
    places = {at for begin, end, _ in rendered.spans for at in range(begin, end)}
    free = {at for match in FREE.finditer(rendered.text) for at in range(*match.span())}
    return places - free


@pytest.mark.parametrize("name", NAMES)
def test_replies_are_those_of_the_training_template(name):
    variables = {"constants": {"bos_token": "<s>", "eos_token": "</s>"}, "date": datetime.date(2026, 1, 31)}
    stock = ChatTemplate((FOLDER / f"{name}.jinja").read_text(), **variables)
    plain = ChatTemplate((FOLDER / f"{name}.jinja").read_text(), **variables, reply_role=None)
    training = ChatTemplate((FOLDER / f"{name}_training.jinja").read_text(), **variables)
    kinds = Counter()
    for seed in range(NUM_CHATS):
        chat = ConversationReader().read(draw(seed, KINDS + HARD_KINDS))
        try:
            expected = training.render(chat.messages, **chat.variables)
            same_text = plain.render(chat.messages, **chat.variables).text == expected.text
        except RecordProblem:
            continue
        if not same_text:
            kinds["other text"] += 1
            continue
        try:
            rendered = stock.render(chat.messages, **chat.variables)
        except RecordProblem:
            kinds["refused"] += 1
        else:
            assert rendered.text == expected.text
            kinds["right" if trained(rendered) == trained(expected) else f"wrong: {seed}"] += 1
    print(name, dict(kinds))  # noqa: T201 - the table of the page
    assert not [kind for kind in kinds if kind.startswith("wrong")]
    assert name in MAY_REFUSE or kinds["refused"] <= kinds["right"] / 10
