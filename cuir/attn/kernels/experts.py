"""Expert kernels of attention calls, by kind, and good settings of their const parameters."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

from ...checking.checked import Const
from ...runtime.result_cache import remember
from ...syntax.nodes import Program
from ...syntax.types import F32, DType
from . import decoding

if TYPE_CHECKING:
    from ...performance.search import Space

Kind = Literal["forward", "decode", "cache", "cache of 8 bits", "varlen"]
VARLEN, SINGLE_VARLEN = "flash_fwd_varlen_sm90", "flash_fwd_varlen_f32"


class Form(NamedTuple):
    """The properties of a call's tensors that its kernel depends on, beside its variant.

    Attributes:
        value_dim: head dim of value and O.
        kind: which expert kernel.
        consts: const parameters that are not to be chosen.
    """

    dtype: torch.dtype
    head_dim: int
    value_dim: int
    kind: Kind = "forward"
    consts: tuple[tuple[str, Const], ...] = ()


def expert(kind: Kind, dtype: DType) -> str:
    """Return the name of the expert kernel for calls of a kind."""
    import corpus

    return {
        "forward": corpus.expert(dtype.name),
        "decode": decoding.ORIGIN,
        "cache": decoding.CACHE_ORIGIN,
        "cache of 8 bits": decoding.EIGHT_BIT_ORIGIN,
        "varlen": SINGLE_VARLEN if dtype == F32 else VARLEN,
    }[kind]


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

    return corpus.kernels()[name].read_text(encoding="utf-8")


def space_of(program: Program, fixed: Mapping[str, Const]) -> Space:
    """Return good settings of the expert kernel that agree with the fixed consts."""
    import corpus

    from ...performance.search import Space

    name = corpus.expert(str(fixed["T"]))
    space = Space.parse(corpus.spaces()[name].read_text(encoding="utf-8"), f"{name}.tune.json")
    return space.restrict(program, None).narrow(fixed)


def starts_of(program: Program, fixed: Mapping[str, Const]) -> tuple[Mapping[str, Const], ...]:
    """Return settings of the expert kernel for the consts that this kernel has, the best guesses first.

    Among the tiles that fit, those of 128 queries waste the fewest rows. Over a cache a block is a multiple of the
    copy's tokens.
    """
    parameters = {p.name for p in next(iter(program.kernels().values())).params}
    space = space_of(origin_of(expert("forward", fixed["T"])), fixed)  # type: ignore[arg-type]
    starts = [start for start in space.starts if start.get("CLUSTER", 1) == 1]
    chunk = fixed.get("CHUNK", 1)
    assert isinstance(chunk, int)
    aligned = [{**start, "BN": start["BN"] - start["BN"] % chunk} for start in starts]
    return tuple({n: v for n, v in start.items() if n in parameters} for start in sorted(aligned, key=lambda s: s["BM"] != 128))


__all__ = ["Form", "Kind", "expert", "origin_of", "origin_text", "parse_shipped", "space_of", "starts_of"]
