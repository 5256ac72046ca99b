"""Declarations of options: a field of a model has all that surfaces need to offer it.

Name, type, default and validation are the field's; `option` adds help, metavar, group and flags. `dsindex.cli.options`
makes flags of them, `dsindex.api.boundary` parameters.
"""

from __future__ import annotations

import inspect
import types
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import Field

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

GROUPS = {
    "input and output": None,
    "data": "prefixes are paths without .bin and .idx",
    "the job's tokenizer": "for --megatron-release, all flags of pretrain_gpt.py that begin with --tokenizer, "
    "--tiktoken or --null-tokenizer, and",
    "tokenizer": None,
    "records": None,
    "tokenizer formats": None,
    "samples": "how long the job trains, in one of four ways",
    "order": None,
    "over time": "caches that go on where another job stopped, and weights that change; the job has to read them with "
    "--dataloader-type single, its default",
    "names": "Megatron finds a cache by a hash of its settings, so they must be spelled as in the job",
    "what to show": None,
    "what to trace, one of": None,
    "steps": None,
    "output": None,
    "length of the run": "default: what the amounts in tokens and epochs add up to; with shares only, until the first "
    "dataset has been read once",
    "the job": None,
    "check": None,
    "object stores": None,
    "execution": None,
    "work folder": None,
}
"""The groups of options in the order of a help text, with their descriptions. Options without a group come first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """How a surface shows an option."""

    help: str
    """A line for `--help`; if empty, the option is hidden."""
    metavar: str | tuple[str, ...] | None = None
    """The placeholder of the value; several for a list of that length."""
    group: str | None = None
    """One of GROUPS, or "" for none; by default that of the class: its `group`, or that of a class derived from it."""
    flags: tuple[str, ...] | None = None
    """Flags that do not follow from the name; empty if the command line does not offer it."""
    positional: bool = False
    each: bool = False
    """A flag of a list takes one value, and may be repeated."""
    as_text: bool = False
    """A validator of the model reads the text of the value, rather than the type of the field."""
    accepts: str | None = None
    """The type of the API's parameter, where it is wider than that of the field and its text."""


def option(
    default: Any,  # noqa: ANN401 - of the field's type
    help: str,
    metavar: str | tuple[str, ...] | None = None,
    group: str | None = None,
    **settings: Any,  # noqa: ANN401 - of Declared, or of pydantic's Field
) -> Any:  # noqa: ANN401 - stands for a value of the field's type
    """Declare an option as the field of a model.

    Args:
        default: `...` if it must be given.
        help: As of Declared, like the others.
        metavar: The placeholder of the value.
        group: As of Declared.
        settings: The rest of Declared, and constraints for pydantic's Field.
    """
    shown = {name: settings.pop(name) for name in settings.keys() & Declared.__slots__}
    declared: Any = {"declared": Declared(help=help, metavar=metavar, group=group, **shown)}
    return Field(default, description=help, json_schema_extra=declared, **settings)


def declared_options(*models: type[BaseModel]) -> dict[str, tuple[FieldInfo, Declared]]:
    """Return the options of models by name; of two of the same name, the first."""
    found: dict[str, tuple[FieldInfo, Declared]] = {}
    for model in models:
        for name, field in model.model_fields.items():
            if isinstance(field.json_schema_extra, dict):
                found.setdefault(name, (field, replace(declared(field), group=_group(model, name, declared(field)))))
    return found


def _group(model: type[BaseModel], name: str, shown: Declared) -> str | None:
    """Return the option's own group, or that of its class, or else of the next class derived from it."""
    lineage = model.__mro__
    place = next(place for place, kind in enumerate(lineage) if name in inspect.get_annotations(kind))
    known = (vars(kind).get("group") for kind in reversed(lineage[: place + 1]))
    return shown.group if shown.group is not None else next((group for group in known if group is not None), None)


def declared(field: FieldInfo) -> Declared:
    """Return how an option is shown."""
    extra: Any = field.json_schema_extra
    shown: Declared = extra["declared"]
    return shown


PATHS = {"D", "DESCRIPTION.txt", "FILE", "FILE.json", "FILE.pbin", "FOLDER", "NEW", "P", "PATH"}
"""Placeholders of paths."""
_NAMES: dict[Any, str] = {types.NoneType: "None", Fraction: "float | Fraction"}


def parameter_type(field: FieldInfo) -> str:
    """Return the type of a declared option in Python, as an annotation.

    >>> from dsindex.options.config import WorkConfig
    >>> parameter_type(WorkConfig.model_fields["work_dir"])
    'str | os.PathLike[str] | None'
    """
    shown = declared(field)
    if shown.accepts is not None:
        return shown.accepts
    kinds = [_name(kind, shown.metavar) for kind in members(field.annotation)]
    if shown.as_text and not any(kind.startswith("Literal") for kind in kinds):
        kinds.insert(len(kinds) - ("None" in kinds), "str")
    return " | ".join(dict.fromkeys(kinds))


def members(kind: Any) -> tuple[Any, ...]:  # noqa: ANN401 - an annotation
    """Return the members of a union, without what validates them."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) in {Union, types.UnionType}:
        return tuple(member for part in get_args(kind) for member in members(part))
    return (kind,)


def _name(kind: Any, metavar: object) -> str:  # noqa: ANN401 - an annotation
    if get_origin(kind) is Literal:
        return f"Literal[{', '.join(map(repr, get_args(kind)))}]"
    if get_origin(kind) is tuple:
        items = [_name(member, None) for item in get_args(kind) if item is not ... for member in members(item)]
        return f"Sequence[{' | '.join(dict.fromkeys(items))}]"
    if kind is str and metavar in PATHS:
        return "str | os.PathLike[str]"
    return _NAMES.get(kind) or str(kind.__name__)
