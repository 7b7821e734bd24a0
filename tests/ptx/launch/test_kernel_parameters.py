"""Parameters of kernels: types of the C++ name, names of the source."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuir.ptx.launch.kernel_parameters import list_parameters, split_at_commas
from cuir.ptx.module import read_module

PTX = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry {name}({parameters}) {{\n    ret;\n}}\n"


@pytest.mark.parametrize(
    ("name", "parameters", "text", "expected"),
    [
        (
            "_Z3addPKfPfi",
            ".u64 .u64 .u32",
            "__global__ void add(const float* __restrict__ x,\n float *y /* out */, int n = 3) {",
            "const float* x, float* y, int n",
        ),
        ("add", ".u64 .u64", 'extern "C" __global__ void add(const float *x, float *y) {', "const float * x, float * y"),
        ("add", ".u64 .f32", "", "8 bytes p0, 4 bytes p1"),
        ("_Z1gILi4EEvPi", ".u64", "template <int N> __global__ void g(int* table) { other(1, 2); }", "int* table"),
        ("_Z1gILi4EEvPi", ".u64", "void g(int* a, int b) {}  void h() { g(x); }", "int* p0"),
    ],
)
def test_names_and_types(tmp_path: Path, name: str, parameters: str, text: str, expected: str) -> None:
    source = tmp_path / "k.cu"
    source.write_text(text, encoding="utf-8")
    declared = ", ".join(f".param {t} a{i}" for i, t in enumerate(parameters.split()))
    function = read_module(PTX.format(name=name, parameters=declared)).functions[name]
    assert ", ".join(map(str, list_parameters(function, source))) == expected
    assert [p.name for p in list_parameters(function, Path("k.ptx"))] == [f"p{i}" for i in range(len(function.parameters))]


def test_commas_within_brackets_do_not_split() -> None:
    assert list(split_at_commas("Pair<int, float> a, int (*f)(int, int), b")) == ["Pair<int, float> a", "int (*f)(int, int)", "b"]
