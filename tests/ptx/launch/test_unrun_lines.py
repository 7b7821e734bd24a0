"""Lines that never ran: ranges by file, the PTX's own where there are none, without the toolkit's headers."""

from __future__ import annotations

from pathlib import Path

from cuir.cuda import KernelCall, LoadedModule
from cuir.ptx.launch.kernel_launch import KernelRun
from cuir.ptx.launch.unrun_lines import list_unrun_lines
from cuir.ptx.module import read_module

PTX = """.version 8.0
.target sm_80
.address_size 64
{files}
.visible .entry k(.param .u32 n) {{
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    {first}
    ld.param.u32 %r1, [n];
    setp.gt.s32 %p1, %r1, 5;
    @%p1 bra $L;
    {second}
    add.s32 %r2, %r1, 1;
    mul.lo.s32 %r2, %r2, 3;
    {third}
    add.s32 %r3, %r2, 1;
$L:
    ret;
}}
"""


def list_lines(n: int, **parts: str) -> list[str]:
    text = PTX.format(**{"files": "", "first": "", "second": "", "third": "", **parts})
    kernel = LoadedModule(read_module(text), Path("k.ptx")).choose(None)
    run = KernelRun(kernel, KernelCall(1, 32, n))
    run.execute()
    return [f"{Path(u.path).name} {u}: {u.count} of {u.of}" for u in list_unrun_lines(run.program, run.list_ran())]


def test_lines_of_the_text_itself() -> None:
    assert list_lines(9) == [" 13-14, 16: 3 of 7"] or list_lines(9) == [" 13-16: 3 of 7"]
    assert list_lines(3) == []


def test_lines_of_sources_without_the_toolkit() -> None:
    files = '.file 1 "/my/k.cu"\n.file 2 "/usr/local/cuda/include/x.h"'
    parts = {"files": files, "first": ".loc 1 3 1", "second": ".loc 1 7 1", "third": ".loc 2 9 1"}
    assert list_lines(9, **parts) == ["k.cu 7: 1 of 2"]
