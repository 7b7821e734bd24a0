// Instructions that the kernels of this folder use, as macros: a finding then names the line of the kernel.
#pragma once
#include <cstdint>
#define AT(p) ((unsigned)__cvta_generic_to_shared(p))
#define INIT(bar, n) asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(AT(bar)), "r"(n) : "memory")
#define ARRIVE(bar) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(AT(bar)) : "memory")
#define EXPECT(bar, n) asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" :: "r"(AT(bar)), "r"(n) : "memory")
#define ARRIVE_EXPECT(bar, n) asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(AT(bar)), "r"(n) : "memory")
#define WAIT(bar, parity) asm volatile("{ .reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra D; bra W; D: }" :: "r"(AT(bar)), "r"((unsigned)(parity)) : "memory")
#define WAIT_CLUSTER(bar, parity) asm volatile("{ .reg .pred p; W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1; @p bra D; bra W; D: }" :: "r"(AT(bar)), "r"((unsigned)(parity)) : "memory")
#define ARRIVE_AT(scope, address) asm volatile("mbarrier.arrive.release." scope ".shared::cluster.b64 _, [%0];" :: "r"(address) : "memory")
#define FENCE_INIT asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory")
#define LOAD(to, from, n, bar) asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" :: "r"(AT(to)), "l"(from), "r"(n), "r"(AT(bar)) : "memory")
#define LOAD_ALL(to, from, n, bar, mask) asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" :: "r"(AT(to)), "l"(from), "r"(n), "r"(AT(bar)), "h"((uint16_t)(mask)) : "memory")
#define STORE(to, from, n) asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" :: "l"(to), "r"(AT(from)), "r"(n) : "memory")
#define COMMIT_STORES asm volatile("cp.async.bulk.commit_group;" ::: "memory")
#define WAIT_READS(n) asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(n) : "memory")
#define WAIT_STORES(n) asm volatile("cp.async.bulk.wait_group %0;" :: "n"(n) : "memory")
#define FENCE_SHARED asm volatile("fence.proxy.async.shared::cta;" ::: "memory")
#define FENCE_GLOBAL asm volatile("fence.proxy.async.global;" ::: "memory")
#define NAMED_SYNC(id, n) asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(n) : "memory")
#define NAMED_ARRIVE(id, n) asm volatile("bar.arrive %0, %1;" :: "r"(id), "r"(n) : "memory")
#define COPY(to, from) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(AT(to)), "l"(from) : "memory")
#define COMMIT asm volatile("cp.async.commit_group;" ::: "memory")
#define WAIT_COPIES(n) asm volatile("cp.async.wait_group %0;" :: "n"(n) : "memory")
#define CLUSTER_ARRIVE asm volatile("barrier.cluster.arrive.aligned;" ::: "memory")
#define CLUSTER_WAIT asm volatile("barrier.cluster.wait.aligned;" ::: "memory")
#define WAIT_GRID asm volatile("griddepcontrol.wait;" ::: "memory")
#define LAUNCH_NEXT asm volatile("griddepcontrol.launch_dependents;" ::: "memory")
#define KERNEL extern "C" __global__ void
__device__ inline unsigned rank() { unsigned r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
__device__ inline unsigned peer(unsigned address, unsigned cta) { unsigned a; asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(a) : "r"(address), "r"(cta)); return a; }
#define LOAD_PEER(v, address) asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(v) : "r"(address) : "memory")
