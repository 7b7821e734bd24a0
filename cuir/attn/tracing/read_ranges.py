"""Checks that no pair that counts reads outside of a captured tensor.

A kernel reads 0 outside of a tensor, silently. An interval analysis decides first; where it cannot, every pair is
evaluated. The values of tensors are checked as well: integers must fit 32 bits.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Hashable, Iterator, Mapping, Sequence

import torch

from ...ops import Op
from ...ops.expression_bounds import ExpressionBounds
from ...ops.expressions import is_where, traits
from ...ops.meaning.intervals import Bounds, make_hull
from ...spec.specification import LENGTHS, Lengths, Specification
from ...syntax.nodes import NOWHERE, Binary, Call, Expr, IfExp, Literal, Name, Subscript, Unary
from ...syntax.walk import names_read
from ...text.diagnostics import CuirError
from .float64_captures import Doubles
from .mod_evaluator import Value, evaluate
from .refusal import describe_pair
from .splice_names import list_reserved_in_expressions
from .trace import trace
from .traced_result import Parameter, Traced

WIDE = (torch.int64, torch.uint32, torch.uint64)  # may hold integers that do not fit 32 bits
PAIRS = 2**24  # evaluated at a time
MOST_KNOWN = 256  # size limit of the caches of checked problems
Pairs = bool | torch.Tensor  # a bool for each pair, or one for all
_UNKNOWN = {"S", "scale"}  # a read may depend on these, but no index


def trace_without_clashes(spec: Specification) -> Traced:
    """Trace a specification without name clashes.

    No captured value gets the name of an index, a length or anything else that an expression may read.
    """
    return trace(spec, list_reserved_in_expressions())


class Reads:
    """The reads of a variant from `trace_without_clashes`."""

    def __init__(self, traced: Traced):
        self.parameters = traced.parameters
        self.keep = Literal(True) if traced.keep is None else traced.keep
        self.rest = tuple(e for e in (traced.score, traced.factor, traced.sink) if e is not None)
        self.reads = traced.reads
        self.own_names = traced.own_names
        scalar_names = {"b", "h"} | {p.name for p in traced.parameters if isinstance(p.value, int)}
        self.by_heads = tuple(r for r in traced.reads if all(names_read(i) <= scalar_names for i in r.indices))
        self.doubles = Doubles(traced)
        self._verified_keys: set[Hashable] = set()  # batches, heads, numbers and shapes for which they are inside
        self._verdicts: dict[Hashable, bool] = {}  # by lengths, numbers, and dtypes and shapes of tensors

    def check(self, values: Sequence[Value], at: Lengths, device: torch.device) -> None:
        """Check that the captured values of a call, in the order of the parameters, fit this problem.

        Waits for the device where only data there decide an index, or whether an integer fits 32 bits. Raises CuirError
        U416 for a read outside of a tensor, U417 for integers that do not fit, and for float64 whose rounding to
        float32 changes the result (float64_captures.py).
        """
        values_by_name = dict(zip((p.name for p in self.parameters), values, strict=True))
        extremes = _Extremes(values_by_name)
        for p in self.parameters:
            value = values_by_name[p.name]
            if isinstance(value, torch.Tensor) and value.dtype in WIDE and value.numel():
                low, high = extremes[p.name]
                if low < -(2**31) or high >= 2**31:
                    raise CuirError.of(
                        "U417",
                        f"`{self.own_names.get(p.name, p.name)}` holds {low if low < -(2**31) else high}, and integers of a kernel have 32 bits",
                        hint="number documents, offsets and the like anew, from 0",
                    )
        if min(at.B, at.H, at.M, at.N) == 0:
            return
        if doubtful := self._doubtful(values_by_name, extremes, at):
            self._look(doubtful, values_by_name, at, device)
        self.doubles.check(values_by_name, at, device, _pieces)

    def check_doubles(self, values: Sequence[Value], device: torch.device) -> None:
        """Check captured float64 for a problem whose lengths only the device knows.

        Raises CuirError U417.
        """
        self.doubles.check(dict(zip((p.name for p in self.parameters), values, strict=True)), None, device, _pieces)

    def passes_for_all_data(self, values: Sequence[Value], at: Lengths) -> bool:
        """Return True if `check` passes for all values of tensors of these shapes."""
        problem = at, *[(v.dtype, v.shape) if isinstance(v, torch.Tensor) else (type(v), v) for v in values]
        verdict = self._verdicts.get(problem)
        if verdict is None:
            if len(self._verdicts) >= MOST_KNOWN:
                self._verdicts.clear()
            verdict = self._verdicts[problem] = self._passes_for_all_data(values, at)
        return verdict

    def _passes_for_all_data(self, values: Sequence[Value], at: Lengths) -> bool:
        values_by_name = dict(zip((p.name for p in self.parameters), values, strict=True))
        tensors = {name: value for name, value in values_by_name.items() if isinstance(value, torch.Tensor)}
        if any(value.dtype in (*WIDE, torch.float64) for value in tensors.values()) or any(
            names_read(i) & tensors.keys() for r in self.reads for i in r.indices
        ):
            return False
        return min(at.B, at.H, at.M, at.N) == 0 or not self._doubtful(values_by_name, _Extremes(values_by_name), at)

    def check_heads(self, values: Sequence[Value], at: Lengths) -> None:
        """Check reads by batch and head alone, which a kernel makes as scalars.

        Such a read gives no 0 outside of a tensor. No element of a tensor is needed. Raises CuirError U416.
        """
        problem = at.B, at.H, *(v.shape if isinstance(v, torch.Tensor) else v for v in values)
        if min(at.B, at.H) == 0 or problem in self._verified_keys:
            return
        values_by_name = dict(zip((p.name for p in self.parameters), values, strict=True))
        bounds = _Bounds(values_by_name, _Extremes(values_by_name), at)
        places = {"b": torch.arange(at.B, dtype=torch.int32)[:, None], "h": torch.arange(at.H, dtype=torch.int32)[None]}
        for read in self.by_heads:
            assert isinstance(read.value, Name)
            if bounds.inside(read):
                continue
            outside = torch.zeros(at.B, at.H, dtype=torch.bool)
            for index, size in zip(read.indices, _tensor(values_by_name, read.value.id).shape):
                position = torch.as_tensor(evaluate(index, {**values_by_name, **places}))  # type: ignore[arg-type]
                outside |= (position < 0) | (position >= size)
            if outside.any():
                b, h = outside.nonzero()[0].tolist()
                pair = {"b": b, "h": h, "q": 0, "k": 0}
                raise self._error([read], {**values_by_name, **pair}, pair, False)
        if len(self._verified_keys) >= MOST_KNOWN:
            self._verified_keys.clear()
        self._verified_keys.add(problem)

    def check_negative(self, spec: Specification, at: Lengths) -> None:
        """Raise CuirError U416 if a pair that counts reads before the first element of a tensor.

        The lengths are these, and the values the specification's own.
        """
        arguments = {p.name: p.argument(spec, at) for p in self.parameters}
        if doubtful := self._doubtful(arguments, _Extremes(arguments), at):
            self._look(doubtful, arguments, at, torch.device("cpu"), negative=True)

    def _doubtful(self, values: Mapping[str, Value], extremes: _Extremes, at: Lengths) -> list[Subscript]:
        bounds = _Bounds(values, extremes, at)
        return [r for r in self.reads if not bounds.inside(r)]

    def _look(
        self, doubtful: list[Subscript], values: Mapping[str, Value], at: Lengths, device: torch.device, *, negative: bool = False
    ) -> None:
        """Evaluate every pair; if `negative`, only reads before a tensor's first element are refused."""
        kinds: dict[str, Parameter] = {p.name: p for p in self.parameters}
        names_values = {n: kinds[n].on(v, device) for n, v in values.items()} | {n: getattr(at, n) for n in LENGTHS}
        names = names_read(self.keep) | {n for e in self.rest for n in names_read(e)}
        for place in _pieces(at, names, device):
            poison = _Poison({**names_values, **place}, doubtful, negative)
            bad = poison.of(self.keep)
            kept_pairs = _condition(self.keep, poison.names)
            for e in self.rest:
                bad = bad | (poison.of(e) & kept_pairs)
            if isinstance(bad, torch.Tensor) and not bool(bad.any()):
                continue
            if bad is False:
                continue
            pair = _first(bad, place)
            raise self._error(doubtful, {**names_values, **pair}, pair, negative)

    def _error(self, doubtful: list[Subscript], values: Mapping[str, Value], pair: Mapping[str, int], only_negative: bool) -> CuirError:
        pair_text = describe_pair(pair)
        for read in doubtful:
            assert isinstance(read.value, Name)
            shape = _tensor(values, read.value.id).shape
            for dim, (index, size) in enumerate(zip(read.indices, shape)):
                position = int(evaluate(index, values))  # type: ignore[arg-type]
                if position < 0 or (position >= size and not only_negative):
                    name = self.own_names.get(read.value.id, read.value.id)
                    negative = "a negative index that is computed does not count from the end: add the length" if position < 0 else None
                    return CuirError.of(
                        "U416",
                        f"`{name}` has {size} elements{f' along dim {dim}' if len(shape) > 1 else ''}, and its element {position} is read {pair_text}",
                        None if read.span == NOWHERE else read.span,
                        negative or "capture a tensor that covers the lengths of this call",
                    )
        return CuirError.of("U416", f"a captured tensor is read outside of it {pair_text}")


