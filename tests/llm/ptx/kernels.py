"""Kernels for tests of the reader of PTX: compiled programs, and small kernels written by hand."""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp

import pytest

from cuir.checking.checked import Checked
from cuir.lowering import lower
from cuir.ptx.module import Entry, read_entry
from cuir.runtime.nvcc import include_dir
from cuir.runtime.slim_headers import write_slim_headers
from llm.orchestration import Orchestration, compare
from llm.orchestration_of_program import of_program
from llm.orchestration_of_source import of_source
from llm.ptx.compile_source import Build, read_compiled
from llm.ptx.ptx_reading import Compiled

needs_nvcc = pytest.mark.nvcc


def slim_flags(source: str) -> tuple[str, ...]:
    """Flags for CuTe's headers without what a source does not name: most of nvcc's time goes into the rest of them."""
    folder = Path(mkdtemp())  # not beside the source, whose folder is taken for the user's
    return ("-I", str(folder)) if write_slim_headers(source, include_dir(), folder) else ()


def read_lowered(checked: Checked, folder: Path, cluster: tuple[int, int, int] | None = None) -> Compiled:
    """The reading of what nvcc makes of a program's CUDA."""
    cuda = lower(checked)
    place = folder / f"{cuda.name}.cu"
    place.write_text(cuda.source, encoding="utf-8")
    return read_compiled(place, Build(cuda.arch, cluster=cluster, flags=slim_flags(cuda.source)))


def differences(reading: Compiled, checked: Checked) -> list[str]:
    """List the differences of a program and its PTX, without additions of the lowering and unused parts.

    The lowering adds a role that hands out units of work, with its barriers.
    """
    source, program = of_source(reading), of_program(checked)
    idle = {r.workers * r.threads for r in program.roles if not r.does}  # roles of the program's own that neither copy nor multiply
    ours = {r.name for r in source.roles if not r.does and r.workers * r.threads not in idle}
    used = Orchestration(
        tuple(r for r in source.roles if r.name not in ours),
        tuple(b for b in source.barriers if not ours & (b.arrives | b.waits)),
        source.memory,
        source.groups,
        source.joins,
    )
    as_read = Orchestration(program.roles, tuple(b for b in program.barriers if b.waits), program.memory, program.groups, program.joins)
    return [f"{d.code} {d.message}" for d in compare(used, as_read, checked.origin.span)]


def entry(body: str, head: str = ".maxntid 128, 1, 1", shared: str = "") -> Entry:
    """A kernel written by hand; its parameters are p (u32) and q (u64)."""
    text = f".version 9.0\n.target sm_90a\n.address_size 64\n{shared}\n.visible .entry k(\n.param .u32 p,\n.param .u64 q\n)\n{head}\n{{\n{body}\n}}\n"
    return read_entry(text, "k")
