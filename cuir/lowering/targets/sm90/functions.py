"""Device functions that sm_90a brings: mbarriers, stmatrix, registers and descriptors of wgmma."""

from __future__ import annotations

from ...cuda.prelude import Parts
from .queues import QUEUES
from .widened_functions import WIDENED

PARTS = Parts()
part = PARTS.section("numbers")
for _name in ("e4m3", "e5m2"):
    part(
        f"f8{_name}",
        f"""
// Of 8 bits: a float rounded to nearest even, greater ones to the largest number
struct f8{_name} {{
  uint8_t bits;
  DEV_MEMBER explicit f8{_name}(float x) {{ uint16_t pair; asm("cvt.rn.satfinite.{_name}x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.f), "f"(x)); bits = uint8_t(pair); }}
}};
DEV uint32_t to_halves_f8{_name}(uint16_t x) {{
  uint32_t pair;
  asm("cvt.rn.f16x2.{_name}x2 %0, %1;" : "=r"(pair) : "h"(x));
  return pair;
}}
DEV float2 to_floats_f8{_name}(uint16_t x) {{
  const uint32_t pair = to_halves_f8{_name}(x);
  return __half22float2(reinterpret_cast<const __half2&>(pair));
}}
DEV float to_float(f8{_name} x) {{ return to_floats_f8{_name}(x.bits).x; }}
DEV float round_f8{_name}(float x) {{ return to_float(f8{_name}(x)); }}""",
        names=(f"round_f8{_name}",),
    )

part = PARTS.section("mbarriers")
part("Bar", "using Bar = cutlass::arch::ClusterBarrier;\nusing TransactionBar = cutlass::arch::ClusterTransactionBarrier;")
part(
    "wait",
    'DEV void wait(uint64_t* bar, int parity) { Bar::wait(bar, parity); asm volatile("" ::: "memory"); }',  # replaced by the watchdog
    "Bar",
)
part(
    "try_wait",
    'DEV bool try_wait(uint64_t* bar, int parity) { const bool done = Bar::try_wait(bar, parity); asm volatile("" ::: "memory"); return done; }',
    "Bar",
)
part("expect", "DEV void expect(uint64_t* bar, int bytes) { TransactionBar::arrive_and_expect_tx(bar, bytes); }  // arrives, too", "Bar")
part("arrive", "DEV void arrive(uint64_t* bar) { Bar::arrive(bar); }", "Bar")
part(
    "arrive_warp",
    "DEV void arrive_warp(uint64_t* bar, int lane) { __syncwarp(); if (lane == 0) Bar::arrive(bar); }  // one arrival for a warp",
    "Bar",
)
part(
    "arrive_cluster",
    "DEV void arrive_cluster(uint64_t* bar, int lane, int ctas, int cta) { __syncwarp(); Bar::arrive(bar, cta, lane < ctas); }  // a lane at each of so many CTAs",
    "Bar",
)
part(
    "try_wait_cluster",
    """
// Waits for arrivals of other CTAs of the cluster, and for what they did to tensors before: a load behind it is not served from a stale line of the L1 cache
DEV bool try_wait_cluster(uint64_t* bar, int parity) {
  uint32_t done;
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }" : "=r"(done) : "r"(cute::cast_smem_ptr_to_uint(bar)), "r"(parity) : "memory");
  return done;
}""",
)
part(
    "wait_cluster",
    "DEV void wait_cluster(uint64_t* bar, int parity) { while (!try_wait_cluster(bar, parity)) {} }",  # replaced by the watchdog, too
    "wait",  # with which the watchdog brings `give_up`
    "try_wait_cluster",
)
part(
    "release_cluster",
    """
// Arrives at the barrier of a CTA of the cluster, after what this one did to tensors
DEV void release_cluster(uint64_t* bar, int cta) {
  asm volatile("{ .reg .b32 to; mapa.shared::cluster.u32 to, %0, %1; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [to]; }" :: "r"(cute::cast_smem_ptr_to_uint(bar)), "r"(cta) : "memory");
}""",
)
part(
    "release_cluster_warp",
    "DEV void release_cluster_warp(uint64_t* bar, int lane, int ctas, int cta) { __syncwarp(); if (lane < ctas) release_cluster(bar, cta); }",
    "release_cluster",
)
part(
    "fence_proxy",
    'DEV void fence_proxy() { asm volatile("fence.proxy.async;" ::: "memory"); }  // for tensors and shared memory; CUTLASS has that for shared memory',
)

part = PARTS.section("matrices")
part(
    "store_matrix",
    """
// 16 x 16 elements of 16 bits a warp, chunk by chunk, from accumulator order to rows of shared memory
template <int ROWS, int N> DEV void store_matrix(const uint32_t (&x)[N], uint32_t base, int row, int lane, int columns) {
#pragma unroll
  for (int i = 0; i < N; i += 4) {
    uint32_t first = at<ROWS>(base, row + (lane & 15), 32 * (i / 4 % 4) + 16 * (lane >> 4));
    asm("" : "+r"(first));   // one sum for all panels: they differ by a constant in the instruction
    const uint32_t to = first + i / 16 * (ROWS * 128);
    asm volatile("stmatrix.sync.aligned.x4.m8n8.shared.b16 [%0], {%1, %2, %3, %4};" :: "r"(to), "r"(x[i]), "r"(x[i + 1]), "r"(x[i + 2]), "r"(x[i + 3]) : "memory");
  }
}""",
    "at",
)
part(
    "store_slabs",
    """
// A tile of SLABS times the rows that the worker's lanes hold at once, the next ones STEP rows behind
template <int ROWS, int STEP, int SLABS, int N> DEV void store_slabs(const uint32_t (&x)[N], uint32_t base, int row, int lane) {
#pragma unroll
  for (int s = 0; s < SLABS; ++s) {
    uint32_t y[N / SLABS];
#pragma unroll
    for (int i = 0; i < N / SLABS; ++i) y[i] = x[s * (N / SLABS) + i];
    store_matrix<ROWS>(y, base, row + s * STEP, lane, 0);
  }
}""",
    "store_matrix",
)

