// Words of shared memory and of tensors.
#pragma once
#include "headers.cuh"

namespace cuir {

//@ section words

//@ part shared_access defines get, put
template <class T> DEV T get(uint32_t from) { return *reinterpret_cast<const T*>(__cvta_shared_to_generic(from)); }
template <class T> DEV void put(uint32_t to, T x) { *reinterpret_cast<T*>(__cvta_shared_to_generic(to)) = x; }

//@ part aligned
// Whether a tensor's rows start at multiples of BYTES: its address, and its strides, given in bytes and combined by |
template <int BYTES> DEV bool aligned(const void* p, int64_t strides) { return ((reinterpret_cast<uint64_t>(p) | uint64_t(strides)) & (BYTES - 1)) == 0; }

//@ part eight
// Eight neighbours of row value r of a packed tile with GROUPS groups of 8 columns: of groups 4 g to 4 g + 3 each of the four threads of a row gets one
template <int GROUPS, int N> DEV uint4 eight(const uint32_t (&x)[N], int r, int g, int lane) {
  uint32_t w[4];
#pragma unroll
  for (int e = 0; e < 4; ++e) w[e] = 4 * g + e < GROUPS ? x[2 * (GROUPS * (r >> 1) + 4 * g + e) + (r & 1)] : 0u;
  const bool odd = lane & 1, high = lane & 2;
  const uint32_t a = __shfl_xor_sync(~0u, odd ? w[0] : w[1], 1), b = __shfl_xor_sync(~0u, odd ? w[2] : w[3], 1);
  const uint32_t low[2] = {odd ? a : w[0], odd ? w[1] : a}, up[2] = {odd ? b : w[2], odd ? w[3] : b};   // of this thread and its neighbour
  const uint32_t c = __shfl_xor_sync(~0u, high ? low[0] : up[0], 2), d = __shfl_xor_sync(~0u, high ? low[1] : up[1], 2);
  return high ? make_uint4(c, d, up[0], up[1]) : make_uint4(low[0], low[1], c, d);
}

//@ part pair
// Two neighbours of row value r of a tile with GROUPS groups of 8 columns, of group g
template <int GROUPS, int N> DEV float2 pair(const float (&x)[N], int r, int g) {
  const int i = 4 * (GROUPS * (r >> 1) + g) + 2 * (r & 1);
  return make_float2(x[i], x[i + 1]);
}
template <int GROUPS, int N> DEV int2 pair(const int (&x)[N], int r, int g) {
  const int i = 4 * (GROUPS * (r >> 1) + g) + 2 * (r & 1);
  return make_int2(x[i], x[i + 1]);
}

//@ part read_pair
// Two neighbours of row value r, of group g, from memory that this kernel also writes; 0 outside. A predicate, no branch: many are on their way at once
template <int GROUPS, typename T, int N> DEV void read_pair(T (&x)[N], int r, int g, bool inside, const T* from) {
  static_assert(sizeof(T) == 4);
  const int i = 4 * (GROUPS * (r >> 1) + g) + 2 * (r & 1);
  unsigned low, high;
  asm volatile("{ .reg .pred inside; setp.ne.u32 inside, %3, 0; mov.b32 %0, 0; mov.b32 %1, 0; @inside ld.global.v2.b32 {%0, %1}, [%2]; }" : "=&r"(low), "=&r"(high) : "l"(from), "r"(unsigned(inside)) : "memory");
  x[i] = *reinterpret_cast<T *>(&low), x[i + 1] = *reinterpret_cast<T *>(&high);
}

//@ part add_wide
DEV void add_wide(void* to, float2 x) { atomicAdd(reinterpret_cast<float2*>(to), x); }  // each of them atomic; to a multiple of 8 bytes

//@ part put_wide
template <class T> DEV void put_wide(void* to, T x) { *reinterpret_cast<T*>(to) = x; }  // to a multiple of its size

}  // namespace cuir
