"""Programs with products in flight under several names, and a CPU that holds their registers as a tensor core does: nothing may read them before a wait."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from hypothesis import strategies as st

from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.interp import run
from cuir.lowering import Cuda
from cuir.syntax.parser import parse
from cuir.text.diagnostics import CuirError
from tests.lowering.host import on_cpu

HEAD = """\
@func
def issue(a, b):
    X = mma_async(a, b)
    return X

@func
def onto(a, b, c):
    X = mma_async(a, b, c)
    return X

@kernel(arch="sm_90a")
def {name}(Z: Global[f32, 4, 64, 8], n: i32):
    a, b = shared(f16, [2, 64, 64]), shared(f16, [2, 64, 64])
    with role("all", warpgroups=1):
        for i in range(2):
            store(a[i], cast((rows(64) * 3 + i) % 5 - cols(64) % 4, f16))
            store(b[i], cast(rows(64) % 3 - (cols(64) * 5 + i) % 7, f16))
        fence_async()
"""


def program(body: str, name: str = "k") -> Checked:
    """A kernel of one warpgroup; its products a[i] @ b[j].T are of the first 8 rows of b[j], which keeps the interpreter quick."""
    lines = body.strip("\n").replace("].T", ", 0 : 8].T").split("\n")
    return check(parse(HEAD.format(name=name) + "".join(f"        {line}\n" for line in lines), "k.cuir"))


def stores(*names: str) -> str:
    return "".join(f"\nstore(Z[{i}, rows(64), cols(8)], {name})" for i, name in enumerate(names))


DIFFER = "A = mma_async(a[0], b[0].T)\nS = A\nC = mma_async(a[1], b[1].T)\nmma_wait(S)\nA = A + 1.0\nmma_wait(C)" + stores("A", "S", "C")
NEXT = """
S = issue(a[0], b[0].T)
mma_wait(S)
D = zeros(f32, [64, 8])
for i in range(n):
    A = issue(a[i % 2], b[1].T)
    D = D + S * S
    S = A
    mma_wait(S)""" + stores("S", "D")
TURN = """
S = issue(a[0], b[0].T)
D = zeros(f32, [64, 8])
for i in range(n):
    mma_wait(S)
    A = issue(a[i % 2], b[1].T)
    D = D + S * S
    S = A
