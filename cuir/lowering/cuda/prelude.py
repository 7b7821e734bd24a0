"""Device functions shared by all targets, emitted only when used, and their join with those of one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .logarithms import LOG1P, LOG2
from .reads import GATHER, GATHER_WRITTEN, READ_PAIR
from .roots import SQRT, SQRT_OF_WHOLE
from .sines import SINES

HEADERS = """#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cstdint>"""

# Purposes of the functions, in the order of the sections of a file.
SECTIONS = (
    "numbers",
    "rows",
    "mbarriers",
    "barriers",
    "addresses",
    "matrices",
    "words",
    "products",
    "copies",
    "fences",
    "registers",
    "descriptors",
    "queues",
)


@dataclass(frozen=True)
class Part:
    """A piece of the file with one function or more.

    `names` are further definitions in it, `needs` are parts that precede it.
    """

    section: str
    text: str
    needs: tuple[str, ...]
    names: tuple[str, ...]


class Parts(dict[str, Part]):
    """Parts by name."""

    def section(self, name: str) -> Callable[..., None]:
        """Return a function that registers parts in a section."""
        assert name in SECTIONS, name

        def register(part: str, text: str, *needs: str, names: tuple[str, ...] = ()) -> None:
            self[part] = Part(name, text.strip("\n"), needs, names)

        return register


COMMON = Parts()

_part = COMMON.section("numbers")
for _name, _sign in (("add", "+"), ("sub", "-"), ("mul", "*")):
    _part(_name, f"DEV int {_name}(int x, int y) {{ return int(unsigned(x) {_sign} unsigned(y)); }}  // wraps")
