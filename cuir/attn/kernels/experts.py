"""Programs of expert kernels, and good settings of their const parameters."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch

from ...checking.checked import Const
from ...ops.limits import TARGETS
from ...runtime.cards import find_relative
from ...runtime.result_cache import remember
from ...syntax.nodes import Program
from .card_kernels import DEFAULT, KernelTarget, Kind, choose_task, find_kernel

if TYPE_CHECKING:
    from ...performance.search import Space


class Form(NamedTuple):
    """The properties of a call's tensors that its kernel depends on, beside its variant.

    Attributes:
        value_dim: head dim of value and O.
        kind: which expert kernel.
        consts: const parameters that are not to be chosen.
        target: the GPUs that the kernel is for.
        invariant: the order of a query's sums depends on its keys alone.
    """

    dtype: torch.dtype
    head_dim: int
    value_dim: int
    kind: Kind = "forward"
    consts: tuple[tuple[str, Const], ...] = ()
    target: KernelTarget = KernelTarget()
    invariant: bool = False


@functools.cache
def origin_of(name: str) -> Program:
    """Return an expert program by its name, parsed."""
    return parse_shipped(origin_text(name), f"{name}.cuir")


def parse_shipped(text: str, file: str) -> Program:
    """Parse a program of this package, or take its tree from the cache folder."""

    def parse_text() -> Program:
        from ...syntax.parser import parse

        return parse(text, file)

    return remember("programs", [file, text], Program, parse_text)


@functools.cache
def origin_text(name: str) -> str:
    """Return the text of an expert program."""
    import corpus

    return {**corpus.programs(), **corpus.kernels()}[name].read_text(encoding="utf-8")


def space_of(program: Program, fixed: Mapping[str, Const], arch: str) -> Space:
    """Return good settings of the expert kernel of an architecture that agree with the fixed consts."""
    import corpus

    from ...performance.search import Space

    name = find_forward(fixed, arch)
    if name not in corpus.spaces():
        return Space((), ())
    space = Space.parse(corpus.spaces()[name].read_text(encoding="utf-8"), f"{name}.tune.json")
    return space.restrict(program, None).narrow(fixed)


def find_forward(fixed: Mapping[str, Const], arch: str) -> str:
    """Return the name of the forward kernel for T, D and DV."""
    dtype, *head_dims = (fixed[n] for n in ("T", "D", "DV"))
    return find_kernel(arch, choose_task("forward", *head_dims), dtype)  # type: ignore[arg-type]


def list_starts(program: Program, fixed: Mapping[str, Const], target: KernelTarget) -> tuple[tuple[Mapping[str, Const], ...], bool]:
    """Return settings of a forward kernel, the best guesses first, and whether they are for these head dims.

    Kernels by `mma` run on cards with little shared memory, so that settings of any size follow.
    """
    from ...performance.search.space import defaults
    from ...performance.selection.warp_cost import list_fitting

    space = space_of(program, fixed, target.arch)
    if target.arch == DEFAULT:
        return space.starts, space.exact
    card = target.card or find_relative(TARGETS[target.arch].capability)
    head_dims = int(fixed["D"]), int(fixed["DV"])  # type: ignore[arg-type]
    signature = {**defaults(program, None), **{n: v for n, v in fixed.items() if n == "PARTS"}}
    return (*space.starts, *list_fitting(head_dims, fixed, signature, card)), space.exact


def starts_of(program: Program, fixed: Mapping[str, Const], arch: str) -> tuple[Mapping[str, Const], ...]:
    """Return settings of the expert kernel for the consts that this kernel has, the best guesses first.

    Among the tiles that fit, those of 128 queries waste the fewest rows. Over a cache a block is a multiple of the
    copy's tokens.
    """
    parameters = {p.name for p in next(iter(program.kernels().values())).params}
    origin = origin_of(find_forward(fixed, arch))
    space = space_of(origin, fixed, arch)
    starts = [start for start in space.starts if start.get("CLUSTER", 1) == 1]
    chunk = fixed.get("CHUNK", 1)
    assert isinstance(chunk, int)
    aligned = [{**start, "BN": start["BN"] - start["BN"] % chunk} for start in starts]
    return tuple({n: v for n, v in start.items() if n in parameters} for start in sorted(aligned, key=lambda s: s["BM"] != 128))


__all__ = ["Form", "Kind", "find_forward", "list_starts", "origin_of", "origin_text", "parse_shipped", "space_of", "starts_of"]
