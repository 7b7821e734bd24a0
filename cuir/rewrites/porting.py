"""Port a program to another architecture: a statement that it lacks becomes others of the same meaning.

A copy to shared memory by cp.async may land as soon as it is issued. To load and store at that place is therefore one of
the orders that the program allows already; commits and waits have nothing left to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..checking.checked import Const
from ..checking.checker import check
from ..checking.const_defaults import with_defaults
from ..ops.expressions import copy_by_registers, get_called_op
from ..ops.limits import TARGETS, Target
from ..syntax.nodes import Call, Comments, ExprStmt, For, Func, GlobalType, If, Kernel, Program, Stmt, With
from ..syntax.walk import rewrite_block
from ..text.diagnostics import CuirError
from .expression_rewrites import negate

_HALVINGS = 4  # of a const, to see whether smaller arrays fit


@dataclass(frozen=True)
class Ported:
    """Program for another architecture.

    Attributes:
        copies: number of copies that became a load and a store.
    """

    program: Program
    copies: int


def port_program(program: Program, arch: str) -> Ported:
    """Return the program with its kernels for an architecture.

    What has no rule stays, and the check of the program reports it (S217).
    """
    rewriting = _Rewriting(TARGETS[arch])
    items = tuple(
        replace(item, body=rewrite_block(item.body, rewriting.rewrite_statement))
        if isinstance(item, Func)
        else _port_kernel(item, rewriting)
        if isinstance(item, Kernel)
        else item
        for item in program.items
    )
    return Ported(replace(program, items=items), rewriting.copies)


def list_smaller_consts(program: Program, kernel: Kernel, consts: Mapping[str, Const]) -> list[tuple[str, int]]:
    """Return integer consts, each with the largest of its halves for which the program passes the check.

    Consts that are dims of tensors are left out: they say what is computed.
    """
    dims = {dim for p in kernel.params if isinstance(p.type, GlobalType) for dim in p.type.dims}
    smaller: list[tuple[str, int]] = []
    for name, value in with_defaults(kernel, consts).items():
        if name in dims or isinstance(value, bool) or not isinstance(value, int):
            continue
        for halvings in range(1, _HALVINGS + 1):
            if value >> halvings > 0 and _fits(program, kernel.name, {**consts, name: value >> halvings}):
                smaller.append((name, value >> halvings))
                break
    return smaller


def _fits(program: Program, kernel: str, consts: Mapping[str, Const]) -> bool:
    try:
        check(program, kernel, consts)
    except CuirError:
        return False
    return True


def _port_kernel(kernel: Kernel, rewriting: _Rewriting) -> Kernel:
    """Return a kernel for the architecture, with a comment that names the one it was written for."""
    arch = rewriting.target.name
    if kernel.arch == arch:
        return kernel
    body = rewrite_block(kernel.body, rewriting.rewrite_statement)
    comments = Comments((*kernel.comments.lead, f"# ported from {kernel.arch}"), kernel.comments.trail)
    return replace(kernel, arch=arch, body=body, comments=comments)


class _Rewriting:
    """Rewriting of the statements that an architecture lacks, and the count of copies."""

    def __init__(self, target: Target):
        self.target = target
        self.copies = 0

    def rewrite_statement(self, stmt: Stmt) -> Stmt | tuple[Stmt, ...]:
        """Return the statements in place of one whose blocks are rewritten already."""
        if isinstance(stmt, (For, With)) and not stmt.body:
            return ()
        if isinstance(stmt, If) and not stmt.body:
            return replace(stmt, cond=negate(stmt.cond, "not"), body=stmt.orelse, orelse=()) if stmt.orelse else ()
        op = get_called_op(stmt.value) if isinstance(stmt, ExprStmt) else None
        if op is None or self.target.has(*op.needs):
            return stmt
        effects = op.effects
        if "cp_async" in (effects.commits, effects.drains):
            return ()
        if effects.group == "cp_async":
            assert isinstance(stmt, ExprStmt) and isinstance(stmt.value, Call)
            return self._replace_copy(stmt, stmt.value, [p.name for p in op.params])
        return stmt

    def _replace_copy(self, stmt: ExprStmt, call: Call, params: list[str]) -> Stmt:
        values = dict(zip(params, call.args)) | {k.name: k.value for k in call.keywords}
        if values.keys() != set(params):
            return stmt  # the check says what the call lacks
        self.copies += 1
        box, shared = (values[name] for name in params)
        return replace(stmt, value=copy_by_registers(box, shared, call.span))


__all__ = ["Ported", "list_smaller_consts", "port_program"]
