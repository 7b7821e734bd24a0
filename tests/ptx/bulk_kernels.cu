#include <cstdint>
__device__ unsigned sm(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void init(uint64_t* bar, int n) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(sm(bar)), "r"(n)); }
__device__ void expect(uint64_t* bar, int n) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(sm(bar)), "r"(n) : "memory"); }
__device__ void await(uint64_t* bar, int parity) {
  asm volatile("{ .reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra D; bra W; D: }" :: "r"(sm(bar)), "r"(parity) : "memory");
}
__device__ void load(void* to, const void* from, int n, uint64_t* bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" :: "r"(sm(to)), "l"(from), "r"(n), "r"(sm(bar)) : "memory");
}
__device__ void store(void* to, const void* from, int n) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" :: "l"(to), "r"(sm(from)), "r"(n) : "memory");
}
__device__ void fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ void commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template<int N> __device__ void wait_read() { asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(N) : "memory"); }
// Doubles rows of 128 floats; FAULT leaves out a piece.
template <int FAULT> __device__ void twice(const float* x, float* y, int rows) {
  __shared__ alignas(128) float in[2][128];
  __shared__ alignas(128) float out[2][128];
  __shared__ uint64_t full[2];
  if (threadIdx.x == 0) { init(full, 1); init(full + 1, 1); asm volatile("fence.mbarrier_init.release.cluster;"); }
  __syncthreads();
  for (int r = 0; r < rows; ++r) {
    int s = r & 1;
    if (threadIdx.x == 0) { expect(full + s, FAULT == 4 ? 520 : FAULT == 5 ? 256 : 512); load(in[s], x + r * 128, 512, full + s); }
    if (FAULT != 1) await(full + s, r >> 1 & 1);
    if (FAULT != 3 && threadIdx.x == 0) wait_read<1>();
    __syncthreads();
    out[s][threadIdx.x] = 2 * in[s][threadIdx.x];
    if (FAULT != 2 && FAULT != 6) fence();
    __syncthreads();
    if (FAULT == 6 && threadIdx.x == 0) fence();
    if (threadIdx.x == 0) { store(y + r * 128, out[s], 512); commit(); }
  }
  if (FAULT != 7 && threadIdx.x == 0) wait_read<0>();
}
#define KERNEL(name, fault) extern "C" __global__ void name(const float* x, float* y, int rows) { twice<fault>(x, y, rows); }
KERNEL(right, 0) KERNEL(no_wait, 1) KERNEL(no_fence, 2) KERNEL(no_read_wait, 3) KERNEL(more_bytes, 4) KERNEL(fewer_bytes, 5) KERNEL(fence_by_issuer, 6) KERNEL(last_store_unread, 7)

// A copy that the kernel does not wait for.
extern "C" __global__ void unawaited(const float* x, float* y, int rows) {
  __shared__ alignas(128) float in[128];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) { init(&full, 1); expect(&full, 512); load(in, x, 512, &full); }
}

// Copies of boxes: shared memory, byte by byte as a load leaves it; and a store or addition of what x holds.
struct alignas(64) Map { char bytes[128]; };
__shared__ alignas(1024) unsigned char tile[8192];
template <int RANK> __device__ void load_box(const Map& map, uint64_t* bar, int a, int b, int c, int d, int e) {
  auto p = &map;
#define LOAD(dims, at, ...) asm volatile("cp.async.bulk.tensor." dims ".shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {" at "}], [%2];" \
    :: "r"(sm(tile)), "l"(p), "r"(sm(bar)), __VA_ARGS__ : "memory")
  if (RANK == 1) LOAD("1d", "%3", "r"(a));
  if (RANK == 2) LOAD("2d", "%3, %4", "r"(a), "r"(b));
  if (RANK == 3) LOAD("3d", "%3, %4, %5", "r"(a), "r"(b), "r"(c));
  if (RANK == 4) LOAD("4d", "%3, %4, %5, %6", "r"(a), "r"(b), "r"(c), "r"(d));
  if (RANK == 5) LOAD("5d", "%3, %4, %5, %6, %7", "r"(a), "r"(b), "r"(c), "r"(d), "r"(e));
}
template <int RANK> __device__ void take(const Map& map, unsigned char* y, int n, int a, int b, int c, int d, int e) {
  __shared__ uint64_t bar;
  if (threadIdx.x == 0) {
    asm volatile("prefetch.tensormap [%0];" :: "l"(&map) : "memory");
    init(&bar, 1);
    asm volatile("fence.mbarrier_init.release.cluster;");
    expect(&bar, n);
    load_box<RANK>(map, &bar, a, b, c, d, e);
  }
  __syncthreads();
  await(&bar, 0);
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = tile[i];
}
#define TAKE(rank) extern "C" __global__ void take_##rank(const __grid_constant__ Map map, unsigned char* y, int n, int a, int b, int c, int d, int e) { take<rank>(map, y, n, a, b, c, d, e); }
TAKE(1) TAKE(2) TAKE(3) TAKE(4) TAKE(5)
template <bool ADDS, bool FENCED, int THREADS = 1> __device__ void put(const Map& map, const unsigned char* x, int n, int a, int b) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) tile[i] = x[i];
  if (FENCED) fence();
  __syncthreads();
  if (threadIdx.x < THREADS) {
    if (ADDS) asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];" :: "l"(&map), "r"(a), "r"(b), "r"(sm(tile)) : "memory");
    else asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" :: "l"(&map), "r"(a), "r"(b), "r"(sm(tile)) : "memory");
    commit();
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
}
#define PUT(name, ...) extern "C" __global__ void name(const __grid_constant__ Map map, const unsigned char* x, int n, int a, int b) { put<__VA_ARGS__>(map, x, n, a, b); }
PUT(put_box, false, true) PUT(add_box, true, true) PUT(put_box_without_fence, false, false) PUT(put_box_by_a_warp, false, true, 32) PUT(put_box_by_two_warps, false, true, 64)

