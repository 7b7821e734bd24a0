"""Compilation of inexact operations with noise, on which a kernel's verdict must not depend.

Noise (noise.py) enters functions with an error bound in the table, sums in another order (of rows and columns, and of products),
and multiply-adds fused or not. Exact arithmetic is left alone (cuir/checking/contraction.py). Costs nothing where it is not requested.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..checking.checked import Checked
from ..checking.contraction import collect_exact
from ..checking.decisions import bind_names, list_deciders
from ..checking.kernel_results import keep_with_kernel
from ..ops.base import Op
from ..ops.expressions import traits
from ..syntax.nodes import Binary, Expr, Name
from ..syntax.types import F32, TileType
from ..syntax.walk import IdentityKey
from .machine import Evaluate, Worker
from .noise import Noise

Compile = Callable[[Expr], Evaluate]  # compiles an expression to its value


def collect_decisions(checked: Checked) -> frozenset[IdentityKey]:
    """Return the comparisons and casts that floats decide."""
    return frozenset(IdentityKey(e) for e, _ in list_deciders(checked))


def compile_perturbed(
    checked: Checked, decisions: frozenset[IdentityKey], code_of: Compile, op: Op, args: list[Expr], e: Expr, run: Evaluate
) -> Evaluate:
    """Compile an operation with the noise of the launch.

    decisions: `deciding(checked)`; code_of: compiles an operand.
    """
    kind = checked.find_type(e)
    tile = isinstance(kind, TileType)
    dtype = getattr(kind, "dtype", None)
    if IdentityKey(e) in decisions:
        return lambda w: _get_noise(w).decide(e, run(w))
    if dtype != F32 or op.effects.accesses:
        return run
    if op.sums and len(args) == 1:
        value, dim = code_of(args[0]), 1 if op.traits.column_reduction else 2

        def sum_shuffled(w: Worker) -> torch.Tensor:
            t = value(w)
            return t.index_select(dim, _get_noise(w).order(t.shape[dim]).to(t.device)).sum(dim, keepdim=True)

        return sum_shuffled
    is_exact = IdentityKey(e) in collect_exact(checked)
    if op.ulps and not (op.traits.divides_floats and is_exact):  # an exact quotient is rounded correctly
        return lambda w: _get_noise(w).of(run(w), op.ulps)
    if is_exact or not isinstance(e, Binary):
        return run
    if op.traits.multiplies and tile and IdentityKey(e) in _collect_named(checked):
        return _keep_unrounded(code_of, e, run)
    if op.traits.linear:
        return _multiply_add(checked, code_of, e, run, tile)
    return run


def _get_noise(w: Worker) -> Noise:
    noise = w.m.launch.noise
    assert noise is not None  # code with noise is made for launches that have some
    return noise


@keep_with_kernel
def _collect_named(checked: Checked) -> frozenset[IdentityKey]:
    """Return the expressions that names are bound to."""
    return frozenset(IdentityKey(e) for bound in bind_names(checked) for values in bound.values() for _, e in values)


def _multiply_add(checked: Checked, code_of: Compile, e: Binary, run: Evaluate, tile: bool) -> Evaluate:
    """Compile x * y + z, rounded once or twice."""

    def product(x: Expr) -> bool:
        return isinstance(x, Binary) and "y" in traits(x).factors and IdentityKey(x) not in collect_exact(checked)

    first, second = e.left, e.right
    if not product(first) and not product(second):
        return _add_named(code_of, e, run) if tile and isinstance(e.left, Name) | isinstance(e.right, Name) else run
    factors, addend = (first, second) if product(first) else (second, first)
    assert isinstance(factors, Binary)
    x, y, z = code_of(factors.left), code_of(factors.right), code_of(addend)
    sign = traits(e).linear if factors is first else traits(e).linear[::-1]

    def run_either(w: Worker) -> Any:
        if not _get_noise(w).fuses(e):
            return run(w)
        if not tile:
            p, q, r = (np.asarray(v(w), np.float64) for v in (x, y, z))
            fused = (sign[0] * (p * q) + sign[1] * r).astype(np.float32)
            return fused if fused.shape else float(fused)
        a, b, c = (_to_double(v(w)) for v in (x, y, z))
        return (sign[0] * (a * b) + sign[1] * c).to(torch.float32)

    return run_either


def _keep_unrounded(code_of: Compile, e: Binary, run: Evaluate) -> Evaluate:
    """Compile a product of tiles that keeps its unrounded value beside it, where sums are contracted."""
    x, y = code_of(e.left), code_of(e.right)

    def multiply(w: Worker) -> torch.Tensor:
        if not _get_noise(w).contractions:
            return run(w)
        unrounded = _to_double(x(w)) * _to_double(y(w))
        result = unrounded.to(torch.float32)
        result.unrounded = unrounded  # type: ignore[attr-defined]
        return result

    return multiply


def _add_named(code_of: Compile, e: Binary, run: Evaluate) -> Evaluate:
    """Compile a sum of tiles of which one may be a product with a name, rounded once or twice."""
    x, y, (x_sign, y_sign) = code_of(e.left), code_of(e.right), traits(e).linear

    def add(w: Worker) -> torch.Tensor:
        noise = _get_noise(w)
        if not noise.contractions or not noise.fuses(e):
            return run(w)
        left, right = x(w), y(w)
        a, b = _find_unrounded(left), _find_unrounded(right)
        if a is None and b is None:
            return run(w)
        first = _to_double(left) if a is None else a
        second = b if a is None and b is not None else _to_double(right)  # only one product is not rounded
        return (x_sign * first + y_sign * second).to(torch.float32)

    return add


def _find_unrounded(v: Any) -> torch.Tensor | None:
    """Return the unrounded value of a product; where its tile was overwritten since, the tile's."""
    unrounded = getattr(v, "unrounded", None)
    if not isinstance(unrounded, torch.Tensor) or unrounded.shape != v.shape:
        return None
    return torch.where(unrounded.to(torch.float32) == v, unrounded, v.to(torch.float64))


def _to_double(v: Any) -> torch.Tensor:
    if isinstance(v, torch.Tensor):
        return v.to(torch.float64)
    t = torch.as_tensor(v, dtype=torch.float64)
    return t.reshape(-1, 1, 1) if t.dim() else t
