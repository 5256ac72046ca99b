"""Declarations of options: a field of a model has all that surfaces need to offer it.

Name, type and default are the field's; `option` adds its help and how its value is shown. `dsindex.cli.options` makes
flags of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


def option(
    default: Any,  # noqa: ANN401 - of the field's type
    help: str,
    metavar: str | tuple[str, ...] | None = None,
    *,
    as_text: bool = False,
    **constraints: Any,  # noqa: ANN401 - as of pydantic's Field
) -> Any:  # noqa: ANN401 - stands for a value of the field's type
    """Declare an option as the field of a model.

    Args:
        default: `...` if it must be given.
        help: A line for `--help`.
        metavar: The placeholder of the value; several for a list of that length.
        as_text: A validator of the model reads the text of the value, rather than the type of the field.
        constraints: Arguments of pydantic's Field.
    """
    shown: dict[str, Any] = {"metavar": metavar, "as_text": as_text}
    return Field(default, description=help, json_schema_extra=shown, **constraints)


def presentation(field: FieldInfo) -> tuple[str, str | tuple[str, ...] | None, bool]:
    """Return help, metavar and `as_text` of a declared option."""
    extra: Any = field.json_schema_extra
    return str(field.description), extra["metavar"], extra["as_text"]
