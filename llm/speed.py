"""Waste in a right program: blocks without a kept pair, needless masks, lost asynchrony.

Counts blocks visited without a kept pair, masks evaluated without need, and copies and products that were asynchronous
in the origin. Nothing is timed.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cuir.attn.verification.contracts import has_splice_points
from cuir.attn.verification.problems import Case, make_attention_launch
from cuir.attn.verification.sizes import collect_mask_integers
from cuir.attn.verification.splice_evaluator import Evaluator, collect_kernel_values
from cuir.checking.checked import Checked
from cuir.interp import run
from cuir.ops.expressions import get_called_op
from cuir.spec.specification import Lengths, Specification
from cuir.syntax.nodes import Call, Kernel, Keyword, Name, Node, Program
from cuir.syntax.walk import walk
from cuir.text.diagnostics import Diagnostic
from cuir.text.source import Span
from cuir.verification.spec_dispatch import get_tile_sizes

SLACK = 1.1  # of the blocks that are needed, and one more for each tile
LONGEST = 4096  # keys, to see a mask's edge
_BLOCK = 2 * 128**3  # multiply-adds of a block as a run counts them


@dataclass(frozen=True)
class Speed:
    """Result of the comparison.

    Attributes:
        diagnostics: Possible improvements, A10x.
        facts: For reports: blocks visited, needed, masked, and those that need the mask, None where unknown.
    """

    diagnostics: tuple[Diagnostic, ...]
    facts: dict[str, Any]


def judge_speed(origin: Program, program: Program, checked: Checked, spec: Specification | None) -> Speed:
    """Compare a program with its origin, and with the blocks that the mask of its specification needs.

    `spec` is None for a program without a mask.
    """
    faults = list(_asynchronous(origin, program, checked.origin))
    facts: dict[str, Any] = {"visited": None, "needed": None, "masked": None, "masked_needed": None}
    if spec is not None:
        at = _problem(spec, program, *get_tile_sizes(checked))
        needed, partial = _blocks(spec, at, *get_tile_sizes(checked))
        tiles = at.B * at.H * -(-at.M // get_tile_sizes(checked)[0])
        visited = _count_visited_blocks(program, checked, spec, at)
        facts |= {"visited": round(visited, 1), "needed": needed, "masked_needed": partial, "problem": str(at)}
        if visited > SLACK * needed + tiles:
            place = _place(program, "kv_count", checked.origin)
            faults.append(
                _fault(
                    "A101",
                    f"{visited:.0f} blocks of keys are multiplied where {needed} hold a pair that the mask keeps, in the problem {_words(at)}",
                    place,
                    "count and visit only blocks with a kept pair: kv_count, kv_block",
                )
            )
        masked = _count_masked_blocks(program, checked, spec, at)
        facts["masked"] = masked
        if masked is not None and masked > SLACK * partial + tiles:
            place = _place(program, "kv_count", checked.origin)
            faults.append(
                _fault(
                    "A102",
                    f"the mask is evaluated in {masked} blocks where {partial} hold a pair that it drops or a key behind the last, in the problem {_words(at)}",
                    place,
                    "visit the blocks that need keep() first, and let kv_count say how many they are",
                )
            )
    return Speed(tuple(faults), facts)


def _fault(code: str, message: str, span: Span, hint: str) -> Diagnostic:
    """Return a diagnostic without notes."""
    return Diagnostic(code, message, span, (), hint)


def _words(at: Lengths) -> str:
    """Describe a problem in words."""
    return f"M={at.M}, N={at.N}, B={at.B}, H={at.H}"


def _place(program: Program, name: str, kernel: Kernel) -> Span:
    """Return the span of a function, or of the kernel if there is none."""
    func = program.funcs().get(name)
    return func.span if func is not None else kernel.span


def _problem(spec: Specification, program: Program, BM: int, BN: int) -> Lengths:
    """Return a problem of a few tiles and blocks, with as many keys as the mask's integers need."""
    edges = [n for n in collect_mask_integers(spec, program) if n <= LONGEST]
    keys = max(6 * BN, -(-max(edges, default=0) // BN + 3) * BN if edges else 0)
    return Lengths(1, 2, 1, min(3 * BM, keys), keys)


def _blocks(spec: Specification, at: Lengths, BM: int, BN: int) -> tuple[int, int]:
    """Count the blocks that hold a kept pair, and those among them that also hold a dropped one."""
    mask = spec.compute_kept(at).numpy()
    some = none_lost = 0
    for m, n in itertools.product(range(0, at.M, BM), range(0, at.N, BN)):
        part = mask[:, :, m : m + BM, n : n + BN]
        some += int(part.any((2, 3)).sum())
        none_lost += int(part.all((2, 3)).sum()) if n + BN <= at.N else 0
    return some, some - none_lost


def _count_visited_blocks(program: Program, checked: Checked, spec: Specification, at: Lengths) -> float:
    """Count the multiplied blocks by the volume of the products of a run.

    Both products of a block count as one.
    """
    BM, BN = get_tile_sizes(checked)
    with torch.no_grad():
        report = run(checked, make_attention_launch(program, checked, spec, Case("speed", at)).arguments(), detect=False)
    return report.blocks * _BLOCK / (2 * BM * BN * int(checked.consts["D"]))  # type: ignore[arg-type]


def _count_masked_blocks(program: Program, checked: Checked, spec: Specification, at: Lengths) -> int | None:
    """Count the blocks in which the program's kv_count demands keep(); None without splice points."""
    if not has_splice_points(program):
        return None
    BM, _ = get_tile_sizes(checked)
    dims = {"B": at.B, "H": at.H, "HK": at.HK, "M": at.M, "N": at.N}
    arguments = make_attention_launch(program, checked, spec, Case("speed", at)).captured
    captured = {n: v.numpy() if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}
    run_of = Evaluator(program, collect_kernel_values(checked.origin, dims, checked.consts, {"scale": 0.125, **captured}))
    m = np.arange(-(-at.M // BM))
    total = 0
    for b, h in itertools.product(range(at.B), range(at.H)):
        partial, _ = run_of.call("kv_count", b, h, m)
        total += int(np.broadcast_to(np.asarray(partial), m.shape).sum())
    return total


def _asynchronous(origin: Program, program: Program, kernel: Kernel) -> list[Diagnostic]:
    """Report asynchronous work of the origin that the program lacks."""
    before, after = _traits(origin), _traits(program)
    return [
        _fault(
            "A103",
            f"the origin has {trait}, and the program does not",
            kernel.span,
            "keep the origin's pipeline, and change what the variant needs",
        )
        for trait in before
        if trait not in after
    ]


def _traits(program: Program) -> list[str]:
    """Return the kinds of asynchronous work of a program, in words."""
    calls = [
        n
        for k in program.kernels().values()
        for n in _list_reachable_nodes(program, k)
        if isinstance(n, Call) and (op := get_called_op(n)) is not None and k.arch in op.archs  # a port cannot keep what its card lacks
    ]
    names = {n.func.id for n in calls if isinstance(n.func, Name)}
    rings = any(
        isinstance(n.func, Name) and n.func.id == "mbarrier" and any(isinstance(a, Keyword) and a.name == "stages" for a in _arguments(n))
        for n in calls
    )
    traits = []
    if "mma_async" in names:
        traits.append("asynchronous products (mma_async)")
    if "copy_async" in names:
        traits.append("asynchronous copies (copy_async)")
    if rings:
        traits.append("rings of stages (mbarrier(..., stages=))")
    if "store_async" in names:
        traits.append("bulk stores (store_async)")
    return traits


def _arguments(call: Call) -> list[Node]:
    """Return positional and keyword arguments of a call."""
    return [*call.args, *call.keywords]


def _list_reachable_nodes(program: Program, kernel: Kernel) -> list[Node]:
    """Return the nodes of a kernel and of every function of the program."""
    return [*walk(kernel), *(n for f in program.funcs().values() for n in walk(f))]
