"""Imports run one way: each folder has a level, no import points up, and no modules import each other in a circle."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = [
    {"dsindex", "dsindex.errors", "dsindex.dtypes", "dsindex.json_text", "dsindex.amounts"},
    {
        "dsindex.storage",
        "dsindex.regular_files",
        "dsindex.objects",
        "dsindex.readable",
        "dsindex.range_copy",
        "dsindex.json_file",
        "dsindex.yaml_file",
        "dsindex.guarded",
        "dsindex.option_problems",
    },
    {"dsindex.kernels", "dsindex.containers"},
    {"dsindex.formats", "dsindex.text"},
    {"dsindex.indices"},
    {"dsindex.shards", "dsindex.merging"},
    {"dsindex.instruction", "dsindex.tracing"},
    {"dsindex.datasets"},
    {
        *("dsindex.checks", "dsindex.rescue", "dsindex.conversion"),
        *("dsindex.comparing", "dsindex.exports", "dsindex.inspection", "dsindex.mixing"),
    },
    {"dsindex.reporting"},
    {"workflows", "workflows.options"},
    {"workflows.execution"},
    {"workflows.progress"},
    {"workflows.state"},
    {"workflows.stages"},
    {"workflows.verification", "workflows.diagnosis", "workflows.reporting"},
    {"workflows.jobs"},
    {"workflows.cluster", "workflows.demo"},
    {"workflows.commands"},
    {"workflows.api"},
    {"workflows.cli"},
    {"workflows.__main__"},
]


def layer_of(module: str) -> int:
    """The level of the longest name in LAYERS that the module's begins with; `dsindex` itself is no beginning."""
    levels = {member: level for level, members in enumerate(LAYERS) for member in members}
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if name in levels and (name == module or name != "dsindex"):
            return levels[name]
    raise AssertionError(f"{module} has no layer: add it to LAYERS")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FACADE = "dsindex"
"""It names the functions of `workflows.api`, for type checkers and to load them when they are used."""


def imported_modules(path: Path) -> set[str]:
    """What a file imports; the facade's own names are no imports, as nothing is loaded by them."""
    found = all_imported_modules(path)
    if module_name(path) == FACADE:
        found -= {name for name in found if name.startswith(("workflows.api.", "workflows.progress.snapshot"))}
    return found


def all_imported_modules(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
            if node.module in {"dsindex", "workflows"}:
                found.update(f"{node.module}.{alias.name}" for alias in node.names if alias.name[0].islower())
    return found


SOURCES = sorted([*ROOT.glob("dsindex/**/*.py"), *ROOT.glob("workflows/**/*.py")])


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_imports_run_downwards(path: Path) -> None:
    own = layer_of(module_name(path))
    for name in imported_modules(path):
        if name.split(".")[0] in {"dsindex", "workflows"} and name != "dsindex":
            assert layer_of(name) <= own, f"{module_name(path)} imports {name}, which lies above it"


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports for type checkers count as well: two modules that need each other's types belong together."""
    modules = {module_name(path): path for path in SOURCES}
    imports = {name: imported_modules(path) & modules.keys() - {name} for name, path in modules.items()}
    while leaves := {name for name, others in imports.items() if not others}:
        imports = {name: others - leaves for name, others in imports.items() if name not in leaves}
    assert not imports, f"these import each other, or what does: {', '.join(sorted(imports))}"


@pytest.mark.parametrize("path", [p for p in SOURCES if p.is_relative_to(ROOT / "dsindex")], ids=module_name)
def test_library_knows_neither_ray_nor_command_line(path: Path) -> None:
    roots = {name.split(".")[0] for name in imported_modules(path)}
    assert not roots & {"ray", "argparse", "rich", "rich_argparse", "workflows"}


def test_library_imports_nothing_heavy() -> None:
    """`import dsindex` and its formats stay cheap: what is slow to import loads when it is used."""
    code = (
        "import sys, dsindex, dsindex.formats.mmididx, dsindex.shards.tokenize, dsindex.merging, workflows.cli;"
        "print(sorted({'ray','awkward','numba','pyarrow.json','gigatoken','jinja2','torch'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
