"""jinja2 for templates that nobody trusts: plain data in, text out, and a budget of work that cannot be overrun.

jinja2's own sandbox keeps a template from Python's internals but not from using all time and memory: `range` inside
`range`, `'a' * 10**10`, `x ~ x` sixty times, a macro that calls itself twice. No clock can stop that here: a thread
cannot be interrupted, and whether a record renders must not depend on the machine's speed. So work is counted. Every
pass of a loop, call, filter, operator and output pays for itself and for the characters and elements it reads or makes,
from a budget that depends on the input's size alone; what could make far more than it reads is measured before it is
done. `counters.py` puts the counters into a template where jinja2 has no hook.

What is not on a list here does not exist: filters, tests, functions, methods and attributes. In particular nothing that
depends on chance, time or memory addresses, so that a rendering is a function of its input.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError, Undefined, pass_context
from jinja2.ext import loopcontrols
from jinja2.filters import FILTERS
from jinja2.runtime import LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.tests import TESTS
from jinja2.utils import Namespace

from dsindex.instruct.counters import add_counters

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from jinja2.runtime import Context


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


STEP = 20
"""Price of a pass, a call or an operator, in characters: about the ratio of their times."""
ELEMENT = 5
"""Price of looking at one element of a list or dict."""
BASE_BUDGET = 5_000_000
"""Budget of a rendering without input: 250,000 steps, about a second at worst."""
BUDGET_PER_CHARACTER = 100
MAX_DEPTH = 40
"""Calls of macros inside each other; far below Python's own limit, whose reach depends on the caller."""
MAX_TEMPLATE_CHARACTERS = 200_000
MAX_INTEGER_BITS = 4096

METHODS: Mapping[type, frozenset[str]] = {
    str: _words(
        """capitalize count endswith find index isalnum isalpha isdigit islower isnumeric isspace istitle isupper join
        lower lstrip partition removeprefix removesuffix replace rfind rindex rpartition rsplit rstrip split splitlines
        startswith strip title upper"""
    ),
    dict: _words("get items keys values"),
    list: _words("count index"),
    tuple: _words("count index"),
    LoopContext: _words(
        "changed cycle depth depth0 first index index0 last length nextitem previtem revindex revindex0"
    ),
}

# Those that look at elements one by one or at none pay for their number; all others for all characters inside.
_SHALLOW_FILTERS = _words("count d default first last length list map reject rejectattr reverse select selectattr safe")
_DEEP_FILTERS = _words(
    """abs capitalize dictsort e escape float indent int items join lower max min replace sort string title trim unique
    upper"""
)
_SHALLOW_TESTS = _words(
    """boolean callable defined divisibleby even false float integer iterable mapping none number odd sequence string
    true undefined"""
)
_DEEP_TESTS = _words("!= < <= == > >= eq equalto ge greaterthan gt in le lessthan lower lt ne upper")

_SCALARS = (int, float, type(None), Undefined)
_COLLECTIONS: tuple[type[Collection[Any]], ...] = (
    list,
    tuple,
    dict,
    range,
    type({}.items()),
    type({}.keys()),
    type({}.values()),
)


class BudgetExceededError(TemplateError):  # type: ignore[misc]
    """A template asked for more work than its input can justify."""


class _Meter:
    """Work that one rendering has left, and the depth of its calls."""

    __slots__ = ("depth", "left")

    def __init__(self, budget: int) -> None:
        self.left = budget
        self.depth = 0

    def spend(self, work: int) -> None:
        self.left -= work
        if self.left < 0:
            raise BudgetExceededError("it asks for more work or output than its input can justify (an endless loop?)")

    def spend_on(self, value: object) -> None:
        """Pay for all that is inside a value, which must be plain data: anything else has no text of its own."""
        stack = [value]
        while stack:
            item = stack.pop()
            self.spend(ELEMENT + (len(item) if isinstance(item, str) else 0))
            if isinstance(item, dict):
                stack.extend(item.keys())
                stack.extend(item.values())
            elif isinstance(item, _COLLECTIONS):
                self.spend(ELEMENT * len(item))  # Before a long range becomes a list.
                stack.extend(item)
            elif isinstance(item, int) and item.bit_length() > MAX_INTEGER_BITS:
                raise BudgetExceededError("it computes with integers of more than 4096 bits")
            elif not isinstance(item, (str, *_SCALARS)):
                raise SecurityError(f"{type(item).__name__} is not data, and has no text")


