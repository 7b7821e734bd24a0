// Addresses in shared memory, and predicated reads of single elements of tensors.
#pragma once
#include <cute/arch/util.hpp>

#include "headers.cuh"

namespace cuir {

//@ section addresses

//@ part at
// Byte address in a panelled array of ROWS rows: panels of 128 bytes, 16-byte chunks permuted by the row
template <int ROWS> DEV uint32_t at(uint32_t base, int row, int byte) {
  return base + (byte >> 7) * (ROWS * 128) + row * 128 + (((byte >> 4 & 7) ^ (row & 7)) << 4) + (byte & 15);
}

//@ part address
DEV uint32_t address(const void* p) { return cute::cast_smem_ptr_to_uint(p); }

//@ part gather defines read_if
// *p, or 0: a predicate, no branch
template <typename T> DEV T read_if(bool inside, const T *p) {
  static_assert(sizeof(T) == 4);
  unsigned bits;
  asm("{ .reg .pred inside; setp.ne.u32 inside, %2, 0; mov.b32 %0, 0; @inside ld.global.nc.b32 %0, [%1]; }" : "=r"(bits) : "l"(p), "r"(unsigned(inside)));
  return *reinterpret_cast<T *>(&bits);
}
// An element at an index, dim and stride for each dim, the last without a stride; 0 outside of the tensor
template <typename T, typename I> DEV T gather(const T *p, bool inside, I i, int dim) { return read_if(inside & (unsigned(i) < unsigned(dim)), p + i); }
template <typename T, typename I, typename... More> DEV T gather(const T *p, bool inside, I i, int dim, int64_t stride, More... more) {
  return gather(p + i * stride, inside & (unsigned(i) < unsigned(dim)), more...);
}

//@ part gather_written defines read_if_now
// The same of a tensor that this kernel also writes: read here, neither earlier nor later
template <typename T> DEV T read_if_now(bool inside, const T *p) {
  static_assert(sizeof(T) == 4);
  unsigned bits;
  asm volatile("{ .reg .pred inside; setp.ne.u32 inside, %2, 0; mov.b32 %0, 0; @inside ld.global.b32 %0, [%1]; }" : "=&r"(bits) : "l"(p), "r"(unsigned(inside)) : "memory");
  return *reinterpret_cast<T *>(&bits);
}
template <typename T, typename I> DEV T gather_written(const T *p, bool inside, I i, int dim) { return read_if_now(inside & (unsigned(i) < unsigned(dim)), p + i); }
template <typename T, typename I, typename... More> DEV T gather_written(const T *p, bool inside, I i, int dim, int64_t stride, More... more) {
  return gather_written(p + i * stride, inside & (unsigned(i) < unsigned(dim)), more...);
}

}  // namespace cuir
