"""Split-KV: keys are split among clusters, and one more launch joins the results.

This is for few sequences and key heads: a cluster has at most eight CTAs, so eight key heads occupy sixty-four
multiprocessors, and one occupies eight. Each cluster computes O and LSE over its share of the keys, in f32, and
joined_shares.cuir weighs them by their LSE.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...checking.checked import Checked, Const
from ...checking.checker import check
from ...syntax.nodes import Program
from .card_kernels import KERNELS
from .experts import parse_shipped

if TYPE_CHECKING:
    from ...runtime.compiled import CompiledKernel

PROGRAM = Path(__file__).with_name("joined_shares.cuir")


def share_count(consts: Mapping[str, Const]) -> int:
    """Return the number of clusters among which a setting splits the keys of a sequence."""
    count = consts.get("SPLITS", 1)
    assert isinstance(count, int)
    return count


def launch_arguments(arguments: Mapping[str, Any], consts: Mapping[str, Const]) -> Mapping[str, Any]:
    """Return the arguments of a launch under a setting.

    With several shares O is a tensor [B * shares, H, M, DV], f32, in place of O [B, H, M, DV].
    """
    o, count = arguments["O"], share_count(consts)
    if count == 1:
        return arguments
    return {**arguments, "O": torch.empty(o.shape[0] * count, *o.shape[1:], dtype=torch.float32, device=o.device)}


def join_shares(
    parts: torch.Tensor, sums: torch.Tensor, o: torch.Tensor, consts: Mapping[str, Const], arch: str, interpreted: bool
) -> torch.Tensor:
    """Join the results of shares: write O [B, H, M, DV] and return LSE [B, H, M], f32.

    Args:
        parts: O of the shares, [B * shares, H, M, DV].
        sums: LSE of the shares, [B * shares, H, M].
        arch: the architecture of the kernel of the shares.
    """
    settings = {n: consts[n] for n in ("T", "DV", "SPLITS")}
    if not interpreted:
        lse: torch.Tensor
        _, lse = _compile_kernel(arch, tuple(settings.items()))(PO=parts, PL=sums, O=o)
        return lse
    from ...interp import run

    lse = torch.empty(o.shape[:3], dtype=torch.float32, device=o.device)
    run(_check_kernel(arch, tuple(settings.items())), {"PO": parts, "PL": sums, "O": o, "LSE": lse})
    return lse


def _read_program(arch: str) -> Program:
    place = PROGRAM.with_name(f"{KERNELS[arch]['join'].halves}.cuir")
    return parse_shipped(place.read_text(encoding="utf-8"), str(place))


@functools.cache
def _check_kernel(arch: str, consts: tuple[tuple[str, Const], ...]) -> Checked:
    return check(_read_program(arch), None, dict(consts))


@functools.cache
def _compile_kernel(arch: str, consts: tuple[tuple[str, Const], ...]) -> CompiledKernel:
    from ...runtime.compiled import compile

    return compile(_read_program(arch), consts=dict(consts))


__all__ = ["join_shares", "launch_arguments", "share_count"]
