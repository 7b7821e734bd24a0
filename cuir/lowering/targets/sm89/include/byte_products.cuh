// Products of 8-bit floats.
#pragma once
#include "../../sm80/include/headers.cuh"

namespace cuir {

//@ section matrices

//@ for e4m3 e5m2
//@ part mma_f8e4m3
// d += a @ b of 16 x 8 x 32
DEV void mma_f8e4m3(float& d0, float& d1, float& d2, float& d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
//@ end

}  // namespace cuir
