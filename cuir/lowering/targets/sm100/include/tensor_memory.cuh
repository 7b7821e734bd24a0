// Tensor memory: its columns, products into it, commits and loads (tcgen05).
#pragma once
#include "../../sm90/include/headers.cuh"

namespace cuir {

//@ section products

//@ part allocate_columns
// By one whole warp, which writes the address of the first column to shared memory; the permit is given back at once
template <int N> DEV void allocate_columns(uint32_t* place) {
  __syncwarp();
  asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" :: "r"(cute::cast_smem_ptr_to_uint(place)), "r"(N) : "memory");
  asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
}

//@ part free_columns
template <int N> DEV void free_columns(uint32_t address) {
  asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" :: "r"(address), "r"(N));
}

//@ part before_thread_sync
// What this thread did to tensor memory is over for who synchronises with it
DEV void before_thread_sync() { asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory"); }

//@ part after_thread_sync
// What is over for this thread is seen by what it does to tensor memory
DEV void after_thread_sync() { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }

//@ part operand
// Descriptor of a K-major operand: address in units of 16 bytes, 1024 bytes between groups of 8 rows, version 1, 128-byte swizzle
DEV uint64_t operand(uint32_t units) { return uint64_t(0x40004040) << 32 | units; }

//@ part multiply_into
// d = a @ b, or d + a @ b with adds; shape: the instruction descriptor
DEV void multiply_into(uint32_t d, uint64_t a, uint64_t b, uint32_t shape, bool adds) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %4, 0; tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p; }" :: "r"(d), "l"(a), "l"(b), "r"(shape), "r"(uint32_t(adds)) : "memory");
}

//@ part commit
// The barrier counts an arrival when all products that this thread issued are over
DEV void commit(uint64_t* bar) {
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" :: "r"(cute::cast_smem_ptr_to_uint(bar)) : "memory");
}

//@ part load_columns
// 32 columns of 16 lanes into the registers O .. O + 15 of a fragment
template <int O, int N> DEV void load_columns(float (&x)[N], uint32_t address) {
  asm volatile("tcgen05.ld.sync.aligned.16x256b.x4.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, [%16];"
    : "=f"(x[O]), "=f"(x[O + 1]), "=f"(x[O + 2]), "=f"(x[O + 3]), "=f"(x[O + 4]), "=f"(x[O + 5]), "=f"(x[O + 6]), "=f"(x[O + 7]),
      "=f"(x[O + 8]), "=f"(x[O + 9]), "=f"(x[O + 10]), "=f"(x[O + 11]), "=f"(x[O + 12]), "=f"(x[O + 13]), "=f"(x[O + 14]), "=f"(x[O + 15])
    : "r"(address) : "memory");
}

//@ part wait_for_loads
DEV void wait_for_loads() { asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory"); }

}  // namespace cuir