_part(
    "floordiv",
    """
// Rounds to minus infinity; -2^31 / -1 wraps
DEV int floordiv(int a, int b) { const int q = b == -1 ? sub(0, a) : a / b; return q - (b != -1 && a % b != 0 && (a < 0) != (b < 0)); }""",
    "sub",
)
_part(
    "first_bits",
    """
// The bits of x before the n-th, counted from bit `first` of the row
DEV unsigned first_bits(unsigned x, int n, int first) {
  unsigned mask;
  asm("bmsk.clamp.b32 %0, 0, %1;" : "=r"(mask) : "r"(max(max(n, 0) - first, 0)));
  return x & mask;
}""",
)
_part("absolute", "DEV int absolute(int x) { return x < 0 ? sub(0, x) : x; }  // -2^31 stays", "sub")
_part(
    "floormod",
    "DEV int floormod(int a, int b) { const int r = b == -1 ? 0 : a % b; return r != 0 && (r < 0) != (b < 0) ? r + b : r; }      // has the divisor's sign",
)
_part("ceilshift", "template <int S> DEV int ceilshift(int x) { return (x >> S) + ((x & ((1 << S) - 1)) != 0); }  // x / 2^S rounded up")
_part(
    "ceildiv",
    "DEV int ceildiv(int a, int b) { return add(floordiv(a, b), floormod(a, b) != 0); }  // no sum that wraps",
    "add",
    "floordiv",
    "floormod",
)
_part(
    "limit",
    """
// y - x + PLUS, or the end of the range on whose side it lies: a limit on columns, of which none is there
template <int PLUS> DEV int limit(int y, int x) {
  const int d = sub(y, x), kept = ((y ^ x) & (y ^ d)) >= 0 ? d : y < 0 ? -2147483647 - 1 : 2147483647;
  return PLUS ? min(kept, 2147483646) + 1 : kept;
}""",
    "sub",
)
_part(
    "fixed",
    """
// x as one number: of two that differ by a constant compilers compare each k with neither, but k - x with the constant, an addition for each k
DEV int fixed(int x) { asm("" : "+r"(x)); return x; }""",
)
_part(
    "quotient",
    """
// x / y of numbers that are not negative, from inverse(y): the high product is the quotient or one less
DEV unsigned inverse(int y) { return ~0u / unsigned(y); }
DEV int quotient(unsigned x, unsigned y, unsigned inverse) {
  const unsigned q = __umulhi(x, inverse);
  return int(q + (x - q * y >= y));
}
DEV int remainder(unsigned x, unsigned y, unsigned inverse) { return int(x - quotient(x, y, inverse) * y); }""",
    names=("inverse", "remainder"),
)
_part(
    "signed_quotient",
    """
// x // y of any signs, rounded to minus infinity, from the inverse of |y|: ~(~x / y) is x // y of a negative x
DEV int signed_quotient(int x, int y, unsigned inverse) {
  const int turned = (x ^ (y >> 31)) - (y >> 31), sign = turned >> 31;
  return quotient(turned ^ sign, abs(y), inverse) ^ sign;
}
DEV int signed_remainder(int x, int y, unsigned inverse) { return x - signed_quotient(x, y, inverse) * y; }""",
    "quotient",
    names=("signed_remainder",),
)
_part("ex2", 'DEV float ex2(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }')
_part(
    "reciprocal",
    'DEV float reciprocal(float x) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }  // of numbers x from 2^-126 to 2^126',
)
_part(
    "divide",
    'DEV float divide(float x, float y) { float z; asm("div.full.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y)); return z; }  // 2 units in the last place',
)
_part(
    "one_over",
    """
// 1 / x within 2 units in the last place: one instruction where neither x nor 1 / x is near an end of the range
DEV bool far_from_ends(float x) { return 2u * unsigned(__float_as_int(x)) - 0x01000000u < 0xfc000000u; }
DEV float one_over(float x) { return far_from_ends(x) ? reciprocal(x) : divide(1.f, x); }
template <int N> DEV void one_over(const float (&x)[N], float (&y)[N]) {   // by a warp: one branch for all
  bool ends = false;
#pragma unroll
  for (int i = 0; i < N; ++i) { y[i] = reciprocal(x[i]); ends |= !far_from_ends(x[i]); }
  if (__any_sync(~0u, ends)) {
#pragma unroll
    for (int i = 0; i < N; ++i) y[i] = one_over(x[i]);
  }
}""",
    "reciprocal",
    "divide",
)
_part(
    "select",
    """
// Both are worked out: a branch around one of them for each element would keep the compiler from interleaving elements
DEV float select(bool first, float x, float y) {
  float z;
  asm("{ .reg .pred p; setp.ne.s32 p, %1, 0; selp.f32 %0, %2, %3, p; }" : "=f"(z) : "r"(int(first)), "f"(x), "f"(y));
  return z;
}""",
)
_part("lg2", 'DEV float lg2(float x) { float y; asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }')
_part(
    "log2_of_whole",
    "DEV float log2_of_whole(float x) { return x == 1.f ? 0.f : lg2(x); }  // the instruction's error is relative from 2 on, absolute near 1",
    "lg2",
)
_part("log2_anywhere", LOG2, "lg2")
_part("log1p", LOG1P, "lg2")
_part(
    "log2",
    """
// Within 2 units in the last place, as the instruction is from 4 on; below it has an absolute error, and takes subnormals for 0
DEV bool from_4_on(float x) { return unsigned(__float_as_int(x)) - 0x40800000u < 0x3f000000u; }
DEV float log2(float x) { return from_4_on(x) ? lg2(x) : log2_anywhere(x); }
template <int N> DEV void log2(const float (&x)[N], float (&y)[N]) {   // by a warp: one branch for all
  bool small = false;
#pragma unroll
  for (int i = 0; i < N; ++i) { y[i] = lg2(x[i]); small |= !from_4_on(x[i]); }
  if (__any_sync(~0u, small)) {
#pragma unroll
    for (int i = 0; i < N; ++i) y[i] = log2(x[i]);
  }
}""",
    "lg2",
    "log2_anywhere",
)
_part(
    "divide_rn",
    """
// Correctly rounded, without a call, which would serialise products. Quotients of floats keep further from what lies between two floats than doubles err.
DEV float divide_rn(float x, float y) {
  const double a = x, b = y;
  double r;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(r) : "d"(b));
  r = fma(r, fma(-b, r, 1.), r);
  r = fma(r, fma(-b, r, 1.), r);
  double q = a * r;
  q = fma(r, fma(-b, q, a), q);
  return x != 0.f && fabsf(x) < INFINITY && y != 0.f && fabsf(y) < INFINITY ? float(q) : divide(x, y);
}""",
    "divide",
)
_part(
    "to_int",
    'DEV int to_int(float x) { int y; asm("cvt.rzi.s32.f32 %0, %1;" : "=r"(y) : "f"(x)); return y; }  // saturates, of NaN 0; int(x) need not',
)
_part(
    "rsqrt", 'DEV float rsqrt(float x) { float y; asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }  // of normal numbers'
)
_part("sqrt", SQRT, "rsqrt")
_part("sqrt_of_whole", SQRT_OF_WHOLE, "rsqrt")
_part("sine", SINES, names=("cosine", "sines"))
_part(
    "tanh_small",
    """
// tanh(x) for |x| < 0.6: a relative error of 2 units in the last place, where the quotient has an absolute one. The 0 keeps the sign of -0.
DEV float tanh_small(float x) {
  const float u = x * x;
  const float p = fmaf(u, fmaf(u, fmaf(u, 0.0157396831f, -0.0523039624f), 0.133152977f), -0.333327681f);
  return fmaf(x, fmaf(u, p, 0.f), x);
}""",
)
_part(
    "tanh_large",
    """
// tanh(x) from |x| on, given 1 / (1 + exp(2 |x|)); small arguments, and NaN, by the polynomial
DEV float tanh_large(float x, float reciprocal) { return fabsf(x) >= 0.6f ? copysignf(1.f - 2.f * reciprocal, x) : tanh_small(x); }""",
    "tanh_small",
)
_part(
    "tanh",
    "DEV float tanh(float x) { return tanh_large(x, reciprocal(1.f + ex2(2.885390081777927f * fabsf(x)))); }",
    "tanh_large",
    "ex2",
    "reciprocal",
)
_part(
    "min_nan",
    'DEV float min_nan(float x, float y) { float z; asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y)); return z; }  // a NaN stays one',
)
_part(
    "max_nan",
    'DEV float max_nan(float x, float y) { float z; asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y)); return z; }',
)
_part(
    "reciprocals",
    """
// 1 / x of four numbers whose product is a float, by one reciprocal: 4 units in the last place. A NaN is no number: its neighbours do without it.
template <bool NANS> DEV void reciprocals(float (&x)[4]) {
  float n[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) n[i] = NANS ? fminf(x[i], 4294967296.f) : x[i];   // greater than all of them
  const float a = n[0] * n[1], b = n[2] * n[3], c = reciprocal(a * b), ra = c * b, rb = c * a;
  const float y[4] = {ra * n[1], ra * n[0], rb * n[3], rb * n[2]};
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = NANS ? fmaf(x[i], 0.f, y[i]) : y[i];       // and the NaN again
}""",
    "reciprocal",
)
_part("round_f16", "DEV float round_f16(float x) { return __half2float(__float2half_rn(x)); }")
_part("round_bf16", "DEV float round_bf16(float x) { return __bfloat162float(__float2bfloat16_rn(x)); }")
_part(
    "pack_f16",
    "DEV uint32_t pack_f16(float lo, float hi) { const __half2 h = __floats2half2_rn(lo, hi); return reinterpret_cast<const uint32_t&>(h); }",
)
_part(
    "pack_bf16",
    "DEV uint32_t pack_bf16(float lo, float hi) { const __nv_bfloat162 h = __floats2bfloat162_rn(lo, hi); return reinterpret_cast<const uint32_t&>(h); }",
)
_part(
    "unpack_f16",
    """
template <int N> DEV float unpack_f16(const uint32_t (&x)[N], int i) {
  const __half2 h = reinterpret_cast<const __half2&>(x[i >> 1]);
  return i & 1 ? __high2float(h) : __low2float(h);
}""",
)
_part(
    "unpack_bf16",
    """
template <int N> DEV float unpack_bf16(const uint32_t (&x)[N], int i) {
  return __uint_as_float(i & 1 ? x[i >> 1] & 0xffff0000u : x[i >> 1] << 16);
}""",
)
_part(
    "to_float",
    """
DEV float to_float(float x) { return x; }
DEV float to_float(__half x) { return __half2float(x); }
DEV float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }""",
)
_part(
    "after",
    """
// `value`, not known to the compiler before x is: what follows from it, made early, would fill registers while a product is in flight
DEV float after(float value, float x) { return __int_as_float(__float_as_int(value) | (__float_as_int(x) & int(blockDim.z - 1))); }""",
)