mma_wait(S)""" + stores("S", "D")
ANEW = """
A = mma_async(a[0], b[0].T)
B = mma_async(a[1], b[0].T, A)
A = mma_async(a[0], b[1].T)
mma_wait(A, B)""" + stores("A", "B")


NAMES = ("A", "B", "C", "D")
names, index = st.sampled_from(NAMES), st.integers(0, 1)
simple = st.one_of(
    st.builds("{} = mma_async(a[{}], b[{}].T)".format, names, index, index),
    st.builds("{} = issue(a[{}], b[{}].T)".format, names, index, index),
    st.builds("{} = mma_async(a[{}], b[{}].T, {})".format, names, index, index, names),
    st.builds("{0} = onto(a[{1}], b[{2}].T, {3})".format, names, index, index, names),
    st.builds("{} = {}".format, names, names),
    st.builds("{} = {}".format, names, names),
    st.builds("mma_wait({})".format, names),
    st.builds("{} = {} * 0.5 + {}".format, names, names, names),
).map(lambda line: [line])


def draw_nested(inner: st.SearchStrategy[list[str]]) -> st.SearchStrategy[list[str]]:
    body = st.lists(inner, min_size=1, max_size=4).map(lambda parts: ["    " + line for part in parts for line in part])
    loops = st.builds(lambda lines: ["for i in range(n):", *lines], body)
    branches = st.builds(lambda k, then, second: [f"if n > {k}:", *then, "else:", *second], index, body, body)
    return st.one_of(loops, branches)


bodies = st.lists(st.one_of(simple, simple, simple, draw_nested(st.one_of(simple, simple, draw_nested(simple)))), min_size=3, max_size=9)
BEGIN = [f"{name} = zeros(f32, [64, 8]) + {i}.0" for i, name in enumerate(NAMES)]


def results(checked: Checked, n: int) -> torch.Tensor:
    z = torch.full((4, 64, 8), 0.25)
    run(checked, {"Z": z, "n": n})
    return z


def finish(parts: list[list[str]]) -> list[str]:
    """The lines of a body: names bound, what was drawn, all waited for and stored."""
    end = [f"mma_wait({', '.join(NAMES)})", *stores(*NAMES).strip().split("\n")]
    return [*BEGIN, *(line for part in parts for line in part), *end]


def repair(lines: list[str]) -> tuple[Checked, list[torch.Tensor]]:
    """A program that keeps the rules of products, made of one that need not, and its results for n = 2 and 0: faults end by waits, or by leaving out."""
    first = HEAD.count("\n") + 1
    while True:
        checked = program("\n".join(lines))
        try:
            return checked, [results(checked, n) for n in (2, 0)]
        except CuirError as error:
            (result,) = error.diagnostics
            span = result.span
            while span is not None and span.via is not None:
                span = span.via
            assert span is not None and result.code in ("M405", "M406", "M408"), error
            i = span.line - first
            indent = " " * (len(lines[i]) - len(lines[i].lstrip()))
            wait = f"{indent}mma_wait({', '.join(NAMES)})"
            if result.code == "M408" or lines[i - 1] == wait:
                lines = [*lines[:i], f"{indent}D = D + 0.0" if "D = D" not in lines[i] else wait, *lines[i + 1 :]]
            else:
                lines = [*lines[:i], wait, *lines[i:]]


# ---- a tensor core on a CPU
CORE = """
#include <map>
#include <vector>
#include <array>
static const uint32_t smem_address = 0;
namespace core {
// Registers of products in flight hold this NaN until a wait for them ends; then the sums. A register that then holds something else was written meanwhile.
static const uint32_t TAKEN = 0x7fabcdefu;
struct State {                       // of a thread
  std::map<float*, std::array<float, 4>> sums;
  std::vector<float*> groups;        // one product each
  int column, line;                  // of its first element
};
static State states[THREADS];
static State& own() { return states[threadIdx.x]; }
static bool taken(const float* d) {
  for (int i = 0; i < 4; ++i) if (uint32_t(__float_as_int(d[i])) != TAKEN) return false;
  return true;
}
static void clear(int row, int col) { own() = {{}, {}, col, row}; }
// 16 of the 64 steps of a[i] @ b[j].T; descriptors count 16 bytes, a is at 0, b behind 16384 bytes
static void product(float (&d)[4], uint64_t a, uint64_t b, int adds) {
  auto& [sums, groups, column, line] = own();
  const int i = int(a & 0xffff) / 512, j = (int(b & 0xffff) - 1024) / 512, first = int(a & 511) * 8;
  if (!sums.count(d)) sums[d] = {d[0], d[1], d[2], d[3]};
  else if (!taken(d)) __builtin_trap();
  for (int e = 0; e < 4; ++e) {
    const int r = line + 8 * (e / 2), c = column + e % 2;
    float sum = adds ? sums[d][e] : 0.f;
    for (int k = first; k < first + 16; ++k) sum += ((r * 3 + i) % 5 - k % 4) * (c % 3 - (k * 5 + j) % 7);
    sums[d][e] = sum;
    d[e] = __int_as_float(int(TAKEN));
  }
  groups.push_back(d);
}
static void finish(size_t pending) {
  auto& [sums, groups, column, line] = own();
  while (groups.size() > 4 * pending) {   // of four steps each
    float* d = groups.front();
    groups.erase(groups.begin());
    bool again = false;
    for (float* other : groups) again |= other == d;
    if (again) continue;
    if (!taken(d)) __builtin_trap();
    for (int e = 0; e < 4; ++e) d[e] = sums[d][e];
    sums.erase(d);
  }
}
static void nothing(float (&d)[4]) { for (float& x : d) x = __builtin_nanf(""); }
}
"""


def on_core(cuda: Cuda, folder: Path) -> Callable[[int], torch.Tensor]:
    """A lowered `program` as a function of n that gives Z, with what stands before its products left out."""
    head, body = cuda.source.split("  // ---- role ", 1)
    before, fence, after = body.partition("fence_view_async_shared();\n")
    assert fence
    constants = [line for line in before.split("\n") if re.search(r"const int row = |shared_units__\d+ = ", line)]
    for pattern, text in (
        (r"cuir::wgmma_64x8_f16_ss_k_k<0>", "core::product"),
        (r"cute::warpgroup_wait<(\d)>\(\)", r"core::finish(\1)"),
        (r"cuir::descriptor_at\((.*?), (\w+|\(.*\)|cuir::\w+\(.*?\)), (\d+)\)", r"(\1 + (\2) * \3)"),
        (r"cuir::descriptor\(", "("),
        (r"GMMA::ScaleOut::Zero", "0"),
        (r"GMMA::ScaleOut::One|GMMA::ScaleOut", "1 && "),
        (r"1 && \)", "1)"),
        (r"cuir::forget\(", "core::nothing("),
        (r"cuir::fence_regs\(\w+\);|cute::warpgroup_(arrive|commit_batch)\(\);", ""),
    ):
        after = re.sub(pattern, text, after)
    lines = ["all", *constants, "core::clear(row, col);", after]
    call = on_cpu(replace(cuda, source=head + "  // ---- role " + "\n".join(lines)), folder, more=CORE, level="-O0")

    def results(n: int) -> torch.Tensor:
        z = np.full((4, 64, 8), 0.25, np.float32)
        call(*((z, 64 * 8, 8) if " Z," in head else ()), n)  # a program may store nothing
        return torch.from_numpy(z)

    return results
