"""Imports run one way: each room of the house has a level, no import points up, and no modules import in a circle."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LEVELS = ["_version", "errors", "messages", "store", "formats", "text", "chat", "megatron", "datasets", "options",
          "runtime", "commands", "cli", "dsindex", "__main__"]  # fmt: skip
"""From the bottom: a room, or a module beside the rooms, imports what stands before it and its own."""


def room_of(module):
    return module.split(".")[1] if "." in module else module


def imported_modules(path):
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


PATHS = sorted(ROOT.glob("dsindex/**/*.py"))
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in PATHS}
IMPORTS = {name: imported_modules(path) for name, path in MODULES.items()}


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_run_downwards(name):
    level = LEVELS.index(room_of(name))
    for other in IMPORTS[name] & MODULES.keys():
        assert LEVELS.index(room_of(other)) <= level, f"{name} imports {other}, which lies above it"


def test_no_modules_import_each_other_in_a_circle():
    """Imports for type checkers count as well: two modules that need each other's types belong together."""
    imports = {name: (imported & MODULES.keys()) - {name} for name, imported in IMPORTS.items()}
    while leaves := {name for name, imported in imports.items() if not imported}:
        imports = {name: imported - leaves for name, imported in imports.items() if name not in leaves}
    assert not imports, f"these import each other, or what does: {', '.join(sorted(imports))}"


def test_only_one_module_imports_ray_and_only_the_command_line_parses():
    assert {name for name, imported in IMPORTS.items() if {"ray", "ray.init"} & imported} <= {"dsindex.runtime.ray"}
    assert {room_of(name) for name, imported in IMPORTS.items() if "argparse" in imported} == {"cli"}


def test_only_the_store_tells_objects_from_files():
    kinds = re.compile(r"\bis_url\(|is_in_bucket|holds_writes|isinstance\(.*(Url|Store)\b|://\" in ")
    assert {
        name for name, path in MODULES.items() if room_of(name) != "store" and kinds.search(path.read_text())
    } == set()
