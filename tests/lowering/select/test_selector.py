"""The choice for a whole kernel: nothing is left out, each choice has code, and a target adds a way by a function."""

from __future__ import annotations

import dataclasses

import pytest

from cuir.lowering import lower
from cuir.lowering.analyses.memory import iterate_accesses
from cuir.lowering.compiler import print_kernel
from cuir.lowering.cuda import context
from cuir.lowering.cuda.primitives.memory import SharedLoad
from cuir.lowering.cuda.registry import Printers, load_common
from cuir.lowering.cuda.role import RolePrinter
from cuir.lowering.ir import ops
from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.ir_walk import every
from cuir.lowering.passes.pipeline import optimise
from cuir.lowering.select.move_ways import Move
from cuir.lowering.select.selector import COMMON, list_ways, select
from cuir.lowering.select.ways import Verdict, Ways, find_selection, fits
from cuir.lowering.targets import target_of
from cuir.ops.limits import TARGETS
from tests.lowering.kernels import NAMES, corpus_kernel
from tests.lowering.tile_ir import program


@pytest.mark.sweep
@pytest.mark.parametrize("name", NAMES)
def test_every_access_product_and_loop_has_a_way(name: str) -> None:
    kernel = build(corpus_kernel(name))
    optimise(kernel)
    for role in kernel.roles:
        for op in every(role):
            accesses = isinstance(op, ops.Perform) and (op.kind.indexed or any(iterate_accesses(op)))
            if isinstance(op, ops.For) or accesses:
                assert find_selection(op) is not None, op


def test_each_way_has_code_and_each_code_a_way() -> None:
    """But ways whose printer tells them apart in a line, and reads in the expression of their reader."""
    alone = {
        "loop",
        "tile",
        "choose",
        "order",
        "divide",
        "logarithm or root",
        "run a role",
        "take a work item",
        "multiply asynchronously",
        "multiply into tensor memory",
    }
    alone |= {"load from tensor memory", "copy by threads", "copy by the engine", "store by the engine"}
    for arch in TARGETS:
        target = target_of(arch)
        steps = {step for ways in (*(t.ways for t in target.lineage), *COMMON) for step in ways.steps} - alone
        named = {f"{step}: {name}" for step in steps for name, _ in list_ways(target, step)} - {"gather: in its reader"}
        coded = {code for p in (load_common(), *(t.printers for t in target.lineage)) for code in p.codes}
        assert named == coded, arch


# ---- a target of its own
WAYS, PRINTERS = Ways(), Printers()


@WAYS.way("load", "bulk words")
def fits_bulk_words(move: Move) -> Verdict | None:
    return fits("the toy loads all arrays of 64 columns at once") if move.columns == 64 else None


@PRINTERS.code_of("load", "bulk words")
def load_bulk_words(role: RolePrinter, load: SharedLoad) -> None:
    role.out.line(f"toy_load({load.target.name}, {load.base});")


PROGRAM = """
@kernel(arch="sm_90a")
def k(X: Global[f16, M, 64], Y: Global[f16, M, 64]):
    s, t = shared(f16, [64, 64]), shared(f16, [64, 128])
    with role("all", warpgroups=1):
        store(s, load(X[0:64, :]))
        sync()
        store(Y[0:64, :], load(s))
        store(t, load(t))
"""


def test_a_target_adds_a_way_by_a_function_with_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = program(PROGRAM)
    base = target_of("sm_90a")
    toy = dataclasses.replace(base, printers=PRINTERS, parts={}, headers="", opening="", phrases={}, base=base, ways=WAYS)
    kernel = build(checked)
    optimise(kernel)
    select(kernel, toy)
    chosen = [found for op in every(kernel) if isinstance(op, ops.Perform) and op.op == "load" and (found := find_selection(op))]
    assert [s.way for s in chosen] == ["elements", "bulk words", "ldmatrix"]
    monkeypatch.setattr(context, "target_of", lambda arch: toy)
    text = print_kernel(kernel).source
    assert text.count("toy_load(") == 1 and text.count("cuir::load_matrix(") == 1
    assert "toy_load" not in lower(checked).source
