"""Engines: a copy that lands after single bytes were accessed is over for who waits. Kernels show the rest (test_actions_bulk.py)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cuir.cuda import LoadedModule
from cuir.ptx.module import read_module

PTX = """.version 8.0
.target sm_90
.address_size 64
.visible .entry copy(.param .u64 x, .param .u64 y) {
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    .reg .b64 %d<5>;
    .shared .align 16 .b8 to[16];
    .shared .align 8 .b8 bar[8];
    .shared .align 4 .b8 other[4];
    ld.param.u64 %d1, [x];
    ld.param.u64 %d2, [y];
    mbarrier.init.shared::cta.b64 [bar], 1;
    mbarrier.arrive.expect_tx.shared::cta.b64 %d3, [bar], 16;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [to], [%d1], 16, [bar];
    mov.u32 %r1, 7;
    st.shared.u8 [other], %r1;
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [bar], 0;
    @!%p1 bra WAIT;
    ld.shared.u32 %r2, [to+8];
    st.global.u32 [%d2], %r2;
    ret;
}
"""


@pytest.mark.parametrize("schedule", ["together", "last"])
def test_a_copy_lands_although_single_bytes_got_entries_meanwhile(schedule: str) -> None:
    x, y = torch.arange(5, 9, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    report = LoadedModule(read_module(PTX), Path("copy.ptx"))["copy"](1, 1, x, y, schedule=schedule)
    assert report and y.item() == 7
