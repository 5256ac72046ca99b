"""Find the wanted columns in a table's schema, and refuse those that do not hold texts."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from dsindex.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_SHOWN_COLUMNS = 12
_SHOWN_CHARACTERS = 60


def is_string(kind: pa.DataType) -> bool:
    """Tell whether values of a type are strings, or null throughout."""
    types = pa.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind) or types.is_null(kind)
    )


def is_list(kind: pa.DataType) -> bool:
    """Tell whether values of a type are lists with items in a row; the views of lists, which may overlap, are not."""
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def is_text(kind: pa.DataType) -> bool:
    """Tell whether values of a type are strings or lists of strings."""
    return is_string(kind) or (is_list(kind) and is_string(kind.value_type))


def find_columns(
    path: str,
    schema: pa.Schema,
    columns: Mapping[str, tuple[str, ...]],
    *,
    is_wanted: Callable[[pa.DataType], bool] = is_text,
    wanted: str = "strings or of lists of strings",
) -> dict[str, tuple[int, ...]]:
    """Find where each wanted column is.

    A column whose own name is the fields joined with dots is found, too, unless the first field is a column.

    Args:
        path: The file, for messages.
        schema: Its columns.
        columns: Names of the fields that lead to each wanted column.
        is_wanted: Tells whether a type is acceptable.
        wanted: Those types in words.

    Returns:
        For each wanted column the number of the column, and of the field at each level below.

    Raises:
        InputError: If a column is missing, is there twice, or has another type.
    """
    found = {}
    for name, fields in columns.items():
        places, kind = _find(path, schema, name, fields)
        if not is_wanted(kind):
            msg = f"{path}: expected a column of {wanted} at {name!r}, got {_shown(str(kind))}; {_choice(schema)}"
            raise InputError(msg)
        found[name] = places
    return found


def require_different_names(path: str, schema: pa.Schema) -> None:
    """Refuse columns, or fields of a struct, of the same name: an object of JSON would have only the last of them.

    Columns without names are no reason, since commas at the end of CSV's lines make such.

    Raises:
        InputError: Naming the first one found.
    """
    kinds = [pa.struct(list(schema))]
    while kinds:
        kind = kinds.pop()
        inner = [kind.field(number) for number in range(kind.num_fields)] if pa.types.is_nested(kind) else []
        kinds += [field.type for field in inner]
        names = Counter(field.name for field in inner) if pa.types.is_struct(kind) else Counter()
        for name, count in names.items():
            if name and count > 1:
                msg = f"{path}: expected columns of different names, got {count} of the name {name!r}; rename them"
                raise InputError(msg)


def check_names(schema: pa.Schema) -> None:
    """Read all names, at every level.

    Raises:
        UnicodeDecodeError: If one is not UTF-8.
    """
    fields = list(schema)
    while fields:
        field = fields.pop()
        field.name  # noqa: B018 - reading it decodes it
        kind = field.type
        if pa.types.is_nested(kind):
            fields += [kind.field(number) for number in range(kind.num_fields)]


def joined_fields(schema: pa.Schema, fields: tuple[str, ...]) -> tuple[str, ...]:
    """Return the fields, or the one column whose name they make with dots between them."""
    joined = ".".join(fields)
    return (joined,) if fields[0] not in schema.names and joined in schema.names else fields


def nested_column(batch: pa.RecordBatch, places: tuple[int, ...]) -> pa.Array:
    """Return a column; it is null wherever a struct around it is null.

    Args:
        batch: Rows of a table.
        places: As `find_columns` returns them.
    """
    array = batch.column(places[0])
    return pc.struct_field(array, list(places[1:])) if len(places) > 1 else array


def _find(path: str, schema: pa.Schema, name: str, fields: tuple[str, ...]) -> tuple[tuple[int, ...], pa.DataType]:
    kind = pa.struct(list(schema))
    places: list[int] = []
    for depth, field in enumerate(joined_fields(schema, fields)):
        outer = ".".join(fields[:depth])
        if not pa.types.is_struct(kind):
            raise InputError(
                f"{path}: expected a column of structs at {outer!r}, to read {name!r}, got {_shown(str(kind))}; "
                f"{_choice(schema)}"
            )
        names = [kind.field(number).name for number in range(kind.num_fields)]
        if names.count(field) != 1:
            got = "no such column" if field not in names else f"{names.count(field)} columns of that name"
            raise InputError(f"{path}: expected the column {name!r}, got {got}; {_choice(schema)}")
        places.append(names.index(field))
        kind = kind.field(places[-1]).type
    return tuple(places), kind


def _choice(schema: pa.Schema) -> str:
    """Return the remedy for a wrong column: those that there are."""
    if not len(schema):
        return "it has no columns"
    shown = [f"{_shown(field.name)} ({_shown(str(field.type))})" for field in list(schema)[:_SHOWN_COLUMNS]]
    more = f" and {len(schema) - _SHOWN_COLUMNS} more" if len(schema) > _SHOWN_COLUMNS else ""
    return f"it has the columns {', '.join(shown)}{more}; choose with --json-keys"


def _shown(text: str) -> str:
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
