"""Asynchronous products in flight in the program: the tiles that each wait finishes.

Groups of products finish in the order of their issue: a wait for one finishes all that were issued before it. On paths
that meet, the one with fewer products issued after a tile counts.

This comes before the IR: a wait returns the tiles that it finishes as new values, to which the builder binds their
names. In the IR, `analyses/in_flight.py` follows the values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...checking.checked import Checked
from ...checking.checked import Role as CheckedRole
from ...ops.base import PRODUCTS
from ...syntax.nodes import Assign, Call, Expr, ExprStmt, For, If, Name, Stmt
from ...syntax.walk import IdentityKey

MOST = 7  # largest useful count of wgmma.wait_group, at which ages saturate


@dataclass
class Wait:
    """A wait for products.

    Attributes:
        pending: The number that may stay in flight; None if there is nothing to wait for.
        finished: Names of the tiles that it finishes.
    """

    pending: int | None = None
    finished: dict[str, None] = field(default_factory=dict)


Waits = dict[IdentityKey, Wait]


def collect_waits(checked: Checked, role: CheckedRole) -> Waits:
    """Return the waits of a role, by call: the same text may stand at several places."""
    by_call: Waits = {}
    _block(checked, role.body, {}, by_call)
    return by_call


def _issues(checked: Checked, expr: Expr) -> bool:
    """Return whether a call issues a product."""
    return isinstance(expr, Call) and checked.call(expr).op.effects.group == PRODUCTS


def _block(checked: Checked, body: tuple[Stmt, ...], state: Mapping[str, int], by_call: Waits) -> dict[str, int]:
    ages = dict(state)  # name -> products issued after the one that makes it
    for stmt in body:
        if isinstance(stmt, Assign):
            target, value = stmt.targets[0], stmt.value
            if _issues(checked, value):
                ages = {n: min(a + 1, MOST) for n, a in ages.items()}
                ages[target] = 0
            elif isinstance(value, Name) and value.id in ages:
                ages[target] = ages[value.id]
            else:
                ages.pop(target, None)
        elif isinstance(stmt, ExprStmt) and isinstance(stmt.value, Call) and checked.call(stmt.value).op.effects.drains == PRODUCTS:
            call = stmt.value
            wait = by_call.setdefault(IdentityKey(call), Wait())
            waited = [ages[a.id] for a in checked.call(call).args.values() if isinstance(a, Name) and a.id in ages]
            if waited:
                count = min(waited)
                wait.pending = count if wait.pending is None else min(count, wait.pending)
                wait.finished |= dict.fromkeys(a.id for a in checked.call(call).args.values() if isinstance(a, Name))
                wait.finished |= dict.fromkeys(n for n, a in ages.items() if a >= wait.pending)
                ages = {n: a for n, a in ages.items() if a < count}
        elif isinstance(stmt, If):
            ages = _merge(_block(checked, stmt.body, ages, by_call), _block(checked, stmt.orelse, ages, by_call))
        elif isinstance(stmt, For):
            while (merged := _merge(ages, _block(checked, stmt.body, ages, by_call))) != ages:
                ages = merged
    return ages


def _merge(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
    return {n: min(a.get(n, MOST), b.get(n, MOST)) for n in a.keys() | b.keys()}
