"""A sample of what `python -m tests.agreement` compares: the tables hold for the installed versions."""

import random

import pytest

from dsindex.text import engines as choice
from tests.agreement import sweep
from tests.agreement.added import compare_added_tokens
from tests.agreement.engines import BothEngines
from tests.agreement.texts import long_sequence, short_sequences


@pytest.mark.quick(3)
@pytest.mark.parametrize("part", sweep.PARTS)
def test_code_points_differ_as_in_the_table(part):
    points = random.Random(part).sample(sweep.sampled_points(part, 4001), 250)
    assert sweep.sweep_code_points(part, points) == sweep.expected_points(part, points)


@pytest.mark.quick(2)
@pytest.mark.parametrize("part", sweep.PARTS)
def test_other_texts_do_not_differ(part):
    rng = random.Random(part)
    texts = [*short_sequences(2), *(long_sequence(rng) for _ in range(100))]
    for form in rng.sample(sweep.forms(part), k=min(4, len(sweep.forms(part)))):
        engines = BothEngines(next(sweep.tokenizers_of(form, part=part)), sweep.library_of(part))
        apart = sweep.table_points(part)
        texts = [text for text in texts if apart.isdisjoint(map(ord, text))]
        assert [texts[number] for number in engines.differ(texts)] == []


def test_added_tokens_that_are_taken_do_not_differ():
    assert compare_added_tokens(seed=2, count=8) == []


def test_a_code_point_that_is_not_in_the_table_is_found(monkeypatch):
    monkeypatch.setitem(choice.DIFFERING, "gpt2", "")
    assert sweep.sweep_code_points("gpt2", [0x88E, 0x88F, 0x890]) == [0x88F]
    assert sweep.expected_points("gpt2", [0x88E, 0x88F, 0x890]) == []
