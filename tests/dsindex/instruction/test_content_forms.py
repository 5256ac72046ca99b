"""Contents as texts and as lists of parts, for templates that read one of them or both."""

import pytest

from dsindex.instruction.encoder import ChatTemplate

TEXTS = "{% for m in messages %}{{ m.role[0] ~ ':' ~ m.content }};{% endfor %}"
ONLY_STRINGS = "{% for m in messages %}{{ m.role[0] }}:{{ m.content if m.content is string else '' }};{% endfor %}"
PARTS = "{% for m in messages %}{{ m.role[0] }}:{% for p in m.content %}{{ p.text }}{% endfor %};{% endfor %}"
BOTH = (
    "{% for m in messages %}{{ m.role[0] }}:"
    "{{ m.content if m.content is string else m.content | map(attribute='text') | join('+') }};{% endfor %}"
)
FIRST = (
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content if m.content is string else m.content[0].text }};{% endfor %}"
)
ONE = "{% for m in messages %}{{ m.role[0] + ':' + m.content[0]['text'] + ';' }}{% endfor %}"
AS_JSON = "{% for m in messages %}{{ m.role[0] }}:{{ m.content | tojson }};{% endfor %}"
NEEDS_SYSTEM = "{{ raise_exception('no') if messages[0].role != 'system' }}" + TEXTS
USER_PARTS = (
    "{% for m in messages %}{{ m.role[0] }}:{% if m.role == 'user' %}{% for p in m.content %}{{ p.text }}{% endfor %}"
    "{% else %}{{ m.content }}{% endif %};{% endfor %}"
)


def part(text):
    return {"type": "text", "text": text}


MESSAGES = [
    {"role": "system", "content": "be"},
    {"role": "user", "content": [part("a"), part("b")]},
    {"role": "assistant", "content": [part("c")]},
    {"role": "tool", "content": [part("d"), part("e")]},
]


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param(TEXTS, "s:be;u:ab;a:c;t:de;", id="texts"),
        pytest.param(ONLY_STRINGS, "s:be;u:ab;a:c;t:de;", id="strings"),
        pytest.param(PARTS, "s:be;u:ab;a:c;t:de;", id="parts"),
        pytest.param(BOTH, "s:be;u:a+b;a:c;t:d+e;", id="both"),
        pytest.param(FIRST, "s:be;u:ab;a:c;t:de;", id="first-part"),
        pytest.param(ONE, "s:be;u:ab;a:c;t:de;", id="one-part"),
        pytest.param(AS_JSON, 's:"be";u:"ab";a:"c";t:"de";', id="json"),
        pytest.param(NEEDS_SYSTEM, "s:be;u:ab;a:c;t:de;", id="needs-a-system-message"),
        pytest.param(USER_PARTS, "s:be;u:ab;a:c;t:de;", id="each-role-has-its-form"),
    ],
)
def test_content_has_the_form_that_the_template_reads(source, expected):
    assert ChatTemplate(source).render(MESSAGES) == (expected, [])
