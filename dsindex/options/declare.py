"""Declarations of options: a field of a model has all that surfaces need to offer it.

Name, type and default are the field's; `option` adds its help and how its value is shown. `dsindex.cli.options` makes
flags of them, `dsindex.api.boundary` parameters.
"""

from __future__ import annotations

import types
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import Field

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


def option(
    default: Any,  # noqa: ANN401 - of the field's type
    help: str,
    metavar: str | tuple[str, ...] | None = None,
    *,
    as_text: bool = False,
    accepts: str | None = None,
    **constraints: Any,  # noqa: ANN401 - as of pydantic's Field
) -> Any:  # noqa: ANN401 - stands for a value of the field's type
    """Declare an option as the field of a model.

    Args:
        default: `...` if it must be given.
        help: A line for `--help`.
        metavar: The placeholder of the value; several for a list of that length.
        as_text: A validator of the model reads the text of the value, rather than the type of the field.
        accepts: The type of the API's parameter, where it is wider than that of the field and its text.
        constraints: Arguments of pydantic's Field.
    """
    shown: dict[str, Any] = {"metavar": metavar, "as_text": as_text, "accepts": accepts}
    return Field(default, description=help, json_schema_extra=shown, **constraints)


def presentation(field: FieldInfo) -> tuple[str, str | tuple[str, ...] | None, bool]:
    """Return help, metavar and `as_text` of a declared option."""
    extra: Any = field.json_schema_extra
    return str(field.description), extra["metavar"], extra["as_text"]


PATHS = {"D", "DESCRIPTION.txt", "FILE", "FILE.json", "FILE.pbin", "FOLDER", "NEW", "P", "PATH"}
"""Placeholders of paths."""
_NAMES: dict[Any, str] = {types.NoneType: "None", Fraction: "float | Fraction"}


def parameter_type(field: FieldInfo) -> str:
    """Return the type of a declared option in Python, as an annotation.

    >>> from dsindex.options.config import WorkConfig
    >>> parameter_type(WorkConfig.model_fields["work_dir"])
    'str | os.PathLike[str] | None'
    """
    extra: Any = field.json_schema_extra
    if extra["accepts"] is not None:
        return str(extra["accepts"])
    kinds = [_name(kind, extra["metavar"]) for kind in _members(field.annotation)]
    if extra["as_text"] and not any(kind.startswith("Literal") for kind in kinds):
        kinds.insert(len(kinds) - ("None" in kinds), "str")
    return " | ".join(dict.fromkeys(kinds))


def _members(kind: Any) -> tuple[Any, ...]:  # noqa: ANN401 - an annotation
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) in {Union, types.UnionType}:
        return tuple(member for part in get_args(kind) for member in _members(part))
    return (kind,)


def _name(kind: Any, metavar: object) -> str:  # noqa: ANN401 - an annotation
    if get_origin(kind) is Literal:
        return f"Literal[{', '.join(map(repr, get_args(kind)))}]"
    if get_origin(kind) is tuple:
        items = [_name(member, None) for item in get_args(kind) if item is not ... for member in _members(item)]
        return f"Sequence[{' | '.join(dict.fromkeys(items))}]"
    if kind is str and metavar in PATHS:
        return "str | os.PathLike[str]"
    return _NAMES.get(kind) or str(kind.__name__)
