"""A small kernel with a ring, right and with planted faults, and a run of it with a trace."""

from __future__ import annotations

import torch

import cuir
from cuir.checking.checked import Checked
from cuir.interp import Schedule, Trace, run
from cuir.text.diagnostics import CuirError, Diagnostic

TEXT = """
@func
def ring(i):
    return i % 2, i // 2 % 2

@kernel(arch="sm_90a")
def double(X: Global[f16, M, 64], Y: Global[f16, M, 64]):
    buf = shared(f16, [2, 64, 64])
    full, empty = mbarrier(1, stages=2), mbarrier(1, stages=2)
    work = tiles(cdiv(M, 64))
    with role("load", warps=1):
        i = 0
        for t in work:
            s, phase = ring(i)
            empty[s].wait(phase ^ 1)
            full[s].expect(nbytes(buf[s]))
            copy_async(X[t * 64 : t * 64 + 64, :], buf[s], full[s])
            i += 1
    with role("compute", warpgroups=1):
        i = 0
        for t in work:
            s, phase = ring(i)
            full[s].wait(phase)
            x = cast(load(buf[s]), f32)
            empty[s].arrive()
            store(Y[t * 64 : t * 64 + 64, :], cast(x * 2.0, f16))
            i += 1
"""
HANG = TEXT.replace("mbarrier(1, stages=2), mbarrier(1, stages=2)", "mbarrier(1, stages=2), mbarrier(2, stages=2)")
RACE = TEXT.replace("full[s].wait(phase)", "full[s].wait(phase ^ 1)")


def record(text: str, schedule: Schedule | None = None, rows: int = 320) -> tuple[Checked, Trace, Diagnostic | None]:
    """Run a text on one CTA; return the kernel, the trace and the fault."""
    checked, trace = cuir.check(cuir.parse(text)), Trace()
    try:
        tensors = {"X": torch.ones(rows, 64, dtype=torch.float16), "Y": torch.empty(rows, 64, dtype=torch.float16)}
        run(checked, tensors, trace=trace, grid=1, schedule=schedule)
    except CuirError as error:
        return checked, trace, error.diagnostics[0]
    return checked, trace, None
