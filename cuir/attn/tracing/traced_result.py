"""The result of tracing: expressions of CuIR, and parameters for captured values."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import cast

import torch

from ...spec.specification import Lengths, Specification
from ...syntax.nodes import ConstType, Expr, Kernel, Literal, Node, Param, Subscript
from ...syntax.types import F32, DType
from ...syntax.walk import names_read, rename_names, walk

Value = int | float | torch.Tensor


@dataclass(frozen=True)
class Parameter:
    """A captured value as a parameter of the kernel.

    It is an i32 or f32 scalar, or a tensor of i32 or f32 with `rank` dims. A tensor without dims has one.

    Attributes:
        value: None if it follows the lengths: then `key` names it in the specification's `captured`.
        constant: a tensor that the mod makes itself, from none of its arguments, on any device; each trace makes an
            equal one.
    """

    name: str
    dtype: DType
    rank: int  # 0: a scalar
    value: Value | None
    key: str | None = None
    constant: bool = False

    def with_value(self, value: Value) -> Parameter:
        """Return the parameter of another value, faster than `replace`."""
        return Parameter(self.name, self.dtype, self.rank, value, self.key, self.constant)

    def lies(self, device: torch.device) -> bool:
        """Return True if a launch on this device takes the captured value without a copy."""
        x = self.value
        kernel_dtype = torch.float32 if self.dtype == F32 else torch.int32
        return not isinstance(x, torch.Tensor) or (x.device == device and x.dtype == kernel_dtype and x.is_contiguous())

    def argument(self, spec: Specification, lengths: Lengths, device: torch.device | str = "cpu") -> Value:
        """Return its launch argument."""
        return self.on(self.value if self.value is not None else spec.values(lengths)[self.key or self.name], device)

    def on(self, value: Value, device: torch.device | str) -> Value:
        """Return a value of it as the argument of a launch on this device."""
        if isinstance(value, torch.Tensor):
            moved = value.detach().to(device=device, dtype=torch.float32 if self.dtype == F32 else torch.int32).contiguous()
            moved = moved if type(moved) is torch.Tensor else moved.as_subclass(torch.Tensor)
            return moved if moved.ndim else moved.view(1)
        return value


def with_parameters(kernel: Kernel, new: tuple[Param, ...]) -> Kernel:
    """Insert parameters behind the last one that is not a const."""
    first_const = next((i for i, p in enumerate(kernel.params) if isinstance(p.type, ConstType)), len(kernel.params))
    return replace(kernel, params=(*kernel.params[:first_const], *new, *kernel.params[first_const:]))


@dataclass(frozen=True)
class Traced:
    """A specification as CuIR.

    Attributes:
        keep: a bool expression of b, h, q, k (i32), or None for no mask.
        score: f32 expression of S (the products), b, h, q, k.
        factor: > 0: score * factor is the base-2 logit, for weights by relu the score itself.
        sink: an expression of h, or None.
        mask: the pairs that the mask_mod alone keeps, without conditions of the score_mod; None if there is no
            mask_mod.
        decided: captured numbers that decided control flow, whose values are part of the expressions.
        user_names: (the name of a captured value in the mod, its parameter's name) in the order of capture, of values that
            no expression reads as well.
        rows: the mods work on rows or views of captured tensors, so that they are valid for one pair at a time only.
        marked: score and factor with marks for derivatives (derivative_marks.py), None if they have no marks.
    """

    keep: Expr | None
    score: Expr
    factor: Expr
    parameters: tuple[Parameter, ...]
    sink: Expr | None = None
    mask: Expr | None = None
    decided: tuple[str, ...] = ()
    user_names: tuple[tuple[str, str], ...] = ()
    rows: bool = False
    marked: tuple[Expr, Expr] | None = None

    @property
    def differentiated(self) -> tuple[Expr, Expr]:
        """Score and factor for derivatives."""
        return self.marked or (self.score, self.factor)

    @property
    def reads(self) -> tuple[Subscript, ...]:
        """Each read of a captured tensor, once."""
        parts = (self.keep, self.score, self.factor, self.sink)
        return tuple(dict.fromkeys(n for e in parts if e is not None for n in walk(e) if isinstance(n, Subscript)))

    @functools.cached_property
    def own_names(self) -> dict[str, str]:
        """Names of captured values in the mods, by their parameters' names, for messages."""
        return {name: user_name for user_name, name in self.user_names}

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for readers of the kernel."""
        user_names = {name: plain(user_name) for name, user_name in self.own_names.items()}
        decided = (f"`{name}` decided control flow while tracing: its value is part of the program" for name in self.decided)
        renamed_parameters = (
            f"`{user_names[p.name]}` is a name of the kernel: its parameter is called `{p.name}`"
            for p in self.parameters
            if user_names.get(p.name, p.name) != p.name
        )
        return (*decided, *renamed_parameters)

    def rename_reserved(self, reserved: Iterable[str]) -> Traced:
        """Return the same with parameters that have no name in `reserved`.

        The result is that of another trace with these names taken, without one. The current names must be none of an
        index, a length or a function: then none of those is exchanged by mistake.
        """
        reserved, names = set(reserved), dict[str, str]()
        for user_name, name in self.user_names:
            names[name] = fresh(user_name, reserved | set(names.values()))
        if all(name == user_name_ for user_name_, name in names.items()):
            return self
        rewritten: dict[int, Node] = {}

        def rename(e: Expr | None) -> Expr | None:
            return None if e is None else cast(Expr, rename_names(e, names, rewritten))

        return replace(
            self,
            keep=rename(self.keep),
            score=cast(Expr, rename(self.score)),
            factor=cast(Expr, rename(self.factor)),
            sink=rename(self.sink),
            mask=rename(self.mask),
            marked=None if self.marked is None else cast(tuple[Expr, Expr], tuple(map(rename, self.marked))),
            parameters=tuple(replace(p, name=names[p.name]) for p in self.parameters),
            user_names=tuple((user_name, names[name]) for user_name, name in self.user_names),
        )

    def of_mask(self, values: Iterable[Value | None]) -> Traced | None:
        """Return the trace of the mask_mod alone, with new values of its parameters.

        None where it is unknown: conditions of the score_mod may leave the mask nothing to decide, and then its reads
        are no parameters.

        Args:
            values: in the order of `parameters`.
        """
        if self.mask is None:
            return None
        read = names_read(self.mask) & {name for _, name in self.user_names}
        mask_parameters = tuple(replace(p, value=v) for p, v in zip(self.parameters, values, strict=True) if p.name in read)
        return (
            None
            if len(mask_parameters) < len(read)
            else replace(self, keep=None if self.mask == Literal(True) else self.mask, parameters=mask_parameters)
        )


def plain(name: str) -> str:
    """Return a name as a program can have it."""
    base = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name) or "value"
    return f"value_{base}" if base[0].isdigit() else base


def fresh(name: str, used: Collection[str]) -> str:
    """Return a name of the kernel for a captured value.

    It is its own, or with `_` and a number behind it if that is taken; never one that a dim has (`dim_name`).
    """
    base = candidate = plain(name)
    n = 1
    while candidate in used or _OF_DIM.search(candidate):
        candidate, n = f"{base}_{n if n > 1 else ''}", n + 1
    return candidate


def dim_name(parameter: str, dim: int) -> str:
    """Return the name of a captured tensor's dim; no captured value has a name that ends so."""
    return f"{parameter}_d{dim}"


_OF_DIM = re.compile(r"_d\d+$")


__all__ = ["Parameter", "Traced", "Value", "dim_name", "fresh", "plain", "with_parameters"]
