"""Device functions that read single elements of tensors, 0 outside of the tensor.

Reads are predicated rather than branched around, so that many are in flight at once.
"""

GATHER = """
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
}"""
GATHER_WRITTEN = """
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
}"""
READ_PAIR = """
// Two neighbours of row value r, of group g, from memory that this kernel also writes; 0 outside. A predicate, no branch: many are on their way at once
template <int GROUPS, typename T, int N> DEV void read_pair(T (&x)[N], int r, int g, bool inside, const T* from) {
  static_assert(sizeof(T) == 4);
  const int i = 4 * (GROUPS * (r >> 1) + g) + 2 * (r & 1);
  unsigned low, high;
  asm volatile("{ .reg .pred inside; setp.ne.u32 inside, %3, 0; mov.b32 %0, 0; mov.b32 %1, 0; @inside ld.global.v2.b32 {%0, %1}, [%2]; }" : "=&r"(low), "=&r"(high) : "l"(from), "r"(unsigned(inside)) : "memory");
  x[i] = *reinterpret_cast<T *>(&low), x[i + 1] = *reinterpret_cast<T *>(&high);
}"""
