"""Puts counters into a parsed template, where jinja2 offers no hook: bodies, loops, comparisons, `~`, slices.

The compiled template then calls `metered…` of its environment (`sandbox.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jinja2 import nodes
from jinja2.sandbox import SecurityError
from jinja2.visitor import NodeTransformer

if TYPE_CHECKING:
    from jinja2 import Environment


def add_counters(tree: nodes.Template, environment: Environment, *, price: int) -> nodes.Template:
    """Rewrite a template so that it pays for what it does.

    Args:
        tree: As parsed; changed in place.
        environment: Has the methods metered, metered_iterable, metered_pass, metered_concat and metered_slice.
        price: Of one pass of a body, to which the length of the body's own text is added.

    Returns:
        The same tree.

    Raises:
        SecurityError: If the template asks for blocks, imports or other files.
    """
    return _Counters(environment, price).visit(tree)


class _Counters(NodeTransformer):  # type: ignore[misc]
    """Put counters where jinja2 offers no hook: bodies, loops, comparisons, `~`, slices; refuse other files."""

    def __init__(self, environment: Environment, price: int) -> None:
        self._environment = environment
        self._price = price

    def visit_For(self, node: nodes.For) -> nodes.Node:
        node.iter = self._call("metered_iterable", [node.iter], node.lineno)
        return self._count_body(node)

    def _count_body(self, node: Any) -> nodes.Node:  # noqa: ANN401
        text = sum(len(data.data) for child in node.body for data in _texts(child))
        tick = self._call("metered_pass", [nodes.Const(self._price + text)], node.lineno)
        node.body.insert(0, nodes.ExprStmt(tick).set_lineno(node.lineno))
        return self.generic_visit(node)

    # Captured text (`set`, `filter`) is paid by the body around it, and at the top it is made once.
    visit_Macro = visit_CallBlock = _count_body

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        parts = nodes.List(node.nodes)
        return self.generic_visit(self._call("metered_concat", [parts], node.lineno))

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        node.expr = self._call("metered", [node.expr], node.lineno)
        for operand in node.ops:
            operand.expr = self._call("metered", [operand.expr], node.lineno)
        return self.generic_visit(node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        if isinstance(node.arg, nodes.Slice):
            bounds = [bound or nodes.Const(None) for bound in (node.arg.start, node.arg.stop, node.arg.step)]
            return self.generic_visit(self._call("metered_slice", [node.node, *bounds], node.lineno))
        return self.generic_visit(node)

    def _refuse(self, node: nodes.Node) -> nodes.Node:
        raise SecurityError(f"line {node.lineno}: a chat template cannot use blocks, imports or other files")

    visit_Block = visit_Extends = visit_Include = visit_Import = visit_FromImport = _refuse

    def _call(self, name: str, arguments: list[Any], line: int) -> nodes.Call:
        call = nodes.Call(nodes.EnvironmentAttribute(name), arguments, [], None, None)
        return call.set_lineno(line).set_environment(self._environment)


def _texts(node: nodes.Node) -> list[nodes.TemplateData]:
    return [node] if isinstance(node, nodes.TemplateData) else list(node.find_all(nodes.TemplateData))
