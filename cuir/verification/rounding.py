"""Rounding that verification follows: of expected numbers, within a kernel, and of integers that follow from floats.

Expected numbers are rounded to an output's dtype; 8-bit floats saturate. A kernel may round intermediate values to
16 bits: weights of a product, sums in f16. Integer outputs may have the values that float64 or float32 give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from ..arguments.binding import TORCH
from ..checking.checked import BoundCall, Checked
from ..checking.kernel_results import keep_with_kernel
from ..checking.tensor_modes import has_addition
from ..checking.views import root_name
from ..syntax.nodes import Assign, Attribute, Binary, Call, Expr, IfExp, Name, Node, Subscript, Unary
from ..syntax.types import BF16, BOOL, F16, I32, TileType
from ..syntax.walk import IdentityKey, walk
from ..text.diagnostics import CuirError
from .error_bounds import SingleError, Undisturbed

_SATURATING = frozenset(stored for dtype, stored in TORCH.items() if dtype.saturates)

_EXPONENT = 0x7FF << 52  # the bits of a float64's exponent


def saturates(dtype: torch.dtype) -> bool:
    """Return whether numbers beyond a dtype's range become its largest number."""
    return dtype in _SATURATING


def saturate(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Clamp numbers to the range of a saturating dtype; others stay as they are."""
    if not saturates(dtype):
        return x
    largest = torch.finfo(dtype).max
    return x.clamp(-largest, largest)


def round_to(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round to the nearest numbers of the dtype, as a kernel's cast does."""
    return saturate(x, dtype).to(dtype)


def half_steps(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return half of the distance to the next number of the dtype, for the larger of both elements."""
    limits = torch.finfo(x.dtype)
    larger = torch.maximum(x.double().abs(), y.double().abs()).clamp(limits.smallest_normal, limits.max)
    powers = (larger.view(torch.int64) & _EXPONENT).view(torch.float64)  # the powers of 2 below, much faster than frexp and ldexp
    return powers * (limits.eps / 2)


_HALF = (F16, BF16)


@keep_with_kernel
def rounds_between(checked: Checked) -> bool:
    """Return whether a computed value that is rounded to f16 or bf16 is used for anything but a store.

    If not, all intermediate values are in f32, or inputs.
    """
    return _Flow(checked).rounds()


@keep_with_kernel
def rounds_for_products(checked: Checked) -> bool:
    """Return whether values are rounded to f16 or bf16 only as operands of products, as these require.

    Then the function in that dtype overflows where the kernel may.
    """
    flow = _Flow(checked)
    return flow.rounds() and not flow.rounds(besides_products=True)


class _Flow:
    """Names and memory that hold computed and rounded values, whatever the order of statements."""

    def __init__(self, checked: Checked):
        self.checked = checked
        self.tensors = {t.name: t.dtype for t in checked.tensors}
        self.holders: set[str] = set()

    def rounds(self, besides_products: bool = False) -> bool:
        nodes = [n for role in self.checked.roles for stmt in role.body for n in walk(stmt)]
        size = -1
        while len(self.holders) > size:
            size = len(self.holders)
            for node in nodes:
                if isinstance(node, Assign) and self.is_rounded(node.value):
                    self.holders.update(node.targets)
                elif isinstance(node, Call) and (bound := self.checked.find_call(node)) is not None:
                    self.holders.update(self.list_written(bound))
        calls = [bound for n in nodes if (bound := self.checked.find_call(n)) is not None]
        left_out = {IdentityKey(e) for b in calls for e, _ in self.list_places(b).values()}  # accesses are judged by their calls
        if besides_products:
            left_out |= {
                IdentityKey(n) for n in nodes if (b := self.checked.find_call(n)) is not None and b.op.sums and len(b.op.params) > 1
            }
        return any(self.uses_rounded(n) for n in nodes if IdentityKey(n) not in left_out)

    def list_written(self, bound: BoundCall) -> Iterator[str]:
        """Yield the roots of the places into which the call moves a rounded value."""
        places = self.list_places(bound)
        moved = any(self.is_rounded(e) for n, e in bound.args.items() if n not in places) or any(
            root_name(e) in self.holders for e, mode in places.values() if mode == "read"
        )
        for e, mode in places.values():
            if moved and mode != "read" and (root := root_name(e)) is not None:
                yield root

    def list_places(self, bound: BoundCall) -> dict[str, tuple[Expr, str]]:
        """Return arguments in memory, with their access mode; an operand of a product may be a tile instead."""
        named = {a.arg: (bound.args[a.arg], a.mode) for a in bound.op.effects.accesses if a.arg in bound.args}
        return {n: (e, mode) for n, (e, mode) in named.items() if mode != "read" or not isinstance(self.checked.find_type(e), TileType)}

    def is_rounded(self, e: Node) -> bool:
        """Return whether the expression is a 16-bit tile that was computed here."""
        if isinstance(e, Name):
            return e.id in self.holders and self.is_half(e)
        if not self.is_half(e) or isinstance(e, (Subscript, Attribute)):
            return False
        if isinstance(e, Call):
            bound = self.checked.find_call(e)
            if bound is not None and self.loads(bound):
                return any(root_name(place) in self.holders for place, _ in self.list_places(bound).values())
            if bound is not None and self.converts_integers(bound):
                return False
            return bound is None or (
                not bound.op.effects.accesses and any(isinstance(self.checked.find_type(x), TileType) for x in bound.args.values())
            )
        return isinstance(e, (Binary, Unary, IfExp))

    def converts_integers(self, bound: BoundCall) -> bool:
        """Return whether the call converts integers or truth values, in steps or at once.

        A position beyond 2,048 is no number of f16: that is an error of the kernel, not of the dtype of its data.
        """
        if not bound.op.traits.converts:
            return False
        value = next(iter(bound.args.values()))
        inner = self.checked.find_call(value) if isinstance(value, Call) else None
        if getattr(self.checked.find_type(value), "dtype", None) in (I32, BOOL):
            return True
        return inner is not None and self.converts_integers(inner)

    def loads(self, bound: BoundCall) -> bool:
        """Return whether the call only loads a tile from memory unchanged."""
        places = self.list_places(bound)
        return (
            len(places) == 1 == len(bound.op.effects.accesses) and not bound.op.sums and {mode for _, mode in places.values()} == {"read"}
        )

    def is_half(self, e: Node) -> bool:
        kind = self.checked.find_type(e)
        return getattr(kind, "dtype", None) in _HALF

    def uses_rounded(self, node: Node) -> bool:
        """Return whether the node computes with a rounded value."""
        if isinstance(node, Binary):
            return self.is_rounded(node.left) or self.is_rounded(node.right)
        if isinstance(node, Unary):
            return self.is_rounded(node.operand)
        if isinstance(node, Subscript):  # a gather of what the kernel wrote
            return isinstance(self.checked.find_type(node), TileType) and root_name(node) in self.holders and self.is_half(node)
        if not isinstance(node, Call) or (bound := self.checked.find_call(node)) is None:
            return False
        if self.loads(bound):
            return False  # uses of the tile are judged separately
        places = self.list_places(bound)
        stores = [mode for _, mode in places.values() if mode != "read"]
        if any(root_name(e) in self.holders and mode == "read" for e, mode in places.values()) and not stores:
            return True  # read back, or an operand of a product
        if any(mode == "add" or has_addition(bound) for _, mode in places.values()) and any(self.is_half(e) for e, _ in places.values()):
            return True  # each sum is rounded
        return not stores and not self.is_half(node) and any(self.is_rounded(e) for n, e in bound.args.items() if n not in places)


_WORD = 2.0**31
_FILLS = (0, 77, -77)
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
ORDERS = 4  # evaluations with other orders of sums


def collect_right_integers(single: SingleError, name: str, tf32: bool) -> Iterator[torch.Tensor]:
    """Yield an integer output as float32 gives it: plain, with sums in other orders, with factors in TF32.

    An exact quotient or product stays exact: a neighbouring integer is wrong.
    """
    yield single.plain[name]
    evaluations: list[Callable[[], Any]] = [lambda seed=seed: _evaluate_reordered(single, seed) for seed in range(ORDERS)]  # type: ignore[misc]
    if tf32:
        evaluations.append(lambda: single.tf32_undecided())
    for evaluate in evaluations:
        try:
            for outputs in evaluate():
                yield outputs[name]
        except CuirError:  # a branch in Python may be taken otherwise, and fail
            continue


def find_out_of_range(single: SingleError, name: str) -> torch.Tensor:
    """Return elements that depend on an integer made of NaN, an infinity, or a float beyond 32 bits.

    They are undefined. So are the results of conversions, and the exponents of `frexp`, which C leaves undefined there.
    """
    evaluated = []
    for number in _FILLS:
        with _Converted(number):
            evaluated.append(single.spec.single(single.inputs, single.outputs)[name])
    first = evaluated[0]
    return torch.stack([(x != first) & ~(x.isnan() & first.isnan()) for x in evaluated[1:]]).any(0)


def _evaluate_reordered(single: SingleError, seed: int) -> list[Any]:
    with _OtherOrder(torch.Generator().manual_seed(seed)):
        return [single.spec.single(single.inputs, single.outputs)]


class _Converted(Undisturbed):
    """Mode that replaces each integer converted from a float outside of its range."""

    def __init__(self, number: int):
        super().__init__()
        self.number = number

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result, name = func(*args, **(kwargs or {})), func.overloadpacket.__name__
        if name == "_to_copy" and args[0].is_floating_point() and result.dtype in _INTEGERS:
            return self.replace_outside((args[0] >= -_WORD) & (args[0] < _WORD), result)
        if name == "frexp":
            mantissa, exponent = result
            return mantissa, self.replace_outside(args[0].isfinite(), exponent)
        return result

    def replace_outside(self, is_inside: torch.Tensor, integers: torch.Tensor) -> torch.Tensor:
        return torch.where(is_inside, integers, torch.tensor(self.number).to(integers.dtype))


class _OtherOrder(Undisturbed):
    """Mode that adds up the terms of sums and matrix products in another order."""

    def __init__(self, generator: torch.Generator):
        super().__init__()
        self.generator = generator

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name in ("sum", "mean") and args[0].is_floating_point():
            x, dims = args[0], args[1] if len(args) > 1 and args[1] is not None else None
            reduced_dims = range(x.dim()) if dims is None or not isinstance(dims, (list, tuple)) or not dims else dims
            for d in reduced_dims:
                x = x.index_select(d, self.order(x.shape[d]))
            args = (x, *args[1:])
        elif name in ("mm", "bmm", "mv", "dot", "addmm", "baddbmm", "addmv"):
            first = 1 if name in ("addmm", "baddbmm", "addmv") else 0
            a, b = args[first : first + 2]
            order = self.order(a.shape[-1])
            b = b.index_select(0 if b.dim() < 3 else 1, order)
            args = (*args[:first], a.index_select(-1, order), b, *args[first + 2 :])
        return func(*args, **(kwargs or {}))

    def order(self, n: int) -> torch.Tensor:
        return torch.randperm(n, generator=self.generator)


__all__ = [
    "collect_right_integers",
    "find_out_of_range",
    "half_steps",
    "round_to",
    "rounds_between",
    "rounds_for_products",
    "saturate",
    "saturates",
]
