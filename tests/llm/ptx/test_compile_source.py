"""A source to PTX: which kernel is meant, instantiations, headers, the cache; and what is said of each reading."""

from __future__ import annotations

from pathlib import Path

import pytest

import corpus
from cuir.text.diagnostics import CuirError
from llm.orchestration_of_source import explain, of_source
from llm.ptx.compile_source import Build, choose_kernel, read_compiled
from llm.reading_source import read_source, with_headers
from llm.settled_differences import describe_settlements, read_settled, split_settled, without_effect
from tests.llm.ptx.kernels import needs_nvcc

HEADER = """#pragma once
__device__ inline void copy16(unsigned to, const void* from) { asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(from)); }
__device__ inline void close_group() { asm volatile("cp.async.commit_group;"); }
template <int N> __device__ inline void wait_group() { asm volatile("cp.async.wait_group %0;" :: "n"(N)); }
"""
SOURCE = """#include "low.h"
template <int STAGES> __global__ void __launch_bounds__(128) ring(const char* x, char* y, int n) {
  extern __shared__ __align__(16) char memory[];
  const unsigned base = __cvta_generic_to_shared(memory);
  for (int i = 0; i < n; ++i) {
    copy16(base + i % STAGES * 2048 + threadIdx.x * 16, x + i * 2048 + threadIdx.x * 16);
    close_group();
    wait_group<STAGES - 1>();
    __syncthreads();
    y[i * 128 + threadIdx.x] = memory[(i + 1) % STAGES * 2048 + threadIdx.x * 16];
  }
}
"""
TWO = "template __global__ void ring<2>(const char*, char*, int);"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUIR_CACHE", str(tmp_path / "cache"))
    (tmp_path / "headers").mkdir()
    (tmp_path / "headers" / "low.h").write_text(HEADER, encoding="utf-8")
    (tmp_path / "ring.cu").write_text(SOURCE, encoding="utf-8")
    return tmp_path / "ring.cu"


def build(source: Path, instantiate: str = TWO, kernel: str | None = None) -> Build:
    return Build("sm_80", (str(source.parent / "headers"),), {}, kernel, instantiate)


@needs_nvcc
def test_an_instantiation_is_read_through_its_headers(source: Path) -> None:
    reading = read_compiled(source, build(source))
    facts = of_source(reading)
    assert [str(r) for r in facts.roles] == ["role load: warps=4; cp.async"]
    assert [(m.nbytes, m.stages) for m in facts.memory] == [(4096, 2)]
    assert facts.groups["cp.async"].most[0] == 1 and facts.joins is not None and facts.joins.source.name == "ring.cu"
    copy = next(c for c in reading.calls if c.kind == "cp_async")
    assert reading.span(copy.at).source.name == "headers/low.h" and "cp.async" in reading.span(copy.at).source.line(
        reading.span(copy.at).line
    )
    assert reading.span(copy.at).via is not None and reading.span(copy.at).via.source.name == "ring.cu"  # type: ignore[union-attr]
    output = explain(reading).split("\n")
    at = next(i for i, line in enumerate(output) if "copy16(base" in line)
    assert "copy_async(box, shared)" in output[at - 1] and "through copy16" in output[at - 1]


@pytest.mark.thorough
@needs_nvcc
def test_kernels_are_chosen_by_name_and_listed(source: Path) -> None:
    two_kernels = TWO + TWO.replace("<2>", "<3>")
    for kernel in ("ring<3>", "ILi3E", r"ring<[^2]>"):
        assert "ring<3>" in read_compiled(source, build(source, two_kernels, kernel)).kernel
    for kernel, listed in ((None, "ring<2>"), ("ring", "ring<3>"), ("rung", "ring<2>")):
        with pytest.raises(CuirError) as error:
            read_compiled(source, build(source, two_kernels, kernel))
        assert error.value.diagnostics[0].code == "O124" and listed in error.value.diagnostics[0].message
    with pytest.raises(CuirError) as error:
        read_compiled(source, build(source, ""))
    assert error.value.diagnostics[0].code == "O122" and "--instantiate" in (error.value.diagnostics[0].hint or "")


def test_a_name_need_not_be_whole() -> None:
    assert choose_kernel(["first", "second"], "sec", Path("x.cu")) == ("second", "second")
    assert choose_kernel(["ring", "ring_back"], "ring", Path("x.cu"))[0] == "ring"


@needs_nvcc
def test_a_changed_header_is_compiled_anew(source: Path) -> None:
    assert of_source(read_compiled(source, build(source))).groups["cp.async"].most[0] == 1
    header = source.parent / "headers" / "low.h"
    header.write_text(HEADER.replace('"n"(N)', '"n"(N + 2)'), encoding="utf-8")
    assert of_source(read_compiled(source, build(source))).groups["cp.async"].most[0] == 3


