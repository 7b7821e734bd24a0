"""The headers that nvcc reads in place of CuTe's: the same machine code, and CuTe's own where they do not do."""

from __future__ import annotations

from pathlib import Path

import pytest

import corpus
from cuir.checking.checker import check
from cuir.lowering import lower
from cuir.runtime import nvcc, slim_headers
from cuir.runtime.machine_code import parse_functions
from cuir.runtime.nvcc import Nvcc, find_nvcc
from cuir.syntax.parser import parse
from cuir.text.diagnostics import CuirError

needs_nvcc = pytest.mark.nvcc


def lower_kernel(name: str, **consts: object):  # type: ignore[no-untyped-def]
    program = parse(corpus.kernels()[name].read_text(encoding="utf-8"), name)
    return lower(check(program, next(iter(program.kernels())), consts))  # type: ignore[arg-type]


def make_tree(folder: Path, mma: str) -> str:
    """The headers of a CuTe whose file of products has this text."""
    for name in {*slim_headers._PRUNED, *slim_headers._LOGGING}:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(mma if name.endswith("gmma.hpp") else "", encoding="utf-8")
    return str(folder)


HEADER = """namespace cute {
template <int N>
void warpgroup_wait() {
  asm volatile("wait %0" :: "n"(N));
}
template <
  Major a
>
struct MMA_64x8x16_ONE
{
  struct Inner { int x; };
};
struct MMA_64x16x16_TWO
{
  synclog_emit_product(__LINE__);
};
}
"""


def test_structs_that_a_text_does_not_name_are_left_out(tmp_path: Path) -> None:
    tree, out = make_tree(tmp_path / "theirs", HEADER), tmp_path / "slim"
    assert slim_headers.write_slim_headers("GMMA::MMA_64x16x16_TWO::fma(x);", tree, out)
    retained = (out / "cute/arch/mma_sm90_gmma.hpp").read_text(encoding="utf-8")
    assert "warpgroup_wait" in retained and "MMA_64x16x16_TWO" in retained and "ONE" not in retained and "Major" not in retained
    assert "void synclog_emit_product(T const&...) {}" in (out / "cutlass/arch/synclog.hpp").read_text(encoding="utf-8")


def test_headers_that_lack_a_struct_are_taken_as_they_are(tmp_path: Path) -> None:
    out = tmp_path / "slim"
    assert not slim_headers.write_slim_headers("MMA_64x24x16_THREE", make_tree(tmp_path / "theirs", HEADER), out) and not out.exists()
    assert not slim_headers.write_slim_headers("", str(tmp_path / "nowhere"), out) and not out.exists()


@pytest.mark.thorough
@needs_nvcc
def test_machine_code_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = lower_kernel("decode_sm90", D=64)
    slim, _ = Nvcc()(cuda, find_nvcc())
    monkeypatch.setattr(nvcc, "write_slim_headers", lambda *arguments: False)
    whole, _ = Nvcc()(cuda, find_nvcc())
    assert parse_functions(slim) == parse_functions(whole) and parse_functions(slim)[0].instructions > 100


@pytest.mark.thorough
@needs_nvcc
def test_what_slim_headers_do_not_do_is_compiled_with_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(slim_headers._STAND_INS, "cute/config.hpp", "#error nothing\n")
    cubin, log = Nvcc()(lower_kernel("decode_sm90", D=64), find_nvcc())
    assert parse_functions(cubin) and "nothing" not in log


def test_a_compiler_that_was_stopped_starts_nothing() -> None:
    compiler = Nvcc()
    compiler.stop()
    with pytest.raises(CuirError) as text:
        compiler(lower_kernel("decode_sm90", D=64), "/nowhere/nvcc")
    assert text.value.diagnostics[0].code == "L010" and not compiler.begun.is_set()
