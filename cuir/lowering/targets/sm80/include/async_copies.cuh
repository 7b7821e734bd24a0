// Asynchronous copies by threads.
#pragma once
#include "headers.cuh"

namespace cuir {

//@ section copies

//@ part cp_async
DEV void cp_async(uint32_t to, const void* from, int bytes) {   // 16 bytes, those from `bytes` on are zeros
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(bytes) : "memory");
}

}  // namespace cuir
