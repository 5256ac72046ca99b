"""`dsindex doctor`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from dsindex.amounts import count
from dsindex.json_text import show_name
from workflows.jobs.doctor import DoctorConfig, run_doctor
from workflows.progress.standard_streams import write_json, write_lines

if TYPE_CHECKING:
    import argparse
    from typing import Any

    from workflows.diagnosis.report import Diagnosis

DESCRIPTION = """\
Examine this machine: versions, CPUs, memory, limits, storage and its speed, the engine for a
tokenizer, Ray, and the cache of compiled kernels. What needs attention is marked with !, with what
to do. The output holds no tokens or passwords: paste it into a bug report.

In each folder a temporary file of at most 64 MiB is written and removed.

Exit code 0: nothing makes builds fail. 1: something does."""
EXAMPLES = (
    "dsindex doctor",
    "dsindex doctor --tokenizer-model FOLDER --path /data/out --address auto",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `dsindex doctor`."""
    parser.add_argument(
        "--tokenizer-model", metavar="PATH", help="tell the engine for this tokenizer, and why it is not the fast one"
    )
    parser.add_argument(
        "--path",
        nargs="+",
        metavar="FOLDER",
        help="folders of output or work (default: the current one and that of temporary files)",
    )
    parser.add_argument(
        "--address", metavar="A", help="ask the head of this Ray cluster: HOST:6379, or auto for this machine's"
    )
    parser.add_argument("--json", action="store_true", help="write one JSON object")


def run(options: argparse.Namespace) -> int:
    """Examine the machine, and print what was found."""
    config = DoctorConfig(
        tokenizer_model=options.tokenizer_model, path=tuple(options.path or ()), address=options.address
    )
    diagnosis = run_doctor(config)
    if options.json:
        write_json(sys.stdout, as_json(diagnosis))
    else:
        write_lines(describe_diagnosis(diagnosis))
    return 0 if diagnosis.is_fine else 1


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return a diagnosis in plain JSON types."""
    findings = [
        {"group": group.name, "message": finding.message, "breaks_builds": finding.breaks_builds}
        for group in diagnosis.groups
        for finding in group.findings
    ]
    groups = {group.name: dict(group.facts) for group in diagnosis.groups}
    return {"is_fine": diagnosis.is_fine, "groups": groups, "findings": findings}


def describe_diagnosis(diagnosis: Diagnosis) -> str:
    """Return a diagnosis as text: its groups, each followed by its findings, and a summary."""
    lines = []
    for group in diagnosis.groups:
        lines.append(group.name)
        width = max((len(name) for name, _ in group.facts if len(name) <= 16), default=0)
        lines += [f"  {show_name(name):{width}}  {show_name(value)}" for name, value in group.facts]
        lines += [f"! {show_name(' '.join(finding.message.split()))}" for finding in group.findings]
    found, breaking = len(diagnosis.findings), sum(finding.breaks_builds for finding in diagnosis.findings)
    summary = f"{count(found, 'finding')}, marked with !" if found else "nothing needs attention"
    if breaking:
        summary += f"; {breaking:,} of them {'makes' if breaking == 1 else 'make'} builds fail"
    return "\n".join([*lines, summary]) + "\n"
