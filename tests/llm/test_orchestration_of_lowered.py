"""A round trip that shares no code: a program is lowered to CUDA, and what the annotator reads off that CUDA is what the program says."""

from __future__ import annotations

import pytest

import corpus
from cuir import check, parse
from cuir.lowering import lower
from cuir.syntax.types import DTYPES
from llm.cuda_source import annotate
from llm.orchestration import Orchestration
from llm.orchestration_of_program import of_program
from llm.orchestration_of_source import of_source

PROGRAMS = ("flash_fwd", "flash_fwd_cluster", "flash_fwd_over_v", "flash_fwd_sm80", "flash_fwd_sm90", "flash_bwd", "gemm")


def facts(name: str) -> tuple[Orchestration, Orchestration]:
    """Collect the facts of the CUDA and of the program."""
    place = {**corpus.programs(), **corpus.kernels()}[name]
    program = parse(place.read_text(encoding="utf-8"), f"{name}.cuir")
    kernel = list(program.kernels().values())[-1]
    expected_values = {"T": DTYPES["f16"], "D": 128}
    checked = check(program, kernel.name, {n: v for n, v in expected_values.items() if n in {p.name for p in kernel.params}})
    return of_source(annotate(lower(checked).source, f"{name}.cu")), of_program(checked)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_annotator_reads_a_program_off_its_cuda(name: str) -> None:
    """The lowering adds a role and barriers of its own, which hand out units of work: they have no counterpart."""
    cuda, program = facts(name)
    barriers = {b.name: (b.count, b.stages, b.carries_bytes, len(b.arrives), len(b.waits)) for b in cuda.barriers if b.kind == "mbarrier"}
    for b in program.barriers:
        if b.kind == "mbarrier" and b.waits:
            assert barriers[b.name] == (b.count, b.stages, b.carries_bytes, len(b.arrives), len(b.waits)), b.name
    used = [(b.count, b.stages) for b in program.barriers if b.kind == "named_barrier" and b.waits]
    assert sorted(used) == sorted((b.count, b.stages) for b in cuda.barriers if b.kind == "named_barrier")
    roles = [(r.workers, r.threads, r.registers, r.does) for r in cuda.roles]
    assert all((r.workers, r.threads, r.registers, r.does) in roles for r in program.roles)
    assert {agent: g.most[0] for agent, g in cuda.groups.items()} == {agent: g.most[0] for agent, g in program.groups.items()}
    assert (cuda.joins is None) == (program.joins is None)
