// One product of a warpgroup, 64 x 32, of shared memory filled byte by byte; its matrices lie where the descriptors say.
#include <cstdint>
#define D16(c) "{" c "0," c "1," c "2," c "3," c "4," c "5," c "6," c "7," c "8," c "9," c "10," c "11," c "12," c "13," c "14," c "15}"
#define BODY(op, a, flags) \
  asm volatile("{ .reg .pred p; .reg .b32 d<16>; .reg .b32 a<4>;\n" \
    "ld.global.v4.b32 {d0, d1, d2, d3}, [%3]; ld.global.v4.b32 {d4, d5, d6, d7}, [%3+16];\n" \
    "ld.global.v4.b32 {d8, d9, d10, d11}, [%3+32]; ld.global.v4.b32 {d12, d13, d14, d15}, [%3+48];\n" \
    "ld.global.v4.b32 {a0, a1, a2, a3}, [%4]; setp.ne.b32 p, %2, 0;\n" \
    "wgmma.fence.sync.aligned;\n" \
    "wgmma.mma_async.sync.aligned." op " " D16("d") ", " a ", %1, p" flags ";\n" \
    "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;\n" \
    "st.global.v4.b32 [%3], {d0, d1, d2, d3}; st.global.v4.b32 [%3+16], {d4, d5, d6, d7};\n" \
    "st.global.v4.b32 [%3+32], {d8, d9, d10, d11}; st.global.v4.b32 [%3+48], {d12, d13, d14, d15}; }" \
    :: "l"(da), "l"(db), "r"(adds), "l"(y + 16 * threadIdx.x), "l"(x + 4 * threadIdx.x) : "memory");
#define KERNEL(name, op, a, flags) extern "C" __global__ void __launch_bounds__(128) name(const uint32_t* x, uint32_t* y, uint64_t da, uint64_t db, int adds) { \
    __shared__ alignas(1024) uint32_t tile[8192]; \
    for (int i = threadIdx.x; i < 8192; i += 128) tile[i] = x[i]; \
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); \
    __syncthreads(); \
    uint64_t base = ((uint64_t)__cvta_generic_to_shared(tile) & 0x3FFFF) >> 4; \
    da += base; db += base; \
    BODY(op, a, flags) }
#define F16 "m64n32k16.f32.f16.f16"
#define A4 "{a0, a1, a2, a3}"
KERNEL(f16, F16, "%0", ", 1, 1, 0, 0")
KERNEL(f16_first, F16, "%0", ", 1, 1, 1, 0")
KERNEL(f16_second, F16, "%0", ", 1, 1, 0, 1")
KERNEL(f16_both, F16, "%0", ", 1, 1, 1, 1")
KERNEL(f16_negated, F16, "%0", ", -1, 1, 0, 0")
KERNEL(f16_registers, F16, A4, ", 1, -1, 0")
KERNEL(bf16, "m64n32k16.f32.bf16.bf16", "%0", ", 1, 1, 0, 0")
KERNEL(tf32, "m64n32k8.f32.tf32.tf32", "%0", ", 1, 1")
KERNEL(tf32_registers, "m64n32k8.f32.tf32.tf32", A4, ", 1, 1")
KERNEL(e4m3, "m64n32k32.f32.e4m3.e4m3", "%0", ", 1, 1")
KERNEL(e5m2_e4m3, "m64n32k32.f32.e5m2.e4m3", "%0", ", 1, 1")
KERNEL(s8, "m64n32k32.s32.s8.s8", "%0", "")
KERNEL(s8_registers, "m64n32k32.s32.s8.s8", A4, "")
#undef D16
#define D16(c) "{" c "0," c "1," c "2," c "3," c "4," c "5," c "6," c "7}"
KERNEL(f16_to_f16, "m64n32k16.f16.f16.f16", "%0", ", 1, 1, 0, 0")