_part = COMMON.section("rows")
_part(
    "in_order",
    """
// An accumulator in dealt order with its columns in their own: of 16 a lane has 4 c .. 4 c + 3, c = lane % 4, at the places of 2 c, 2 c + 8, 2 c + 1, 2 c + 9
template <int N> DEV void in_order(const float (&x)[N], float (&y)[N], int lane) {
  const int from = (lane & ~3) | (lane >> 1 & 1);
  const bool second = lane & 1;   // of what that lane has this one takes the second two
  float z[N];
#pragma unroll
  for (int i = 0; i < N; i += 8) {
#pragma unroll
    for (int p = 0; p < 8; ++p) {
      const int row = p / 2 % 2 * 2, k = p % 2 * 4 + row;   // the row's first number, that of the column itself for the first of two lanes
      const float a = __shfl_sync(~0u, x[i + k], from + p / 4 * 2), b = __shfl_sync(~0u, x[i + k + 1], from + p / 4 * 2);
      z[i + p] = second ? b : a;
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) y[i] = z[i];
}""",
)
_part("quad_sum", "DEV float quad_sum(float x) { x += __shfl_xor_sync(~0u, x, 1); return x + __shfl_xor_sync(~0u, x, 2); }")
_part(
    "own_max",
    """
// Greatest element of this thread in row r, as the integer of its bits: floats order as signed integers as soon as one of them is not
// negative, and three integers take one instruction. Of negative elements alone it is another one of them. A NaN is greater than all numbers if its sign
// bit is clear: that of every result of arithmetic and of products is, that of an f32 in memory need not be.
template <int R, int N> DEV int own_max(const float (&x)[N], int r) {
  constexpr int G = N / (2 * R);                            // groups of 8 columns
  const int first = 4 * G * (r >> 1) + 2 * (r & 1);
  int a = __float_as_int(x[first]), b = __float_as_int(x[first + 1]);
#pragma unroll
  for (int j = 1; j < G; ++j) {
    const int i = first + 4 * j;
    int& top = j & 1 ? b : a;
    top = __vimax3_s32(top, __float_as_int(x[i]), __float_as_int(x[i + 1]));
  }
  return max(a, b);
}""",
)
_part(
    "row_bound",
    """
// An upper bound, not below 0, of this thread's elements in each row
template <int N, int R> DEV void row_bound(const float (&x)[N], float (&y)[R]) {
#pragma unroll
  for (int r = 0; r < R; ++r) y[r] = __int_as_float(max(own_max<R>(x, r), 0));
}""",
    "own_max",
)
_part(
    "row_max",
    """
// Maximum of each row: R row values a thread, N elements, no NaN of which has its sign bit set. Rows with negative elements only are done again in floats.
template <int N, int R> DEV void row_max(const float (&x)[N], float (&y)[R]) {
  constexpr int G = N / (2 * R);
  bool negative = false;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    int a = own_max<R>(x, r);
    a = max(a, __shfl_xor_sync(~0u, a, 1));
    a = max(a, __shfl_xor_sync(~0u, a, 2));
    y[r] = __int_as_float(a);
    negative |= a < 0;
  }
  if (__any_sync(~0u, negative)) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      float m = -INFINITY;
#pragma unroll
      for (int j = 0; j < G; ++j) {
        const int i = 4 * (G * (r >> 1) + j) + 2 * (r & 1);
        m = fmaxf(m, fmaxf(x[i], x[i + 1]));
      }
      m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
      y[r] = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
    }
  }
}""",
    "own_max",
)
_part(
    "row_max_nan",
    """
// Maximum of each row of any floats: R row values a thread, N elements; NaN if one of them is
template <int N, int R> DEV void row_max_nan(const float (&x)[N], float (&y)[R]) {
  constexpr int G = N / (2 * R);
#pragma unroll
  for (int r = 0; r < R; ++r) {
    float m = -INFINITY;
#pragma unroll
    for (int j = 0; j < G; ++j) {
      const int i = 4 * (G * (r >> 1) + j) + 2 * (r & 1);
      m = max_nan(m, max_nan(x[i], x[i + 1]));
    }
    m = max_nan(m, __shfl_xor_sync(~0u, m, 1));
    y[r] = max_nan(m, __shfl_xor_sync(~0u, m, 2));
  }
}""",
    "max_nan",
)
_part(
    "row_part",
    """
// This thread's part of the sum of each row; the other three threads of the quad hold the rest
template <int N, int R> DEV void row_part(const float (&x)[N], float (&y)[R]) {
  constexpr int G = N / (2 * R);
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const int first = 4 * G * (r >> 1) + 2 * (r & 1);
    float a = x[first], b = x[first + 1];                     // no sum with zero: that would be an addition
#pragma unroll
    for (int j = 1; j < G; ++j) {
      const int i = first + 4 * j;
      a += x[i]; b += x[i + 1];
    }
    y[r] = a + b;
  }
}""",
)
_part(
    "any_bits",
    """
template <int N> DEV int any_bits(const float (&x)[N]) {
  int bits = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) bits |= __float_as_int(x[i]);
  return bits;
}""",
)