def _tensor(values: Mapping[str, Value], name: str) -> torch.Tensor:
    value = values[name]
    assert isinstance(value, torch.Tensor)
    return value


def _condition(e: Expr, names: Mapping[str, Value]) -> Pairs:
    value = evaluate(e, names)
    return value if isinstance(value, torch.Tensor) else bool(value)


class _Extremes(dict[str, tuple[int, int]]):
    """The least and the largest element of captured integer tensors, computed on demand."""

    def __init__(self, values: Mapping[str, Value]):
        super().__init__()
        self.captured = values

    def __missing__(self, name: str) -> tuple[int, int]:
        t = _tensor(self.captured, name).detach()
        if t.dtype == torch.uint64:
            t = t.clamp(max=2**62) if t.device.type != "cpu" else torch.from_numpy(t.numpy().clip(max=2**62))
        low, high = torch.stack(torch.aminmax(t.to(torch.int64))).tolist()
        self[name] = int(low), int(high)
        return self[name]


class _Bounds(ExpressionBounds):
    """Bounds of integer expressions, for the pairs of one problem."""

    def __init__(self, values: Mapping[str, Value], extremes: _Extremes, at: Lengths):
        self.captured, self.extremes = values, extremes
        self.names: dict[str, tuple[int, int]] = {n: (0, size - 1) for n, size in (("b", at.B), ("h", at.H), ("q", at.M), ("k", at.N))}
        self.names |= {n: (getattr(at, n), getattr(at, n)) for n in LENGTHS}
        self.names |= {n: (int(v), int(v)) for n, v in values.items() if isinstance(v, int)}

    def inside(self, read: Subscript) -> bool:
        assert isinstance(read.value, Name)
        value = _tensor(self.captured, read.value.id)
        shape = value.shape if value.ndim else (1,)
        bounds = [self.bound(i) for i in read.indices]  # type: ignore[arg-type]
        return all(b is not None and b[0] >= 0 and b[1] < size for b, size in zip(bounds, shape))

    def bound_name(self, name: str) -> Bounds:
        """Return the bounds of an index of a pair, a length or a captured integer."""
        return self.names.get(name)

    def bound_read(self, e: Subscript) -> Bounds:
        """Return the bounds of a read inside of a captured tensor of integers."""
        assert isinstance(e.value, Name)
        value = _tensor(self.captured, e.value.id)
        return self.extremes[e.value.id] if self.inside(e) and not value.is_floating_point() and value.numel() else None

    def bound_result(self, e: Expr, op: Op, operands: Sequence[Bounds]) -> Bounds:
        """Return the bounds of a result; a pair that divides by 0 is found by evaluation."""
        assert op.evaluate is not None
        if op.evaluate.divides and (operands[-1] is None or operands[-1][0] <= 0 <= operands[-1][1]):
            return None
        bounds = super().bound_result(e, op, operands)
        if op.traits.complements and operands[0] is not None and operands[0][0] >= 0 and operands[0][1] <= 1:
            return make_hull(bounds, (0, 1))  # the operand may be a truth value: a mod's expressions have no types
        return bounds