part = PARTS.section("copies")
for _name in ("e4m3", "e5m2"):
    part(
        f"load_pairs_f8{_name}",
        f"""
// Rows of 8-bit numbers in shared memory as an accumulator lies: pairs of columns, two at a time
template <int ROWS, int COLS> DEV void load_pairs_f8{_name}(float (&x)[COLS / 2], uint32_t from, int row, int col) {{
#pragma unroll
  for (int i = 0; i < COLS / 4; ++i) {{
    const float2 pair = to_floats_f8{_name}(get<uint16_t>(at<ROWS>(from, row + 8 * (i % 2), col + 8 * (i / 2))));
    x[2 * i] = pair.x, x[2 * i + 1] = pair.y;
  }}
}}""",
        "at",
        "shared_access",
        f"f8{_name}",
    )

    part(
        f"load_halves_f8{_name}",
        f"""
// The same as f16, which holds each of them: two to a register
template <int ROWS, int COLS> DEV void load_halves_f8{_name}(uint32_t (&x)[COLS / 4], uint32_t from, int row, int col) {{
#pragma unroll
  for (int i = 0; i < COLS / 4; ++i) x[i] = to_halves_f8{_name}(get<uint16_t>(at<ROWS>(from, row + 8 * (i % 2), col + 8 * (i / 2))));
}}""",
        "at",
        "shared_access",
        f"f8{_name}",
    )

part(
    "chunk_place",
    """
// Chunk i of a thread's: row, and number of the chunk of 16 numbers in it. Eight lanes take four chunks of each of two rows, such that they meet in no bank of shared memory,
// neither in rows of 8-bit numbers nor in rows of halves.
struct Chunk { int row, number; };
template <int COLS, int WARPS> DEV Chunk chunk_place(int i, int warp, int lane) {
  constexpr int QUARTERS = COLS / 64;
  const int turn = i * WARPS + warp, first = lane / 8;
  return {turn / QUARTERS * 8 + (lane % 8 < 4 ? first : first ^ 5), turn % QUARTERS * 4 + lane % 4};
}""",
)
for _name in ("e4m3", "e5m2"):
    part(
        f"load_chunks_f8{_name}",
        f"""
// Rows of 8-bit numbers as halves of either kind
template <int ROWS, int COLS, int WARPS, bool BF16, int N> DEV void load_chunks_f8{_name}(uint32_t (&x)[N], uint32_t from, int warp, int lane) {{
  uint4 chunk[N / 8];
#pragma unroll
  for (int i = 0; i < N / 8; ++i) {{
    const Chunk c = chunk_place<COLS, WARPS>(i, warp, lane);
    chunk[i] = get<uint4>(at<ROWS>(from, c.row, 16 * c.number));
  }}
#pragma unroll
  for (int i = 0; i < N; ++i) {{
    const uint4 c = chunk[i / 8];
    const uint32_t four = i / 2 % 4 == 0 ? c.x : i / 2 % 4 == 1 ? c.y : i / 2 % 4 == 2 ? c.z : c.w;
    const uint16_t two = i % 2 ? four >> 16 : four & 0xffff;
    if constexpr (BF16) {{
      const float2 pair = to_floats_f8{_name}(two);
      x[i] = pack_bf16(pair.x, pair.y);
    }} else {{
      x[i] = to_halves_f8{_name}(two);
    }}
  }}
}}""",
        "at",
        "shared_access",
        "chunk_place",
        "pack_bf16",
        f"f8{_name}",
    )
part(
    "store_chunks",
    """
template <int ROWS, int COLS, int WARPS, int N> DEV void store_chunks(const uint32_t (&x)[N], uint32_t to, int warp, int lane) {
#pragma unroll
  for (int i = 0; i < N / 8; ++i) {
    const Chunk c = chunk_place<COLS, WARPS>(i, warp, lane);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t* const half = x + 8 * i + 4 * h;
      put<uint4>(at<ROWS>(to, c.row, 32 * c.number + 16 * h), make_uint4(half[0], half[1], half[2], half[3]));
    }
  }
}""",
    "at",
    "shared_access",
    "chunk_place",
)

part = PARTS.section("fences")
part(
    "fence_regs",
    """
// No instruction on these registers moves across
template <int N> DEV void fence_regs(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) cute::warpgroup_fence_operand(x[i]);
}
template <int N> DEV void fence_regs(uint32_t (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) cute::warpgroup_fence_operand(x[i]);
}""",
)

part = PARTS.section("descriptors")
part(
    "descriptor",
    """
// wgmma descriptor: address and leading offset in units of 16 bytes (the low word), 1024 bytes between groups of 8 rows, 128-byte swizzle
DEV uint64_t descriptor(uint32_t low) { return uint64_t(0x40000040) << 32 | low; }""",
)
part(
    "descriptor_at",
    """
// The descriptor of a place i * step units of 16 bytes on in the same array, by one wide multiply-add: no carry leaves the address
DEV uint64_t descriptor_at(uint64_t base, int i, uint32_t step) { return base + uint64_t(uint32_t(i)) * step; }""",
)

PARTS.update(QUEUES)
PARTS.update(WIDENED)
