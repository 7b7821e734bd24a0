"""Run the text of a kernel of one role on a CPU: arithmetic on registers, tensors, shared memory, lanes and warps that meet; no products, copies or mbarriers."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cuir.lowering import Cuda
from cuir.lowering.cuda.writer import symbol
from cuir.lowering.targets import target_of

GXX = shutil.which("g++")

# Each of the 128 threads is a coroutine, which runs until it waits for the others of its warp or of its warpgroup.
# Few headers, and C's: to read those of C++ takes the compiler as long as all the rest.
FRAME = """
#if __has_include("/usr/include/math.h")
#include "/usr/include/math.h"   // and not <math.h>, which is <cmath>
#else
#include <math.h>
#endif
#include <stdint.h>
#include <string.h>
#include <ucontext.h>
template <typename T> static inline T max(T x, T y) { return x < y ? y : x; }
template <typename T> static inline T min(T x, T y) { return y < x ? y : x; }
#define DEV static inline
#define __device__ static
#undef INFINITY
#define INFINITY __builtin_inff()
static const int THREADS = 128, STACK = 1 << 18;
static ucontext_t scheduler, contexts[THREADS];
alignas(16) static char stacks[THREADS][STACK], shared_memory[1 << 18];
static bool done[THREADS];
static void (*thread_entry)(void*);
static void* thread_body;
static int calls, lane_now, given[2][THREADS];
struct { int x; } static threadIdx;
struct Meeting { int arrived, generation; } static meetings[4 + 16];   // of each warp, and hardware barriers
static void enter(int thread) { threadIdx.x = thread; lane_now = thread %% 32; }
static void meet(Meeting& m, int members) {
  const int generation = m.generation, thread = threadIdx.x, so_far = calls;
  if (++m.arrived == members) { m.arrived = 0; ++m.generation; return; }
  while (m.generation == generation) swapcontext(&contexts[thread], &scheduler);
  enter(thread);
  calls = so_far;
}
static void thread_main() {
  const int thread = threadIdx.x;
  thread_entry(thread_body);
  done[thread] = true;
}
template <typename F> static void run_threads(F body) {
  thread_body = &body;
  thread_entry = [](void* of) { (*static_cast<F*>(of))(); };
  for (int t = 0; t < THREADS; ++t) {
    done[t] = false;
    getcontext(&contexts[t]);
    contexts[t].uc_stack.ss_sp = stacks[t], contexts[t].uc_stack.ss_size = STACK, contexts[t].uc_link = &scheduler;
    makecontext(&contexts[t], thread_main, 0);
  }
  int turns = 0;
  for (bool more = true; more;) {
    if (++turns > 1 << 18) __builtin_trap();   // some wait for ever
    more = false;
    for (int t = 0; t < THREADS; ++t) if (!done[t]) {
      more = true;
      enter(t);
      calls = 0;
      swapcontext(&scheduler, &contexts[t]);
    }
  }
}
static size_t __cvta_shared_to_generic(uint32_t at) { return size_t(shared_memory + at); }
static int __float_as_int(float x) { int y; memcpy(&y, &x, 4); return y; }
static float __int_as_float(int x) { float y; memcpy(&y, &x, 4); return y; }
// of one operation each, whatever the compiler fuses
__attribute__((noinline)) static float __fmul_rn(float x, float y) { return x * y; }
__attribute__((noinline)) static float __fadd_rn(float x, float y) { return x + y; }
__attribute__((noinline)) static float __fsub_rn(float x, float y) { return x - y; }
static float __fadd_rz(float x, float y) {
  const double sum = double(x) + y;
  const float z = float(sum);
  return __builtin_isfinite(sum) && fabs(z) > fabs(sum) ? nextafterf(z, 0.f) : z;
}
static unsigned __umulhi(unsigned x, unsigned y) { return unsigned((uint64_t(x) * y) >> 32); }
static float next(float x, float to) { return nextafterf(x, to); }
static double next(double x, double to) { return nextafter(x, to); }
template <class T> static T after_noise(T x, int ulps) {   // so many units in the last place away, one way or the other
  for (; NOISE && ulps > 0 && __builtin_isfinite(x); --ulps) x = next(x, T(calls %% 2 ? INFINITY : -INFINITY));
  return x;
}
struct __half { _Float16 x; __half() = default; __half(float y) : x(y) {} };
struct __nv_bfloat16 { uint16_t x; };
static __half __float2half_rn(float x) { return x; }
static float __half2float(__half x) { return float(x.x); }
static __nv_bfloat16 __float2bfloat16_rn(float x) {
  if (x != x) return {0x7fff};
  const uint32_t y = __float_as_int(x);
  return {uint16_t((y + 0x7fff + (y >> 16 & 1)) >> 16)};
}
static float __bfloat162float(__nv_bfloat16 x) { return __int_as_float(int(uint32_t(x.x) << 16)); }
struct __half2 { __half lo, hi; };
struct __nv_bfloat162 { __nv_bfloat16 lo, hi; };
static __half2 __floats2half2_rn(float x, float y) { return {__float2half_rn(x), __float2half_rn(y)}; }
static __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)}; }
static float __low2float(__half2 x) { return __half2float(x.lo); }
static float __high2float(__half2 x) { return __half2float(x.hi); }
static float __uint_as_float(uint32_t x) { return __int_as_float(int(x)); }
static int __vimax3_s32(int x, int y, int z) { return max(x, max(y, z)); }
static int* give(int x) {   // what the lanes of the warp give; no lane is two exchanges ahead of another one
  int* slots = given[calls++ %% 2] + threadIdx.x / 32 * 32;
  slots[lane_now] = x;
  meet(meetings[threadIdx.x / 32], 32);
  return slots;
}
static int exchange(int x, int from) { return give(x)[from]; }
static int __shfl_xor_sync(unsigned, int x, int o) { return exchange(x, lane_now ^ o); }
static uint32_t __shfl_xor_sync(unsigned, uint32_t x, int o) { return exchange(int(x), lane_now ^ o); }
static float __shfl_xor_sync(unsigned, float x, int o) { return __int_as_float(exchange(__float_as_int(x), lane_now ^ o)); }
static int __shfl_sync(unsigned, int x, int from) { return exchange(x, from & 31); }
static void __syncwarp() { give(0); }
static void __syncthreads() { meet(meetings[4], THREADS); }
static float __shfl_sync(unsigned, float x, int from) { return __int_as_float(exchange(__float_as_int(x), from & 31)); }
struct uint4 { uint32_t x, y, z, w; };
struct float2 { float x, y; };
struct int2 { int x, y; };
static uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
static float2 make_float2(float x, float y) { return {x, y}; }
static int2 make_int2(int x, int y) { return {x, y}; }
static bool __any_sync(unsigned, bool x) {
  int *all = give(x), any = 0;
  for (int l = 0; l < 32; ++l) any |= all[l];
  return any;
}
%s
namespace cuir {
// what the instructions of a GPU may give
DEV float flushed(float x) { return fabsf(x) < 1.17549435e-38f ? copysignf(0.f, x) : x; }
DEV float ex2(float x) { return flushed(after_noise(float(exp2(double(flushed(x)))), 1)); }
DEV float after(float x, float) { return x; }
DEV float select(bool first, float x, float y) { return first ? x : y; }
DEV float rsqrt(float x) { return after_noise(float(1. / sqrt(double(x))), 1); }
DEV float reciprocal(float x) { return flushed(after_noise(float(1. / flushed(x)), 1)); }
DEV float lg2(float x) {   // from 0.5 to 2 an absolute error
  const float y = float(log2(double(flushed(x))));
  return x > 0.5f && x < 2.f ? y + (NOISE ? calls %% 2 ? 2.4e-7f : -2.4e-7f : 0.f) : after_noise(y, 1);
}
DEV double rcp64(double x) { return 1. / x * (1. + (NOISE ? calls %% 2 ? 5e-7 : -5e-7 : 0.)); }
DEV float divide(float x, float y) { float q = float(double(x) / y); return __builtin_isfinite(q) && q != 0 ? after_noise(q, 1) : q; }
DEV float min_nan(float x, float y) { return __builtin_isnan(x) || __builtin_isnan(y) ? nanf("") : min(x, y); }
DEV float max_nan(float x, float y) { return __builtin_isnan(x) || __builtin_isnan(y) ? nanf("") : max(x, y); }
template <typename T> DEV T read_if(bool inside, const T *p) { return inside ? *p : T(0); }
template <typename T> DEV T read_if_now(bool inside, const T *p) { return inside ? *p : T(0); }
template <int GROUPS, typename T, int N> DEV void read_pair(T (&x)[N], int r, int g, bool inside, const T *from) {
  const int i = 4 * (GROUPS * (r >> 1) + g) + 2 * (r & 1);
  for (int e = 0; e < 2; ++e) x[i + e] = inside ? from[e] : T(0);
}
DEV unsigned first_bits(unsigned x, int n, int first) {
  const int left = max(n, 0) - first;
  return left <= 0 ? 0 : left < 32 ? x & ((1u << left) - 1) : x;
}
DEV void bar_sync(int barrier, int threads) { meet(meetings[4 + barrier], threads); }
DEV int to_int(float x) { return x != x ? 0 : x >= 2147483648.f ? 2147483647 : x < -2147483648.f ? -2147483647 - 1 : int(x); }
template <int N> DEV void pin(float (&)[N]) {}
%s
}
extern "C" void run(%s) {
  run_threads([&] {
    const int lane = threadIdx.x %% 32, warp = threadIdx.x / 32;
    const uint32_t smem_address = 0;
    (void)lane, (void)warp, (void)smem_address;
%s
  });
}
"""
OURS = ("ex2", "rsqrt", "after", "pin", "min_nan", "max_nan", "reciprocal", "divide", "lg2", "select", "to_int", "bar_sync")


def on_cpu(cuda: Cuda, folder: Path, contract: str = "off", noise: bool = False, more: str = "", level: str = "-O1") -> Callable[..., None]:
    """The kernel as a function of arrays (a matrix's number of columns follows it) and numbers, in the order of its parameters.

    contract: what the compiler may fuse, "off" or "fast". noise: instructions that are not exact give what is a unit in the last place away.
    more: functions that the text calls. level: of optimisation.
    """
    head, body = cuda.source.split("  // ---- role ", 1)
    params = re.sub(r"__restrict__ ", "", head[head.rindex(f"\n{symbol(cuda.name)}(") + len(symbol(cuda.name)) + 2 : head.rindex(") {\n")])
    strides = "\n".join(re.findall(r"const int64_t \w+_stride\d+ = .*;", head))  # of scratch
    body = strides + body[body.index("\n") : body.rindex("}")]
    parts = target_of(cuda.arch).render(re.sub(rf"cuir::({'|'.join(OURS)})\b", "", body), {})
    parts = re.sub(rf"DEV (float|int|void) ({'|'.join(OURS)})\(.*(\n|$)", "", parts)  # instructions of a GPU
    parts = re.sub(r"(?s)(template <[^>]*> )?DEV \w+ (read_if|read_if_now|read_pair|first_bits)\(.*?\n}\n", "", parts)
    parts = re.sub(r'asm\("rcp.approx.ftz.f64.*\n', "r = rcp64(b);\n", parts)
    path = folder / "kernel.cpp"
    path.write_text(FRAME % (more, parts, params, body), encoding="utf-8")
    library = folder / "kernel.so"
    subprocess.run(
        [
            GXX or "g++",
            "-std=c++17",
            level,
            "-w",
            f"-ffp-contract={contract}",
            f"-DNOISE={int(noise)}",
            "-fwrapv",
            "-mfma",
            "-mf16c",
            "-shared",
            "-fPIC",
            "-o",
            str(library),
            str(path),
        ],
        check=True,
    )
    run = ctypes.CDLL(str(library)).run
    kinds = [p.split() for p in params.split(",")]

    def call(*args: np.ndarray | float) -> None:
        inputs = []
        for kind, x in zip(kinds, args, strict=True):
            ctype = ctypes.c_int64 if "int64_t" in kind else ctypes.c_int if "int" in kind else ctypes.c_float
            inputs.append(ctypes.c_void_p(x.ctypes.data) if isinstance(x, np.ndarray) else ctype(x))
        run(*inputs)

    return call
