"""Few sequences and key heads: the keys of each are shared out among several clusters, whose results one more launch joins. Owns that launch.

A cluster has eight CTAs at most, so eight key heads keep sixty-four multiprocessors at work, and one keeps eight. Clusters know nothing of each other: each gives O and LSE over its share
of the keys, in f32, and joined_shares.cuir weighs them by their LSE.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..checking.checked import Checked, Const
from ..checking.checker import check
from ..interp import run
from ..syntax.parser import parse

if TYPE_CHECKING:
    from ..runtime.compiled import CompiledKernel

PROGRAM = Path(__file__).with_name("joined_shares.cuir")


def shares(consts: Mapping[str, Const]) -> int:
    """Among how many clusters a setting shares out the keys of a sequence."""
    count = consts.get("SPLITS", 1)
    assert isinstance(count, int)
    return count


def given_to(given: Mapping[str, Any], consts: Mapping[str, Const]) -> Mapping[str, Any]:
    """The arguments of a launch under a setting: with O [B * shares, H, M, DV], f32, in the place of O [B, H, M, DV] where there are several."""
    o, count = given["O"], shares(consts)
    if count == 1:
        return given
    return {**given, "O": torch.empty(o.shape[0] * count, *o.shape[1:], dtype=torch.float32, device=o.device)}


def joined(parts: torch.Tensor, sums: torch.Tensor, o: torch.Tensor, consts: Mapping[str, Const], interpreted: bool) -> torch.Tensor:
    """LSE [B, H, M], f32, and writes O [B, H, M, DV]: what shares give as O, parts [B * shares, H, M, DV], and as LSE, sums [B * shares, H, M], together."""
    own = {n: consts[n] for n in ("T", "DV", "SPLITS")}
    if not interpreted:
        lse: torch.Tensor
        _, lse = _compiled(tuple(own.items()))(PO=parts, PL=sums, O=o)
        return lse
    lse = torch.empty(o.shape[:3], dtype=torch.float32, device=o.device)
    run(_checked(tuple(own.items())), {"PO": parts, "PL": sums, "O": o, "LSE": lse})
    return lse


@functools.cache
def _checked(consts: tuple[tuple[str, Const], ...]) -> Checked:
    return check(parse(PROGRAM.read_text(encoding="utf-8"), str(PROGRAM)), None, dict(consts))


@functools.cache
def _compiled(consts: tuple[tuple[str, Const], ...]) -> CompiledKernel:
    from ..runtime.compiled import compile

    return compile(PROGRAM, consts=dict(consts))


__all__ = ["given_to", "joined", "shares"]
