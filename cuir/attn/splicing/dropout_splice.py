"""Dropout of attention weights as statements of a kernel.

A hash of seed, batch, head, query and key decides which weights are retained. `cuir/spec/dropout_hash.py` has the same hash
as PyTorch operations. A program without dropout is unchanged.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch

from ...checking.prelude_functions import prelude
from ...ops import build_calls as build
from ...ops.expressions import traits
from ...spec.dropout_hash import factor_of, threshold_of
from ...syntax.nodes import (
    Assign,
    Binary,
    Call,
    Constant,
    Definition,
    Expr,
    Func,
    GlobalType,
    Kernel,
    Literal,
    Name,
    Param,
    Program,
    Return,
    ScalarType,
    Stmt,
    Tuple,
    Unary,
)
from ...syntax.templates import Holes
from ...syntax.walk import names_read, rewrite, rewrite_block, walk, with_children
from ...text.diagnostics import CuirError
from ..tracing.splice_names import DROPOUT, names_of
from ..tracing.traced_result import with_parameters
from .normalisers import is_parted

SEED, THRESHOLD, FACTOR = DROPOUT
_TEXT = """\
@func
def {scrambled}(x):                      # a permutation of i32 in which each bit depends on all
    x = (x ^ x // 65536 & 65535) * 2146121005
    x = (x ^ x // 32768 & 131071) * -2073254261
    return x ^ x // 65536 & 65535

@func
def {retained}(b, h, q, k):              # does dropout retain the weight of the pair? By a hash of the seed and the pair
    head = b * H + h
    x = {scrambled}({scrambled}({seed}[0] + head * -1640531535) ^ {seed}[1]) + q * 668265263 + k * -1640531535
    y = {scrambled}({scrambled}({seed}[1] + head * -2048144777) ^ {seed}[0]) + q * -1028477379
    x = (x ^ x // 65536 & 65535) * 2146121005
    x = (x ^ x // 32768 & 131071 ^ y) * -2073254261
    return x < {threshold}
"""


def with_dropout(program: Program, target: Kernel) -> Program:
    """Add dropout of weights to a forward attention kernel; LSE stays the one of all weights.

    Raises CuirError X130 where not exactly one function returns the results of `softmax_step`, and for kernels that
    split the keys.
    """
    if is_parted(program.funcs()):
        raise _unfit(target, "its keys are shared out among CTAs")
    text = _Text(program)
    steps = 0

    def drop_weights(item: Func | Kernel, stmt: Stmt) -> Stmt | tuple[Stmt, ...]:
        nonlocal steps
        value = stmt.value if isinstance(stmt, (Return, Assign)) else None
        if not isinstance(value, Call) or value.func != Name("softmax_step"):
            return stmt
        steps += 1
        weights, state, factor = stmt.targets if isinstance(stmt, Assign) and len(stmt.targets) == 3 else ("P", "state", "alpha")
        if isinstance(stmt, Assign) and stmt.targets != (weights, state, factor):
            raise _unfit(target, "what `softmax_step` gives has no names of its own")
        first = Assign((weights, state, factor), value, comments=stmt.comments)
        retained_weights = build.where(text.call_retained(item, target), Name(weights), Literal(0.0))
        if isinstance(stmt, Assign):
            return first, Assign((weights,), retained_weights)
        return first, Return(Tuple((retained_weights, Name(state), Name(factor))))

    items: list[Definition] = []
    functions = program.funcs()
    for item in program.items:
        if isinstance(item, (Func, Kernel)):
            current = item
            body = rewrite_block(item.body, lambda stmt: drop_weights(current, stmt))  # noqa: B023
            item = item if body is item.body else replace(item, body=body)
        if isinstance(item, Func) and item.name == "softmax_end":
            item = _rescale(item, text)
        if isinstance(item, Kernel) and item.name == target.name:
            if "softmax_end" not in functions:
                items.append(_rescale(prelude().funcs()["softmax_end"], text))
            item = _with_parameters(item)
        items.append(item)
    if steps != 1:
        raise _unfit(target, f"{steps or 'no'} places call `softmax_step` as an assignment or a return")
    return text.before(items, target)


def with_dropout_gradients(program: Program, target: Kernel) -> Program:
    """Add dropout to a backward kernel: to the weights that dV reads, and to the weights' gradients.

    In between a dropped weight is negative, which costs no register. Raises CuirError X130 for a kernel without `dX = P
    * (dP - DL)`.
    """
    text = _Text(program)
    items: list[Definition] = []
    count = 0
    for item in program.items:
        if isinstance(item, (Func, Kernel)) and (name := _weights_of(item)) is not None:
            count += 1
            item = replace(item, body=_differentiate(item, name, text.call_retained(item, target)))
        if isinstance(item, Kernel) and item.name == target.name:
            item = _with_parameters(item)
        items.append(item)
    if count != 1:
        raise _unfit(target, f"{count or 'no'} places have a gradient of scores, dX = P * (dP - DL) of P = exp2(..)")
    return text.before(items, target)


def arguments_of(p: float, seed: torch.Tensor) -> dict[str, Any]:
    """Return the launch arguments for dropout with a probability and a seed."""
    return {SEED: seed, THRESHOLD: threshold_of(p), FACTOR: factor_of(p)}


class _Text:
    """The functions of the hash, under names that a program does not have."""

    def __init__(self, program: Program):
        self.names = names_of(program)
        self.scrambled, self.name = self.fresh("scrambled", "retained")

    def fresh(self, *names: str) -> tuple[str, ...]:
        new = tuple(name if name not in self.names else f"dropout_{name}" for name in names)
        self.names |= set(new)
        return new

    def call_retained(self, item: Func | Kernel, target: Kernel) -> Call:
        """Build the call for the pairs whose scores an item computes."""
        scores = [n for n in walk(item) if isinstance(n, Call) and n.func == Name("score") and len(n.args) == 5]
        if len({n.args[1:] for n in scores}) != 1:
            raise _unfit(target, f"`{item.name}` does not compute the scores of one tile of pairs, score(S, b, h, q, k)")
        return Call(Name(self.name), scores[0].args[1:])

    def before(self, items: list[Definition], target: Kernel) -> Program:
        """Insert the functions before the first item that reads them."""
        functions = Holes().fill(_TEXT.format(scrambled=self.scrambled, retained=self.name, seed=SEED, threshold=THRESHOLD))
        at = next(i for i, item in enumerate(items) if not isinstance(item, Constant) and self.name in names_read(item))
        return Program((*items[:at], *functions.values(), *items[at:]))


def _rescale(end: Func, text: _Text) -> Func:
    """Multiply O by the factor of the retained weights."""
    last = cast(Return, end.body[-1])
    if isinstance(last.value, Tuple) and len(last.value.items) == 2:
        acc, lse = last.value.items
        return replace(end, body=(*end.body[:-1], replace(last, value=Tuple((Binary("*", acc, Name(FACTOR)), lse)))))
    whole, total = text.fresh("whole", "total")
    value = Tuple((Binary("*", Name(whole), Name(FACTOR)), Name(total)))
    return replace(end, body=(*end.body[:-1], Assign((whole, total), last.value), replace(last, value=value)))


def _weights_of(item: Func | Kernel) -> str | None:
    """Find P of `P = exp2(..)` and `dX = P * (dP - DL)`; None unless each occurs once."""
    assigned = [n for n in walk(item) if isinstance(n, Assign)]
    names = [cast(Name, cast(Binary, n.value).left).id for n in assigned if _is_gradient(n)]
    exponentials = [n for n in assigned if len(names) == 1 and _is_exponential(n, names[0])]
    return names[0] if len(exponentials) == 1 else None


def _is_gradient(stmt: Stmt, name: str | None = None) -> bool:
    """Match `dX = P * (dP - DL)`, with a P of this name if one is passed."""
    value = stmt.value if isinstance(stmt, Assign) else None
    if not isinstance(value, Binary) or not traits(value).multiplies or not isinstance(value.left, Name):
        return False
    return traits(value.right).linear == (1, -1) and name in (None, value.left.id)


def _is_exponential(stmt: Stmt, name: str) -> bool:
    return isinstance(stmt, Assign) and stmt.targets == (name,) and traits(stmt.value).exponential is not None


def _differentiate(item: Func | Kernel, name: str, retained: Expr) -> tuple[Stmt, ...]:
    weights, factor = Name(name), Name(FACTOR)

    def read(node: Any) -> Any:
        """Drop and rescale weights that a cast or a product reads."""
        if not isinstance(node, Call) or not node.args or node.args[0] != weights:
            return node
        op_traits = traits(node)
        if not op_traits.product and op_traits.converts is None:
            return node
        return replace(node, args=(Binary("*", build.greatest(weights, Literal(0.0)), factor), *node.args[1:]))

    def statement(stmt: Stmt) -> Stmt | tuple[Stmt, ...]:
        if _is_exponential(stmt, name):
            return stmt, Assign((name,), build.where(retained, weights, Unary("-", weights)))
        if isinstance(stmt, Assign) and _is_gradient(stmt, name):
            difference = cast(Binary, cast(Binary, stmt.value).right)
            passed = build.where(Binary(">", weights, Literal(0.0)), Binary("*", difference.left, factor), Literal(0.0))
            return replace(stmt, value=Binary("*", build.magnitude(weights), replace(difference, left=passed)))
        return stmt

    body = rewrite_block(item.body, statement)
    return with_children(replace(item, body=body), lambda node: rewrite(node, read)).body


def _with_parameters(kernel: Kernel) -> Kernel:
    types: tuple[GlobalType | ScalarType, ...] = (GlobalType("i32", (f"{SEED}_words",)), ScalarType("i32"), ScalarType("f32"))
    return with_parameters(kernel, tuple(Param(name, kind) for name, kind in zip(DROPOUT, types, strict=True)))


def _unfit(target: Kernel, why: str) -> CuirError:
    return CuirError.of(
        "X130", f"dropout has no place in `{target.name}`: {why}", target.span, "transfer from an expert kernel of the corpus"
    )


__all__ = ["FACTOR", "SEED", "THRESHOLD", "arguments_of", "with_dropout", "with_dropout_gradients"]