class _Poison:
    """The dependence of a value on reads outside of tensors, for each pair.

    With `negative` these are reads before the first element. Operands that are irrelevant to the result do not count:
    False & x, where(c, x, y).
    """

    def __init__(self, names: Mapping[str, Value], doubtful: list[Subscript], negative: bool):
        self.names, self.negative = dict(names), negative
        self.doubtful = set(doubtful)

    def value(self, e: Expr) -> Pairs | None:
        """Return whether a condition holds, for every pair; None if it depends on the scores."""
        return None if names_read(e) & _UNKNOWN else _condition(e, self.names)

    def of(self, e: Expr) -> Pairs:
        if isinstance(e, Subscript) and isinstance(e.value, Name):
            bad: Pairs = functools.reduce(operator.or_, (self.of(i) for i in e.indices))  # type: ignore[arg-type]
            if e in self.doubtful:
                for index, size in zip(e.indices, _tensor(self.names, e.value.id).shape):
                    positions = evaluate(index, self.names)  # type: ignore[arg-type]
                    bad = bad | (positions < 0)
                    if not self.negative:
                        bad = bad | (positions >= size)
            return bad
        if isinstance(e, Binary) and (decided := traits(e).decided_by) is not None:
            left, right = self.of(e.left), self.of(e.right)
            if left is False and right is False:
                return False
            return (left & right) | (left & self._open(e.right, decided)) | (right & self._open(e.left, decided))
        if isinstance(e, Call) and is_where(e):
            return self._choice(*e.args)
        if isinstance(e, IfExp):
            return self._choice(e.cond, e.then, e.other)
        parts = {Unary: lambda: (e.operand,), Binary: lambda: (e.left, e.right), Call: lambda: e.args}.get(type(e), tuple)()  # type: ignore[union-attr]
        return functools.reduce(operator.or_, (self.of(p) for p in parts), False)

    def _open(self, e: Expr, decided: bool) -> Pairs:
        """Return the pairs at which an operand of a logical operation does not decide the result alone.

        Args:
            decided: the value of the operand that decides.
        """
        value = self.value(e)
        if value is None:
            return True
        return value != decided

    def _choice(self, cond: Expr, then: Expr, otherwise: Expr) -> Pairs:
        first, second, unsure = self.of(then), self.of(otherwise), self.of(cond)
        if first is False and second is False:
            return unsure
        value = self.value(cond)
        if value is None:
            return unsure | first | second
        return unsure | (value & first) | (~value & second if isinstance(value, torch.Tensor) else (not value) & second)