// Two products into one accumulator; FAULT leaves out a piece.
template <int FAULT> __device__ void twice(const uint32_t* x, float* y) {
  __shared__ alignas(1024) uint32_t tile[2048];
  for (int i = threadIdx.x; i < 2048; i += 128) tile[i] = x[i];
  if (FAULT != 1) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  uint64_t d = (((uint64_t)__cvta_generic_to_shared(tile) & 0x3FFFF) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
  float a = threadIdx.x, b = 0, c = 0, e = 0;
  // Else nvcc may write registers behind the fence.
#define PIN asm volatile("" : "+f"(a), "+f"(b), "+f"(c), "+f"(e) :: "memory")
  PIN;
  if (FAULT != 2) asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#define MULTIPLY asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %4, 1, 1, 1, 0, 0;" : "+f"(a), "+f"(b), "+f"(c), "+f"(e) : "l"(d) : "memory")
  MULTIPLY;
  if (FAULT == 3) a += 1;
  MULTIPLY;
  if (FAULT != 4) asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  if (FAULT != 5) asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");

  if (FAULT == 7) MULTIPLY;
  PIN;
  y[threadIdx.x] = FAULT == 7 ? 0 : a + b + c + e;
  tile[threadIdx.x] = 0;
}
#define TWICE(name, fault) extern "C" __global__ void __launch_bounds__(128) name(const uint32_t* x, float* y) { twice<fault>(x, y); }
TWICE(right, 0) TWICE(no_proxy_fence, 1) TWICE(no_fence, 2) TWICE(written_between, 3) TWICE(no_commit, 4) TWICE(no_wait, 5) TWICE(unawaited, 7)

// One warp of the four does not come to the product.
extern "C" __global__ void __launch_bounds__(128) one_warp_less(const uint32_t* x, float* y) {
  if (threadIdx.x < 96) twice<0>(x, y);
  else { __syncthreads(); asm volatile("bar.sync 1, 64;" ::: "memory"); }
}

// Each thread reads what its neighbour overwrites: before a product that all wait for, or behind it.
template <bool BEFORE> __device__ void reads(const uint32_t* x, float* y) {
  __shared__ alignas(1024) uint32_t tile[2048];
  __shared__ float other[128];
  for (int i = threadIdx.x; i < 2048; i += 128) tile[i] = x[i];
  other[threadIdx.x] = 1;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  uint64_t d = (((uint64_t)__cvta_generic_to_shared(tile) & 0x3FFFF) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
  float a = 0, b = 0, c = 0, e = 0, read = 0;
#define READ asm volatile("ld.shared.f32 %0, [%1];" : "=f"(read) : "r"((uint32_t)__cvta_generic_to_shared(other + (threadIdx.x ^ 1))) : "memory")
  if (BEFORE) READ;
  PIN;
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  MULTIPLY;
  asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" ::: "memory");
  PIN;
  if (!BEFORE) READ;
  other[threadIdx.x] = 2;
  y[threadIdx.x] = a + b + c + e + read;
}
extern "C" __global__ void __launch_bounds__(128) read_before(const uint32_t* x, float* y) { reads<true>(x, y); }
extern "C" __global__ void __launch_bounds__(128) read_behind(const uint32_t* x, float* y) { reads<false>(x, y); }

// Each warp writes the rows of A of a warp: its own, the next one's, or that of the first warpgroup if it belongs to the second; it meets its lanes alone.
template <int SHIFT> __device__ void rows(const uint32_t* x, float* y) {
  __shared__ alignas(1024) uint32_t first[2048];
  __shared__ alignas(1024) uint32_t second[256];
  for (int i = threadIdx.x; i < 256; i += 128) second[i] = x[i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (SHIFT < 4 || threadIdx.x >= 128)
    for (int i = threadIdx.x % 32; i < 512; i += 32) first[(threadIdx.x / 32 + SHIFT) % 4 * 512 + i] = x[i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncwarp();
  if (threadIdx.x >= 128) return;
  uint64_t form = (1ull << 16) | (64ull << 32) | (1ull << 62);
  uint64_t d = (((uint64_t)__cvta_generic_to_shared(first) & 0x3FFFF) >> 4) | form, f = (((uint64_t)__cvta_generic_to_shared(second) & 0x3FFFF) >> 4) | form;
  float a = 0, b = 0, c = 0, e = 0;
  PIN;
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;" : "+f"(a), "+f"(b), "+f"(c), "+f"(e) : "l"(d), "l"(f) : "memory");
  asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" ::: "memory");
  PIN;
  y[threadIdx.x] = a + b + c + e;
}
extern "C" __global__ void __launch_bounds__(128) own_rows(const uint32_t* x, float* y) { rows<0>(x, y); }
extern "C" __global__ void __launch_bounds__(128) rows_of_others(const uint32_t* x, float* y) { rows<1>(x, y); }
extern "C" __global__ void __launch_bounds__(256) rows_of_another_warpgroup(const uint32_t* x, float* y) { rows<4>(x, y); }
