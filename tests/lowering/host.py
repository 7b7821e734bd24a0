"""Runs the text of a kernel of one role on a CPU, a warp at a time: arithmetic on registers and tensors in memory, no products, no copies, no barriers."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cuir.lowering import Cuda
from cuir.lowering.prelude import render
from cuir.lowering.writer import symbol

GXX = shutil.which("g++")

# Lanes run one after the other, again and again: exchange c gets what all lanes gave to it in the round before, so it is right after round c, and all are
# once a round gives what the one before gave.
FRAME = """
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
using std::max; using std::min;
#define DEV static inline
#undef INFINITY
#define INFINITY __builtin_inff()
static const int EXCHANGES = 1 << 14;
static int given[EXCHANGES][32], calls, lane_now;
static bool changed;
struct { int x; } static threadIdx;
static int __float_as_int(float x) { int y; std::memcpy(&y, &x, 4); return y; }
static float __int_as_float(int x) { float y; std::memcpy(&y, &x, 4); return y; }
static float __fmul_rn(float x, float y) { return x * y; }
static int __vimax3_s32(int x, int y, int z) { return max(x, max(y, z)); }
static int give(int x) {
  if (calls >= EXCHANGES) __builtin_trap();
  changed |= given[calls][lane_now] != x;
  given[calls][lane_now] = x;
  return calls++;
}
static int exchange(int x, int from) { return given[give(x)][from]; }
static int __shfl_xor_sync(unsigned, int x, int o) { return exchange(x, lane_now ^ o); }
static float __shfl_xor_sync(unsigned, float x, int o) { return __int_as_float(exchange(__float_as_int(x), lane_now ^ o)); }
static bool __any_sync(unsigned, bool x) {
  int c = give(x), any = 0;
  for (int l = 0; l < 32; ++l) any |= given[c][l];
  return any;
}
namespace cuir {
DEV float ex2(float x) { return std::exp2(x); }
DEV float after(float x, float) { return x; }
DEV float reciprocal(float x) { float y = 1.f / x; return std::fabs(y) < 1.17549435e-38f ? 0.f : y; }
DEV float min_nan(float x, float y) { return std::isnan(x) || std::isnan(y) ? std::nanf("") : min(x, y); }
template <int N> DEV void pin(float (&)[N]) {}
%s
}
extern "C" void run(%s) {
  for (int warp = 0; warp < 4; ++warp) do {
    changed = false;
    for (int lane = 0; lane < 32; ++lane) {
      lane_now = lane; calls = 0; threadIdx.x = 32 * warp + lane;
%s
    }
  } while (changed);
}
"""
OURS = ("cuir::ex2", "cuir::after", "cuir::pin", "cuir::min_nan")


def on_cpu(cuda: Cuda, folder: Path) -> Callable[..., None]:
    """The kernel as a function of arrays (a matrix's number of columns follows it) and numbers, in the order of its parameters."""
    head, body = cuda.source.split("  // ---- role ", 1)
    params = re.sub(r"__restrict__ ", "", head[head.rindex(f"\n{symbol(cuda.name)}(") + len(symbol(cuda.name)) + 2 : head.rindex(") {\n")])
    body = body[body.index("\n") : body.rindex("}")]
    parts = render(re.sub("|".join(OURS), "", body), {})
    parts = re.sub(r"DEV float (reciprocal|min_nan)\(.*\n", "", parts)  # instructions of a GPU
    path = folder / "kernel.cpp"
    path.write_text(FRAME % (parts, params, body), encoding="utf-8")
    library = folder / "kernel.so"
    subprocess.run(
        [GXX or "g++", "-std=c++17", "-O1", "-w", "-ffp-contract=off", "-mfma", "-shared", "-fPIC", "-o", str(library), str(path)],
        check=True,
    )
    run = ctypes.CDLL(str(library)).run
    kinds = [p.split() for p in params.split(",")]

    def call(*args: np.ndarray | float) -> None:
        given = []
        for kind, x in zip(kinds, args, strict=True):
            ctype = ctypes.c_int64 if "int64_t" in kind else ctypes.c_int if "int" in kind else ctypes.c_float
            given.append(ctypes.c_void_p(x.ctypes.data) if isinstance(x, np.ndarray) else ctype(x))
        run(*given)

    return call
