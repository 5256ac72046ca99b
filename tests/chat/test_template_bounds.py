"""Templates of strangers take bounded memory and end: known ways to grow a value, and templates drawn from them."""

import json
import random
import re
import resource
import subprocess
import sys

import pytest

from dsindex.chat import rendering
from dsindex.chat.rendering import ChatTemplate
from dsindex.errors import InputError, RecordProblem

NUM_DRAWN = 200
HEADROOM = 96 << 20
"""Bytes of address space for all renderings, beyond what the imports take."""

REFUSED = [
    "'x'.center(10**10)", "'x'.ljust(10**10)", "'x'.zfill(10**10)", "'%09999999999d' % 1", "'%*d' % (10**10, 1)",
    "'%.999999999f' % 1.5", "'%s' | format(1) | center(9)", "'{:>9999999999}'.format(1)", "v | tojson(indent=10**9)",
    "'{0:{1}}'.format('x', 10**10)", "'{0[}]:>9999999}'.format({'}': 1})", "[v] * 999999", "5 | round(10**9, 'ceil')",
    "range(99999) | map('string') | join('x' * 999)", "v | tojson(separators=('x' * 9999, ':'))", "5 | round(-10**10)",
    "[[1]] * 999 | sum(start=[])", "10 ** (10 ** 9)", "(1,) * 10**9", "'x'.encode().center(10**10)", "v * 10**9",
    "'x'.translate({120: 'y' * 99999})", "'\t'.expandtabs(10**10)", "messages * 99999", "v | truncate(10**10)",
    "('x' * 9999).replace('x', 'y' * 9999)", "('\n' * 99999) | indent(9999)", "('x' * 9999).join('y' * 9999)",
    "('{0}' * 9999).format('x' * 9999)", "('x' * 9999) | list | join('y' * 999)",
]  # fmt: skip
"""Expressions of a short text `v` whose value would be too large."""
GROWING = [
    "v ~ v", "v + v", "v * 99", "v | string | replace('x', 'xxxxxxxx')", "'xxx'.replace('', v | string)", "[v, v]",
    "(v, v)", "{'a': v, 'b': v}", "dict(a=v, b=v)", "{}.fromkeys('abcd', v)", "namespace(a=v, b=v)", "v | tojson",
    "'%s%s%s' % (v, v, v)", "'{0}{0}{0}{0}'.format(v)", "[v, v] | join(v | string)", "v | list", "[v] * 999",
    "(v | string).join([v | string] * 99)", "v | string | list | join('xxxx')", "v | string | indent(9999)",
    "range(99999) | list", "[v] | groupby(0) | list", "(v | string)[1:]", "v | string | upper", "f(v)", "messages * 99",
    "(v | string).split('x')", "v | tojson(indent=8)", "(v | string | e).title()", "'x'.join(v | string)",
]  # fmt: skip
"""Expressions of any value `v` that may be larger than it."""
STATEMENTS = [
    "{{% set ns.v = {0} %}}", "{{% for i in range(99) %}}{{% set ns.v = {0} %}}{{% endfor %}}", "{{{{ {0} }}}}",
    "{{% for i in range(99999) %}}{{{{ {0} }}}}{{% endfor %}}", "{{% if {0} == {0} %}}{{% endif %}}",
    "{{% set t %}}{{% for i in range(999) %}}{{{{ {0} }}}}{{% endfor %}}{{% endset %}}{{% set ns.v = t %}}",
    "{{% filter upper %}}{{% for i in range(999) %}}{{{{ v }}}}{{{{ {0} }}}}{{% endfor %}}{{% endfilter %}}",
    "{{% call g() %}}{{{{ {0} }}}}{{% endcall %}}", "{{% for c in {0} recursive %}}{{{{ loop(c) }}}}{{% endfor %}}",
]  # fmt: skip
BEGIN = (
    "{% set ns = namespace(v='x') %}{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}"
    "{% macro g() %}{% for i in range(999) %}{{ caller() }}{% endfor %}{% endmacro %}"
)


def of_value(expression, value):
    return re.sub(r"\bv\b", lambda _: value, expression)


def draw_template(seed):
    rng = random.Random(seed)
    source = BEGIN
    for _ in range(rng.randint(1, 6)):
        inner = of_value(rng.choice(GROWING), "ns.v") if rng.random() < 0.3 else "ns.v"
        source += rng.choice(STATEMENTS).format(of_value(rng.choice(GROWING), f"({inner})"))
    return source + "{{ ns.v }}"


def main():
    with open("/proc/self/statm") as file:
        in_use = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + HEADROOM, resource.RLIM_INFINITY))
    rendering.MAX_STEPS, rendering._MAX_CHARACTERS, rendering._MAX_VALUE = 5000, 1 << 21, 1 << 18
    reasons = []
    refused = (f"{{% set v = 'xy' %}}{{{{ {text} }}}}" for text in REFUSED)
    for source in [*refused, *map(draw_template, range(NUM_DRAWN))]:
        try:
            ChatTemplate(source).render([{"role": "user", "content": "xy"}])
        except (InputError, RecordProblem) as error:
            reasons.append(str(error))
        else:
            reasons.append("")
    print(json.dumps(reasons))  # noqa: T201 - the answer to the parent


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_templates_of_strangers_end_in_bounded_memory():
    command = [sys.executable, "-m", __name__, "main"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    reasons = json.loads(done.stdout)
    assert [text for text, reason in zip(REFUSED, reasons, strict=False) if not reason] == []
    drawn = reasons[len(REFUSED) :]
    assert drawn.count("") > 20
    assert sum("too large" in reason for reason in drawn) > 20


def test_a_template_may_use_a_large_record():
    text = "word " * 200_000
    source = (
        "{% set ns = namespace(all=[], n=0) %}{% for m in messages %}{% set ns.all = ns.all + [m.content] %}"
        "{% set ns.n = ns.n + m.content[1:] | length %}{{ '<' + m.content | replace('w', 'W') + '>' }}{% endfor %}"
        "{{ ns.n }}"
    )
    rendered = ChatTemplate(source).render([{"role": "user", "content": text}] * 20)
    assert rendered.text == f"<{text.replace('w', 'W')}>" * 20 + str(20 * (len(text) - 1))


if __name__ == "__main__":
    main()
