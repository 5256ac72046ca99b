"""The chat templates that dsindex has for the commonest families of models, by name.

They are written for training: every reply is marked with `{% generation %}`, including what ends it. On the
conversations that they accept, their text is that of the family's published template.
"""

from __future__ import annotations

import difflib
from importlib import resources

from dsindex.errors import InputError

_FOLDER = "templates"
_SUFFIX = ".jinja"


def template_names() -> list[str]:
    """Return the names of all templates, sorted."""
    files = resources.files("dsindex.instruction").joinpath(_FOLDER).iterdir()
    return sorted(file.name.removesuffix(_SUFFIX) for file in files if file.name.endswith(_SUFFIX))


def read_template(name: str) -> str:
    """Return the jinja2 text of a template.

    Raises:
        InputError: If there is none of this name.
    """
    names = template_names()
    if name not in names:
        close = difflib.get_close_matches(name.lower(), names, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise InputError(f"expected jinja2 text or one of {', '.join(names)}, got {name!r}{hint}")
    return resources.files("dsindex.instruction").joinpath(_FOLDER, name + _SUFFIX).read_text(encoding="utf-8")