// Adds 64 words of x to those of y.
#define ADD(name, type) extern "C" __global__ void name(const uint32_t* x, uint32_t* y) { \
    for (int i = threadIdx.x; i < 64; i += blockDim.x) ((uint32_t*)tile)[i] = x[i]; \
    fence(); __syncthreads(); \
    if (threadIdx.x == 0) { \
      asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add." type " [%0], [%1], 256;" :: "l"(y), "r"(sm(tile)) : "memory"); \
      commit(); wait_read<0>(); } }
ADD(add_f32, "f32") ADD(add_f16, "noftz.f16") ADD(add_u32, "u32")

// Two warps write a tile that one thread stores: behind a barrier of its warp, and without the fence.
extern "C" __global__ void put_unordered(uint32_t* y) {
  ((uint32_t*)tile)[threadIdx.x] = threadIdx.x;
  __syncwarp();
  if (threadIdx.x == 0) { store(y, tile, 256); commit(); wait_read<0>(); }
}

// Copies a box of 8 x 16 floats of each of some tensors, by a map that it changes in memory for each; FAULT leaves out a piece.
template <int FAULT> __device__ void visit(const Map& map, Map* maps, const float* x, float* y, int tensors) {
  __shared__ alignas(128) float box[4][128];
  __shared__ alignas(128) Map changed;
  __shared__ uint64_t full[4];
  if (threadIdx.x < 8) reinterpret_cast<uint4*>(&changed)[threadIdx.x] = reinterpret_cast<const uint4*>(&map)[threadIdx.x];
  if (threadIdx.x < 4) init(full + threadIdx.x, 1);
  __syncthreads();
  for (int i = 0; i < tensors; ++i) {
    if (threadIdx.x == 0) {
      asm volatile("tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;" :: "r"(sm(&changed)), "l"(x + i * 128) : "memory");
      asm volatile("tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 1, %1;" :: "r"(sm(&changed)), "r"(8 - i) : "memory");
      asm volatile("tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%0], 0, %1;" :: "r"(sm(&changed)), "l"(64ll) : "memory");
    }
    __syncwarp();
    if (FAULT == 4) {
      if (threadIdx.x < 32) asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%0], [%1], 128;" :: "l"(maps), "r"(sm(&changed)) : "memory");
    } else if (threadIdx.x == 0) {
      *maps = changed;
      if (FAULT != 1) asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
    }
    if (threadIdx.x == 0) {
      if (FAULT != 2) asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" :: "l"(maps) : "memory");
      expect(full + i, 512);
      asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %3}], [%2];" :: "r"(sm(box[i])), "l"(maps), "r"(sm(full + i)), "r"(0) : "memory");
    }
    if (FAULT != 3) await(full + i, 0);
  }
  for (int i = 0; i < tensors; ++i) {
    await(full + i, 0);
    for (int n = threadIdx.x; n < 128; n += 32) y[i * 128 + n] = box[i][n];
  }
}
#define VISIT(name, fault) extern "C" __global__ void name(const __grid_constant__ Map map, Map* maps, const float* x, float* y, int tensors) { visit<fault>(map, maps, x, y, tensors); }
VISIT(visit_right, 0) VISIT(visit_unreleased, 1) VISIT(visit_unacquired, 2) VISIT(visit_in_flight, 3) VISIT(visit_fenced_copy, 4)
