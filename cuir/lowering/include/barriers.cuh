// Hardware barriers.
#pragma once
#include "headers.cuh"

namespace cuir {

//@ section barriers

//@ part bar_sync
DEV void bar_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads) : "memory"); }  // CUTLASS's orders no memory for the compiler

//@ part bar_arrive
DEV void bar_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" :: "r"(id), "r"(threads) : "memory"); }

}  // namespace cuir
