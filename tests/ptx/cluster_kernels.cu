#include <cstdint>
__device__ unsigned sm(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ unsigned peer(const void* p, unsigned rank) { unsigned a; asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(a) : "r"(sm(p)), "r"(rank)); return a; }
__device__ unsigned rank() { unsigned r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
__device__ unsigned ctas() { unsigned r; asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(r)); return r; }
__device__ void arrive() { asm volatile("barrier.cluster.arrive.aligned;" ::: "memory"); }
__device__ void arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ void wait_cluster() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }
__device__ void sync_cluster() { arrive(); wait_cluster(); }
__device__ int load_peer(unsigned a) { int v; asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(v) : "r"(a) : "memory"); return v; }
__device__ void init(uint64_t* bar, int n) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(sm(bar)), "r"(n)); }
__device__ void expect(uint64_t* bar, int n) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(sm(bar)), "r"(n) : "memory"); }
__device__ void arrive_at(unsigned bar) { asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(bar) : "memory"); }
__device__ void await(uint64_t* bar, int parity) {
  asm volatile("{ .reg .pred p; W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1; @p bra D; bra W; D: }" :: "r"(sm(bar)), "r"(parity) : "memory");
}
#define CLUSTER4 extern "C" __global__ void __cluster_dims__(4, 1, 1)

// Each CTA reads what the next one has; FAULT leaves out a piece.
template <int FAULT> __device__ void shift(int* y) {
  __shared__ int s[32];
  s[threadIdx.x] = blockIdx.x * 32 + threadIdx.x;
  if (FAULT == 1) arrive_relaxed(); else if (FAULT != 2) arrive();
  if (FAULT != 2) wait_cluster();
  int v = load_peer(peer(&s[threadIdx.x], (rank() + 1) % ctas()));
  if (FAULT == 3) arrive_relaxed(); else if (FAULT != 4) arrive();
  if (FAULT < 4) wait_cluster();
  y[blockIdx.x * 32 + threadIdx.x] = v;
}
#define SHIFT(name, fault) CLUSTER4 name(int* y) { shift<fault>(y); }
SHIFT(shift_right, 0) SHIFT(shift_relaxed, 1) SHIFT(shift_without_first, 2) SHIFT(shift_relaxed_last, 3) SHIFT(shift_without_last, 4)

// All CTAs count in the shared memory of the first one, by generic addresses.
CLUSTER4 count(int* y) {
  __shared__ int n[4];
  if (threadIdx.x < 4) n[threadIdx.x] = 0;
  sync_cluster();
  int* to;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(to) : "l"(&n[threadIdx.x % 4]), "r"(0));
  atomicAdd(to, 1);
  unsigned where;
  asm volatile("getctarank.u64 %0, %1;" : "=r"(where) : "l"(to));
  sync_cluster();
  if (threadIdx.x < 4) y[blockIdx.x * 4 + threadIdx.x] = rank() ? int(where) : n[threadIdx.x];
}

// The first CTA waits for arrivals of the others and reads what they have; FAULT leaves out a piece.
template <int FAULT> __device__ void collect(int* y) {
  __shared__ uint64_t bar, back;
  __shared__ int s[32];
  if (threadIdx.x == 0) { init(&bar, 3 * 32); init(&back, 1); asm volatile("fence.mbarrier_init.release.cluster;"); }
  if (FAULT == 1) __syncthreads(); else { arrive_relaxed(); wait_cluster(); }
  s[threadIdx.x] = rank() * 100 + threadIdx.x;
  if (rank()) {
    if (FAULT != 2) arrive_at(peer(&bar, 0));
    if (FAULT != 3) await(&back, 0);
  } else {
    if (FAULT != 2) await(&bar, 0);
    int v = 0;
    for (int r = 1; r < 4; ++r) v += load_peer(peer(&s[threadIdx.x], r));
    y[threadIdx.x] = v;
    __syncthreads();
    if (threadIdx.x && threadIdx.x < 4) arrive_at(peer(&back, threadIdx.x));
  }
}
#define COLLECT(name, fault) CLUSTER4 name(int* y) { collect<fault>(y); }
COLLECT(collect_right, 0) COLLECT(collect_without_barrier, 1) COLLECT(collect_without_arrival, 2) COLLECT(collect_without_wait, 3)

