"""The `lower` entry point: a checked kernel to one CUDA C++ file by way of the tile IR and its passes."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from xdsl.dialects.builtin import FileLineColLoc
from xdsl.ir import Operation

from ..checking.checked import Checked
from ..checking.checker import check
from ..syntax.caller_values import program_of
from ..syntax.nodes import For, If, Program, Stmt
from ..text.source import Span
from .analyses import Facts
from .analyses.uniformity import runs_on_one_lane
from .cuda.frame import KernelPrinter
from .ir.build_ir import build
from .ir.ops import Kernel
from .lowered import Cuda
from .passes.pipeline import optimise
from .select.explanation import Choice, explain_kernel

Source = Checked | Program | str | os.PathLike[str]


def lower(checked: Source, without: Collection[str] = ()) -> Cuda:
    """Emit CUDA C++ for a kernel; the same kernel always gives the same text.

    Args:
        checked: A checked kernel, a program, or the path of its file, whose consts have defaults.
        without: Names of passes to leave out (see `passes.pipeline`).

    Raises: CuirError (codes L0xx) naming the statement.
    """
    checked = to_checked(checked)
    kernel = build(checked)
    optimise(kernel, without)
    return print_kernel(kernel, checked)


def explain(source: Source, without: Collection[str] = ()) -> list[Choice]:
    """Return what the compiler chooses for each line of a program, and why.

    Args:
        source: A checked kernel, a program, or the path of its file, whose consts have defaults.
        without: Names of passes to leave out.
    """
    checked = to_checked(source)
    kernel, spans = build(checked), _collect_spans(checked)
    optimise(kernel, without)

    def find_span(op: Operation) -> Span:
        at = op.location
        key = (at.filename.data, at.line.data, at.column.data) if isinstance(at, FileLineColLoc) else ("", 0, 0)
        return spans.get(key, checked.origin.span)

    return explain_kernel(kernel, find_span)


def print_kernel(kernel: Kernel, checked: Checked) -> Cuda:
    """Return the CUDA of IR that has been through the passes."""
    single_lane_roles = frozenset(role.symbol.data for role in kernel.roles if runs_on_one_lane(role))
    return KernelPrinter(kernel, checked, Facts(kernel), single_lane_roles, _collect_spans(checked)).emit()


def to_checked(source: Source) -> Checked:
    """Return a checked kernel as it is, and check a program or a file."""
    return source if isinstance(source, Checked) else check(program_of(source, "lower"))


def _collect_spans(checked: Checked) -> Mapping[tuple[str, int, int], Span]:
    """Return the spans of statements by file, line and column, which is the content of an IR location."""
    spans: dict[tuple[str, int, int], Span] = {}

    def visit(body: tuple[Stmt, ...]) -> None:
        for stmt in body:
            spans.setdefault((stmt.span.source.name, stmt.span.line, stmt.span.column), stmt.span)
            if isinstance(stmt, (For, If)):
                visit(stmt.body)
            if isinstance(stmt, If):
                visit(stmt.orelse)

    visit(checked.declarations)
    for role in checked.roles:
        spans.setdefault((role.span.source.name, role.span.line, role.span.column), role.span)
        visit(role.body)
    if checked.tiles is not None:
        spans.setdefault((checked.tiles.span.source.name, checked.tiles.span.line, checked.tiles.span.column), checked.tiles.span)
    return spans