class MeteredEnvironment(ImmutableSandboxedEnvironment):  # type: ignore[misc]
    """The sandbox. Make one per template; renderings in several threads each have their own budget."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self, *, functions: Mapping[str, Callable[..., Any]], extensions: list[Any]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # Else constants are computed while compiling, where nothing is counted.
            finalize=pass_context(lambda _, value: self.metered(value)),
            extensions=[loopcontrols, *extensions],
        )
        self._local = threading.local()
        self.filters = {
            **{name: self._counted(FILTERS[name], deep=False) for name in _SHALLOW_FILTERS},
            **{name: self._counted(FILTERS[name], deep=True, name=name) for name in _DEEP_FILTERS},
            "tojson": self._counted(_tojson, deep=True, name="tojson"),
        }
        self.tests = {
            **{name: self._counted(TESTS[name], deep=False) for name in _SHALLOW_TESTS},
            **{name: self._counted(TESTS[name], deep=True) for name in _DEEP_TESTS},
            "sameas": _is_same_constant,
        }
        self.globals = {"range": self._range, "namespace": Namespace, "dict": dict, **functions}
        self._callable = tuple(self.globals.values())

    def compile_template(self, source: str) -> Any:  # noqa: ANN401  (jinja2 is not typed here)
        """Compile a template with its counters.

        Raises:
            TemplateError: If it is not jinja2, or uses what does not exist here.
        """
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise BudgetExceededError(f"expected at most {MAX_TEMPLATE_CHARACTERS} characters, got {len(source)}")
        tree = add_counters(self.parse(source), self, price=STEP)
        return self.template_class.from_code(self, self.compile(tree), self.make_globals(None))

    def render(self, template: Any, variables: Mapping[str, Any]) -> str:  # noqa: ANN401
        """Render with a budget that depends on the size of `variables`, which hold JSON data only.

        Raises:
            TemplateError, or whatever the template's own mistakes raise.
        """
        sizer = _Meter(2**62)
        sizer.spend_on(variables)
        self._local.meter = _Meter(BASE_BUDGET + BUDGET_PER_CHARACTER * (2**62 - sizer.left))
        try:
            return "".join(template.root_render_func(template.new_context(dict(variables))))
        finally:
            del self._local.meter

    # What compiled templates call, because `counters.py` put the calls there.

    def metered(self, value: Any) -> Any:  # noqa: ANN401
        """Pay for all of a value and give it back."""
        self._local.meter.spend_on(value)
        return value

    def metered_iterable(self, value: Any) -> Any:  # noqa: ANN401
        """Pay for passing over a value once."""
        if not isinstance(value, (str, Undefined)) and not isinstance(value, _COLLECTIONS):
            raise SecurityError(f"cannot loop over {type(value).__name__}")
        self._local.meter.spend(STEP + _size(value))
        return value

    def metered_pass(self, work: int) -> None:
        """Pay for one pass of a body."""
        self._local.meter.spend(work)

    def metered_concat(self, values: list[Any]) -> str:
        """Pay for `a ~ b`."""
        for value in values:
            self.metered(value)
        return "".join(map(str, values))

    def metered_slice(self, value: Any, start: Any, stop: Any, step: Any) -> Any:  # noqa: ANN401
        """Pay for `a[i:j:k]`."""
        return self.metered_iterable(value)[start:stop:step]

    # What jinja2 calls.

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ANN401
        """Pay for an operator; measure a product and a power before they are made."""
        meter: _Meter = self._local.meter
        meter.spend(STEP)
        meter.spend_on(left)
        meter.spend_on(right)
        if operator == "%" and isinstance(left, str):
            raise SecurityError("formatting with % is not available in a chat template; use ~")
        if operator == "*":
            _check_product(meter, left, right)
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            meter.spend(STEP + left.bit_length() * abs(right))
            if left.bit_length() * abs(right) > MAX_INTEGER_BITS:
                raise BudgetExceededError("it computes with integers of more than 4096 bits")
        return super().call_binop(context, operator, left, right)

    def getattr(self, obj: Any, attribute: str) -> Any:  # noqa: ANN401
        """Give a key of a dict, or an attribute that is on the list for the object's type."""
        if isinstance(obj, dict) and attribute in obj and attribute not in METHODS[dict]:
            return obj[attribute]
        if isinstance(obj, Undefined) or self._is_listed(obj, attribute):
            return super().getattr(obj, attribute)
        if isinstance(obj, (dict, str, list, tuple, *_SCALARS)) and not attribute.startswith("__"):
            return self.undefined(obj=obj, name=attribute)
        # At once: jinja2's sandbox gives an object that prints as nothing.
        raise SecurityError(f"access to attribute {attribute!r} of {type(obj).__name__!r} is not allowed")

    def getitem(self, obj: Any, argument: Any) -> Any:  # noqa: ANN401
        """Give an element, or, for a text that is no key, what `getattr` gives."""
        if isinstance(obj, Undefined):
            return super().getitem(obj, argument)
        if isinstance(obj, (dict, list, tuple, str, range)) and not isinstance(argument, slice):
            try:
                return obj[argument]
            except (TypeError, LookupError):
                pass
        if isinstance(argument, str):
            return self.getattr(obj, argument)
        return self.undefined(obj=obj, name=argument)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Call what may be called, at a price, to a limited depth."""
        owner = getattr(__obj, "__self__", None)
        if owner is __self:
            return __obj(*args)  # One of the counters; jinja2 adds keywords of its own to every call.
        meter: _Meter = __self._local.meter
        meter.spend(STEP)
        is_method = owner is not None and type(owner) in METHODS and __obj.__name__ in METHODS[type(owner)]
        if is_method and not isinstance(owner, LoopContext):
            if not isinstance(owner, dict):
                meter.spend_on(owner)
                meter.spend_on(args)
            _check_growth(meter, __obj.__name__, owner, args, kwargs)
        elif not is_method and not isinstance(__obj, (Macro, LoopContext)) and __obj not in __self._callable:
            if isinstance(__obj, Undefined):
                return super().call(__context, __obj, *args, **kwargs)
            raise SecurityError(f"{type(__obj).__name__} cannot be called in a chat template")
        meter.depth += 1
        if meter.depth > MAX_DEPTH:
            raise BudgetExceededError(f"its macros call each other more than {MAX_DEPTH} deep")
        result = super().call(__context, __obj, *args, **kwargs)
        meter.depth -= 1
        meter.spend(_size(result))
        return result

    def _is_listed(self, obj: Any, attribute: str) -> bool:  # noqa: ANN401
        if isinstance(obj, Namespace):
            return not attribute.startswith("_")
        return attribute in METHODS.get(type(obj), ()) or (isinstance(obj, str) and attribute in METHODS[str])

    def _range(self, *bounds: int) -> range:
        numbers = range(*bounds)
        # Not len(): it fails for more than 2**63 numbers.
        self._local.meter.spend(max(0, (numbers.stop - numbers.start) // numbers.step))
        return numbers

    def _counted(self, function: Any, *, deep: bool, name: str = "") -> Any:  # noqa: ANN401
        """Wrap a filter or a test so that it pays for its arguments and its result."""
        skip = 1 if hasattr(function, "jinja_pass_arg") else 0

        def counted(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            meter: _Meter = self._local.meter
            meter.spend(STEP)
            if deep:
                meter.spend_on((*args[skip:], *kwargs.values()))
                _check_growth(meter, name, args[skip], args[skip + 1 :], kwargs)
            else:
                meter.spend(_size(args[skip]))
            result = function(*args, **kwargs)
            if hasattr(result, "__next__"):
                result = self._listed(result, meter)
            meter.spend(_size(result))
            return result

        if skip:
            counted.jinja_pass_arg = function.jinja_pass_arg  # type: ignore[attr-defined]
        return counted

    @staticmethod
    def _listed(iterator: Any, meter: _Meter) -> list[Any]:  # noqa: ANN401
        found = []
        for item in iterator:
            meter.spend(STEP)
            found.append(item)
        return found


def _size(value: object) -> int:
    return len(value) if isinstance(value, (str, _COLLECTIONS)) else 0


def _check_product(meter: _Meter, left: object, right: object) -> None:
    for value, factor in ((left, right), (right, left)):
        if isinstance(value, (str, list, tuple)) and isinstance(factor, int):
            meter.spend(len(value) * max(factor, 0))


def _check_growth(meter: _Meter, name: str, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ANN401
    """Pay in advance for what a filter or method makes, where it can be more than what it reads."""
    if name == "replace":
        old, new = (*args, kwargs.get("old", ""), kwargs.get("new", ""))[:2]
        times = str(value).count(str(old)) if old != "" else len(str(value)) + 1
        meter.spend(times * len(str(new)))
    elif name == "join":
        glue, parts = (value, args[0]) if isinstance(value, str) and args else (args[0] if args else "", value)
        glue = kwargs.get("d", glue)
        meter.spend(len(str(glue)) * (len(parts) if hasattr(parts, "__len__") else 0))
    elif name in {"indent", "tojson"}:
        for width in (*args, *kwargs.values()):
            if (width if isinstance(width, int) else len(width) if isinstance(width, str) else 0) > 64:
                raise BudgetExceededError(f"{name} by more than 64 characters")
        if name == "indent":
            meter.spend(64 * (str(value).count("\n") + 1))


def _tojson(
    value: Any,  # noqa: ANN401
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as chat templates expect it: without HTML escapes (jinja2's own filter has them)."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _is_same_constant(value: object, other: object) -> bool:
    """Answer `is sameas true`: of other values the identity is an accident of memory."""
    if other is None or isinstance(other, bool):
        return value is other
    raise SecurityError("sameas is for true, false and none only")
