"""Device functions of the emitted file that sm_90a brings: mbarriers, stmatrix, registers and descriptors of wgmma. Owns their text."""

from __future__ import annotations

from ...cuda.prelude import Parts
from .queues import QUEUES

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
    'DEV void wait(uint64_t* bar, int parity) { Bar::wait(bar, parity); asm volatile("" ::: "memory"); }',  # the watchdog puts its own there
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
    "DEV void wait_cluster(uint64_t* bar, int parity) { while (!try_wait_cluster(bar, parity)) {} }",  # here too
    "wait",  # its place takes what both of the watchdog's need
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
