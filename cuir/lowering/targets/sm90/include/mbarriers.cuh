// mbarriers of a CTA and of a cluster, and proxy fences.
#pragma once
#include "headers.cuh"

namespace cuir {

//@ section mbarriers

//@ part Bar
using Bar = cutlass::arch::ClusterBarrier;
using TransactionBar = cutlass::arch::ClusterTransactionBarrier;

//@ note runtime/watchdog.py replaces it
//@ part wait needs Bar
DEV void wait(uint64_t* bar, int parity) { Bar::wait(bar, parity); asm volatile("" ::: "memory"); }

//@ part try_wait needs Bar
DEV bool try_wait(uint64_t* bar, int parity) { const bool done = Bar::try_wait(bar, parity); asm volatile("" ::: "memory"); return done; }

//@ part expect needs Bar
DEV void expect(uint64_t* bar, int bytes) { TransactionBar::arrive_and_expect_tx(bar, bytes); }  // arrives, too

//@ part arrive needs Bar
DEV void arrive(uint64_t* bar) { Bar::arrive(bar); }

//@ part arrive_warp needs Bar
DEV void arrive_warp(uint64_t* bar, int lane) { __syncwarp(); if (lane == 0) Bar::arrive(bar); }  // one arrival for a warp

//@ part arrive_cluster needs Bar
DEV void arrive_cluster(uint64_t* bar, int lane, int ctas, int cta) { __syncwarp(); Bar::arrive(bar, cta, lane < ctas); }  // a lane at each of so many CTAs

//@ part try_wait_cluster
// Waits for arrivals of other CTAs of the cluster, and for what they did to tensors before: a load behind it is not served from a stale line of the L1 cache
DEV bool try_wait_cluster(uint64_t* bar, int parity) {
  uint32_t done;
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }" : "=r"(done) : "r"(cute::cast_smem_ptr_to_uint(bar)), "r"(parity) : "memory");
  return done;
}

//@ note runtime/watchdog.py replaces it, with `give_up` that comes with wait
//@ part wait_cluster needs wait, try_wait_cluster
DEV void wait_cluster(uint64_t* bar, int parity) { while (!try_wait_cluster(bar, parity)) {} }

//@ part release_cluster
// Arrives at the barrier of a CTA of the cluster, after what this one did to tensors
DEV void release_cluster(uint64_t* bar, int cta) {
  asm volatile("{ .reg .b32 to; mapa.shared::cluster.u32 to, %0, %1; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [to]; }" :: "r"(cute::cast_smem_ptr_to_uint(bar)), "r"(cta) : "memory");
}

//@ part release_cluster_warp needs release_cluster
DEV void release_cluster_warp(uint64_t* bar, int lane, int ctas, int cta) { __syncwarp(); if (lane < ctas) release_cluster(bar, cta); }

//@ part fence_proxy
DEV void fence_proxy() { asm volatile("fence.proxy.async;" ::: "memory"); }  // for tensors and shared memory; CUTLASS has that for shared memory

}  // namespace cuir