@pytest.mark.thorough
@needs_nvcc
def test_who_read_is_said_and_the_text_serves_where_nvcc_does_not(source: Path) -> None:
    plain = SOURCE.replace("template <int STAGES> ", "").replace('#include "low.h"', '#include "low.h"\nconstexpr int STAGES = 2;')
    source.write_text(plain, encoding="utf-8")
    reading, owner = read_source(source, build(source, ""), "auto", None, {})
    assert reading.by == "compiler" and "nvcc made" in owner
    source.write_text(plain + "\nvoid broken() { int }\n", encoding="utf-8")
    reading, owner = read_source(source, build(source, ""), "auto", None, {})
    assert reading.by == "text" and "nvcc refuses" in owner
    assert "cp_async" in {c.kind for c in reading.calls}  # out of the header
    with pytest.raises(CuirError) as error:
        read_source(source, build(source, ""), "compiler", None, {})
    assert error.value.diagnostics[0].code == "O121"


def test_the_text_follows_what_is_included_in_quotes(source: Path) -> None:
    text, lines = with_headers(source, (str(source.parent / "headers"),))
    at = next(i for i, line in enumerate(text.split("\n")) if "cp.async.commit_group" in line)
    assert lines[at][0].name.endswith("low.h") and lines[at][0].line(lines[at][1]) == text.split("\n")[at]
    reading, owner = read_source(source, build(source), "text", None, {"STAGES": 2})
    assert "as demanded" in owner and of_source(reading).roles[0].does == {"cp.async"}
    copy = next(c for c in reading.calls if c.kind == "cp_commit")
    assert reading.span(copy.at).source.name == "ring.cu"
    assert "cp.async" not in " ".join(with_headers(source, ())[0].split("\n"))  # a header that is not found stays out


@pytest.mark.thorough
@needs_nvcc
def test_every_source_of_the_corpus_is_read_alike_by_both() -> None:
    """Roles, barriers and groups; the text knows names, the compiler bytes."""
    for name, place in corpus.cuda().items():
        arch = "sm_90a" if "90" in name else "sm_80"
        facts = [of_source(read_source(place, Build(arch), reader, None, {})[0]) for reader in ("compiler", "text")]
        roles = [[str(r) for r in f.roles] for f in facts]
        barriers = [sorted((b.kind, b.count or 0, b.stages, sorted(b.arrives), sorted(b.waits)) for b in f.barriers) for f in facts]
        groups = [{a: g.most[0] for a, g in f.groups.items()} for f in facts]
        memory = [sorted(m.nbytes or 0 for m in f.memory) for f in facts]
        assert roles[0] == roles[1] and barriers[0] == barriers[1] and groups[0] == groups[1] and memory[0] == memory[1], name


SETTLEMENT = '[[settled]]\ncode = "{code}"\nabout = "{about}"\nreason = "the source waits twice"\nby = "{by}"\ninstruction = "{op}"\nline = "{line}"\n'


@needs_nvcc
def test_a_reason_that_is_not_a_persons_is_checked_against_the_ptx(source: Path, tmp_path: Path) -> None:
    from cuir.text.diagnostics import Diagnostic

    reading = read_compiled(source, build(source))
    file = tmp_path / "settled.toml"

    def write(by: str = "model", op: str = "cp.async.wait_group", line: str = "ring.cu:8", about: str = "x", code: str = "O109") -> None:
        file.write_text(SETTLEMENT.format(by=by, op=op, line=line, about=about, code=code), encoding="utf-8")

    write()
    settlement = read_settled(file, reading)
    remaining, away = split_settled([Diagnostic("O109", "barrier `x` waits"), Diagnostic("O109", "barrier `y` waits")], settlement)
    assert [d.message for d in remaining] == ["barrier `y` waits"] and away[0]["reason"] == "the source waits twice"
    array = next(c for c in reading.calls if c.kind == "cp_async")
    assert (
        without_effect(settlement, away) == []
        and without_effect(settlement, []) == ["O109 `x`"]
        and "the source waits twice" in describe_settlements(settlement)
    )
    write(op=array.name, line="ring.cu:6", about=array.objects[0])
    assert len(read_settled(file, reading)) == 1
    for wrong in (
        {"op": "cp.async.wait_group", "line": "ring.cu:5"},
        {"op": "wgmma.wait_group"},
        {"op": "", "line": ""},
        {"about": array.objects[0]},  # the wait says nothing of the array
        {"by": "person", "code": "O111"},
    ):
        write(**wrong)
        with pytest.raises(CuirError) as error:
            read_settled(file, reading)
        assert error.value.diagnostics[0].code == "O125"
    write(by="person", op="", line="")
    assert len(read_settled(file, reading)) == 1
    file.write_text("[[settled]]\ncode = 1\n", encoding="utf-8")
    with pytest.raises(CuirError):
        read_settled(file, reading)