def _pieces(at: Lengths, names: set[str], device: torch.device) -> Iterator[dict[str, torch.Tensor]]:
    """Yield b, h, q, k as broadcasting index tensors [1, 1, rows, N].

    They are of PAIRS pairs or one row at a time. Dims that nothing depends on have one entry.
    """
    rows = max(1, PAIRS // at.N)
    k = (
        torch.arange(at.N, dtype=torch.int32, device=device).view(1, 1, 1, -1)
        if "k" in names
        else torch.zeros(1, 1, 1, 1, dtype=torch.int32, device=device)
    )
    for b in range(at.B if "b" in names else 1):
        for h in range(at.H if "h" in names else 1):
            for first in range(0, at.M if "q" in names else 1, rows):
                last = min(first + rows, at.M if "q" in names else 1)
                q = torch.arange(first, last, dtype=torch.int32, device=device).view(1, 1, -1, 1)
                unit = torch.ones(1, 1, 1, 1, dtype=torch.int32, device=device)
                yield {"b": unit * b, "h": unit * h, "q": q, "k": k}


def _first(bad: Pairs, place: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Return b, h, q, k of the first bad pair."""
    shape = torch.broadcast_shapes(*(x.shape for x in place.values()))
    first = torch.as_tensor(bad, device=place["q"].device).expand(shape).nonzero()[0].tolist()
    return {n: int(x[tuple(min(i, size - 1) for i, size in zip(first, x.shape))]) for n, x in place.items()}


def negative_read(spec: Specification) -> str:
    """Describe the first read before the first element of a captured tensor, "" if there is none.

    Only reads that a pair needs even with two queries and two keys count. PyTorch counts such an index from the end.
    (Lengths for which a tensor was not made read outside in a right variant, too: few are such at 2.)
    """
    try:
        reads = Reads(trace_without_clashes(spec))
    except CuirError:  # a mod that no kernel can have: a program by hand is judged by its values alone
        return ""
    try:
        reads.check_negative(spec, Lengths(B=1, H=2, HK=1, M=2, N=2))
    except CuirError as error:
        (diagnostic,) = error.diagnostics
        at = f"line {diagnostic.span.line} of {diagnostic.span.source.name}: " if diagnostic.span else ""
        return f"{at}{diagnostic.message}"
    return ""


__all__ = ["Reads", "negative_read", "trace_without_clashes"]