// Parts of 64 floats that each CTA copies to all; FAULT leaves out a piece.
template <int FAULT> __device__ void spread(const float* x, float* y, int rounds) {
  __shared__ alignas(128) float s[2][256];
  __shared__ uint64_t full, empty;
  if (threadIdx.x == 0) { init(&full, 1); init(&empty, 4); asm volatile("fence.mbarrier_init.release.cluster;"); }
  sync_cluster();
  for (int i = 0; i < rounds; ++i) {
    if (threadIdx.x == 0) {
      if (FAULT != 1) await(&empty, (i & 1) ^ 1);
      expect(&full, 1024);
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;"
        :: "r"(sm(s[0] + rank() * 64)), "l"(x + i * 256 + rank() * 64), "r"(256), "r"(sm(&full)), "h"((uint16_t)(FAULT == 2 ? 7 : FAULT == 3 ? 31 : 15)) : "memory");
    }
    await(&full, i & 1);
    y[(i * 4 + blockIdx.x) * 256 + threadIdx.x] = s[0][threadIdx.x] + 1;
    __syncthreads();
    if (threadIdx.x < 4) arrive_at(peer(&empty, threadIdx.x));
  }
  sync_cluster();
}
#define SPREAD(name, fault) CLUSTER4 name(const float* x, float* y, int rounds) { spread<fault>(x, y, rounds); }
SPREAD(spread_right, 0) SPREAD(spread_without_wait, 1) SPREAD(spread_to_three, 2) SPREAD(spread_to_five, 3)

// Each CTA sends its numbers to the next one: by stores that land on an mbarrier, or by a copy; FAULT leaves out a piece.
template <bool COPIES, int FAULT> __device__ void send(int* y) {
  __shared__ alignas(128) int from[64];
  __shared__ alignas(128) int to[64];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) { init(&full, 1); asm volatile("fence.mbarrier_init.release.cluster;"); expect(&full, 256); }
  from[threadIdx.x] = blockIdx.x * 64 + threadIdx.x;
  if (FAULT != 2) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  sync_cluster();
  unsigned next = (rank() + 1) % ctas();
  if (COPIES) {
    if (threadIdx.x == 0) asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
      :: "r"(peer(to, next)), "r"(sm(from)), "r"(256), "r"(peer(&full, FAULT == 3 ? rank() : next)) : "memory");
  } else if (threadIdx.x < 32) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.s32 [%0], {%1, %2}, [%3];"
      :: "r"(peer(to + 2 * threadIdx.x, next)), "r"(from[2 * threadIdx.x]), "r"(from[2 * threadIdx.x + 1]), "r"(peer(&full, next)) : "memory");
  }
  if (FAULT != 1) await(&full, 0);
  y[blockIdx.x * 64 + threadIdx.x] = to[threadIdx.x];
  sync_cluster();
}
#define SEND(name, copies, fault) CLUSTER4 name(int* y) { send<copies, fault>(y); }
SEND(store_right, false, 0) SEND(store_without_wait, false, 1) SEND(copy_right, true, 0) SEND(copy_without_wait, true, 1) SEND(copy_without_fence, true, 2) SEND(copy_to_own_barrier, true, 3)

// Places of CTAs and clusters.
extern "C" __global__ void places(int* y) {
  int v[7];
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(v[0]));
  asm volatile("mov.u32 %0, %%clusterid.y;" : "=r"(v[1]));
  asm volatile("mov.u32 %0, %%cluster_ctaid.x;" : "=r"(v[2]));
  asm volatile("mov.u32 %0, %%cluster_ctaid.y;" : "=r"(v[3]));
  asm volatile("mov.u32 %0, %%cluster_nctaid.y;" : "=r"(v[4]));
  asm volatile("mov.u32 %0, %%nclusterid.x;" : "=r"(v[5]));
  v[6] = rank();
  for (int i = 0; i < 7; ++i) y[(blockIdx.y * gridDim.x + blockIdx.x) * 7 + i] = v[i];
}

CLUSTER4 arrive_twice(int* y) { arrive(); arrive(); wait_cluster(); }
CLUSTER4 wait_only(int* y) { wait_cluster(); }
CLUSTER4 one_leaves(int* y) { if (rank() == 2) return; sync_cluster(); y[blockIdx.x] = 1; }
CLUSTER4 too_far(int* y) { __shared__ int s; s = 0; sync_cluster(); y[0] = load_peer(peer(&s, 4)); }
