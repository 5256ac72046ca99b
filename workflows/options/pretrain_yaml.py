"""The file of `--yaml-cfg`, from which Megatron takes all settings of a job in place of its flags.

It is a mapping of the flags' names with underscores. Two mappings in it, `language_model` and `model_parallel`, have
what no cache depends on, but for the sizes that say how many data-parallel ranks there are.

Source: megatron/training/yaml_arguments.py, `load_yaml` and `validate_yaml`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dsindex.yaml_file import read_yaml
from workflows.options.shell_words import Word

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

PARALLEL = "model_parallel"
_VARIABLE = re.compile(r"\$\{(.*?)\}")


def read_settings(
    path: str, environment: Mapping[str, str], *, lists: Collection[str], switches: Collection[str]
) -> list[tuple[str, list[Word]]]:
    """Return the settings of such a file as flags without dashes, each with its values.

    Args:
        path: The file.
        environment: Variables of the job, which replace `${NAME}` in texts.
        lists: Names of settings that have several values, which a text has between blanks.
        switches: Names of settings that are true or false.

    Raises:
        InputError: If it cannot be read, or is not a mapping in YAML.
    """
    flags: list[tuple[str, list[Word]]] = []
    content = read_yaml(path)
    parallel = content.get(PARALLEL)
    for key, value in [*content.items(), *(parallel.items() if isinstance(parallel, dict) else ())]:
        name = str(key)
        if value is None or value is False or isinstance(value, dict) or (name in switches and not value):
            continue
        values = value if isinstance(value, list) else [value]
        if value is True or name in switches:
            values = []
        elif name in lists and isinstance(value, str):
            values = value.split()
        flags.append((name.replace("_", "-"), [_word(each, environment) for each in values]))
    return flags


def _word(value: object, environment: Mapping[str, str]) -> Word:
    text = str(value)
    if not isinstance(value, str):
        return Word(text)
    unknown = [found[0] for found in _VARIABLE.finditer(text) if found[1] not in environment]
    return Word(_VARIABLE.sub(lambda found: environment.get(found[1], found[0]), text), tuple(unknown))
