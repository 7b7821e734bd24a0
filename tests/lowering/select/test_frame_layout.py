"""Shared memory behind the arrays: its order, its alignment, and the error for more than a CTA has."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from xdsl.dialects.builtin import IntAttr

from cuir.lowering.ir import ops
from cuir.lowering.ir.build_ir import build
from cuir.lowering.passes.pipeline import optimise
from cuir.lowering.select.frame_layout import lay_out_frame
from cuir.ops.limits import TARGETS
from cuir.text.diagnostics import CuirError
from tests.lowering.kernels import queues
from tests.lowering.tile_ir import program

PROGRAM = """
@kernel(arch="sm_90a")
def k(Y: Global[f32, 64, 64]):
    a = shared(f32, [ROWS, 24])
    one, named, ring = mbarrier(1), named_barrier(1), mbarrier(1, stages=3)
    with role("all", warpgroups=1):
        ring[0].arrive()
        one.arrive()
"""


def test_mbarriers_follow_the_arrays() -> None:
    layout = lay_out_frame(build(program(PROGRAM.replace("ROWS", "5"))))
    assert layout.barriers == {"one": 480, "ring": 488} and (layout.columns, layout.nbytes) == (0, 512)


def test_a_queue_is_aligned() -> None:
    kernel = build(queues()[0])
    optimise(kernel)
    layout = lay_out_frame(kernel)
    assert layout.queue % 16 == 0 and layout.queue >= max(layout.barriers.values()) + 8 and layout.nbytes > layout.queue


def test_more_shared_memory_than_a_cta_has_is_refused() -> None:
    kernel = build(program(PROGRAM.replace("ROWS", "5")))
    (array,) = kernel.collect(ops.Shared).values()
    free = TARGETS["sm_90a"].shared_bytes - lay_out_frame(kernel).nbytes
    for offset, refused in ((free, False), (free + 16, True)):
        array.properties["offset"] = IntAttr(offset)
        with pytest.raises(CuirError, match="L005") if refused else nullcontext():
            optimise(kernel.clone())