_part = COMMON.section("barriers")
_part(
    "bar_sync",
    'DEV void bar_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads) : "memory"); }  // CUTLASS\'s orders no memory for the compiler',
)
_part("bar_arrive", 'DEV void bar_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" :: "r"(id), "r"(threads) : "memory"); }')

_part = COMMON.section("addresses")
_part(
    "at",
    """
// Byte address in a panelled array of ROWS rows: panels of 128 bytes, 16-byte chunks permuted by the row
template <int ROWS> DEV uint32_t at(uint32_t base, int row, int byte) {
  return base + (byte >> 7) * (ROWS * 128) + row * 128 + (((byte >> 4 & 7) ^ (row & 7)) << 4) + (byte & 15);
}""",
)
_part("address", "DEV uint32_t address(const void* p) { return cute::cast_smem_ptr_to_uint(p); }")

_part("gather", GATHER, names=("read_if",))
_part("gather_written", GATHER_WRITTEN, names=("read_if_now",))

_part = COMMON.section("words")
_part(
    "shared_access",
    """
template <class T> DEV T get(uint32_t from) { return *reinterpret_cast<const T*>(__cvta_shared_to_generic(from)); }
template <class T> DEV void put(uint32_t to, T x) { *reinterpret_cast<T*>(__cvta_shared_to_generic(to)) = x; }""",
    names=("get", "put"),
)
_part(
    "aligned",
    """
// Whether a tensor's rows start at multiples of BYTES: its address, and its strides, given in bytes and combined by |
template <int BYTES> DEV bool aligned(const void* p, int64_t strides) { return ((reinterpret_cast<uint64_t>(p) | uint64_t(strides)) & (BYTES - 1)) == 0; }""",
)
_part(
    "eight",
    """
// Eight neighbours of row value r of a packed tile with GROUPS groups of 8 columns: of groups 4 g to 4 g + 3 each of the four threads of a row gets one
template <int GROUPS, int N> DEV uint4 eight(const uint32_t (&x)[N], int r, int g, int lane) {
  uint32_t w[4];
#pragma unroll
  for (int e = 0; e < 4; ++e) w[e] = 4 * g + e < GROUPS ? x[2 * (GROUPS * (r >> 1) + 4 * g + e) + (r & 1)] : 0u;
  const bool odd = lane & 1, high = lane & 2;
  const uint32_t a = __shfl_xor_sync(~0u, odd ? w[0] : w[1], 1), b = __shfl_xor_sync(~0u, odd ? w[2] : w[3], 1);
  const uint32_t low[2] = {odd ? a : w[0], odd ? w[1] : a}, up[2] = {odd ? b : w[2], odd ? w[3] : b};   // of this thread and its neighbour
  const uint32_t c = __shfl_xor_sync(~0u, high ? low[0] : up[0], 2), d = __shfl_xor_sync(~0u, high ? low[1] : up[1], 2);
  return high ? make_uint4(c, d, up[0], up[1]) : make_uint4(low[0], low[1], c, d);
}""",
)
_part(
    "pair",
    """
// Two neighbours of row value r of a tile with GROUPS groups of 8 columns, of group g
template <int GROUPS, int N> DEV float2 pair(const float (&x)[N], int r, int g) {
  const int i = 4 * (GROUPS * (r >> 1) + g) + 2 * (r & 1);
  return make_float2(x[i], x[i + 1]);
}
template <int GROUPS, int N> DEV int2 pair(const int (&x)[N], int r, int g) {
  const int i = 4 * (GROUPS * (r >> 1) + g) + 2 * (r & 1);
  return make_int2(x[i], x[i + 1]);
}""",
)
_part("read_pair", READ_PAIR)
_part(
    "add_wide",
    "DEV void add_wide(void* to, float2 x) { atomicAdd(reinterpret_cast<float2*>(to), x); }  // each of them atomic; to a multiple of 8 bytes",
)
_part("put_wide", "template <class T> DEV void put_wide(void* to, T x) { *reinterpret_cast<T*>(to) = x; }  // to a multiple of its size")

_part = COMMON.section("registers")
_part(
    "pin",
    """
// These values are computed here and kept: compilers would compute them anew at each use, or elsewhere
template <int N> DEV void pin(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i]));
}""",
)
_part(
    "forget",
    """
// The values in these registers are needed no more; no instruction
template <int N> DEV void forget(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm("" : "=f"(x[i]));
}""",
)


def render(body: str, extra: Mapping[str, str], parts: Mapping[str, Part]) -> str:
    """Return the functions of `cuir::` that a text uses, with those they use.

    They come in the order of their sections, followed by the `extra` ones.
    """
    homes = {name: home for home, part in parts.items() for name in (home, *part.names)}
    required: set[str] = set()

    def require(name: str) -> None:
        if name not in required:
            required.add(name)
            for dependency in parts[name].needs:
                require(dependency)

    for name in re.findall(r"cuir::(\w+)", body):
        if name in homes:
            require(homes[name])
    used = sorted((part for name, part in parts.items() if name in required), key=lambda p: SECTIONS.index(p.section))
    return "\n".join([*(p.text for p in used), *(text for _, text in sorted(extra.items()))])
