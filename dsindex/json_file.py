"""Read JSON files from users that have one object."""

from __future__ import annotations

import json
from typing import Any

from dsindex.errors import InputError
from dsindex.regular_files import open_file


def read_object(path: str, *, what: str = "a JSON object") -> dict[str, Any]:
    """Read a JSON object.

    Args:
        path: The file.
        what: What it is, for messages.

    Raises:
        InputError: If the file cannot be read, or has something else.
    """
    try:
        with open_file(path) as file:
            content = json.load(file)
    except OSError as error:
        msg = f"{path}: cannot be read ({error.strerror})"
        raise InputError(msg) from error
    except (ValueError, RecursionError) as error:
        msg = f"{path}: expected {what}, got a file that is not JSON ({error})"
        raise InputError(msg) from error
    if not isinstance(content, dict):
        msg = f"{path}: expected {what}, got another JSON value"
        raise InputError(msg)
    return content
