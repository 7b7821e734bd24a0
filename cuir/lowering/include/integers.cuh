// Integers: sums that wrap, quotients rounded to minus infinity, limits on columns.
#pragma once
#include "headers.cuh"

namespace cuir {

//@ section numbers

//@ part add
DEV int add(int x, int y) { return int(unsigned(x) + unsigned(y)); }  // wraps

//@ part sub
DEV int sub(int x, int y) { return int(unsigned(x) - unsigned(y)); }  // wraps

//@ part mul
DEV int mul(int x, int y) { return int(unsigned(x) * unsigned(y)); }  // wraps

//@ part floordiv needs sub
// Rounds to minus infinity; -2^31 / -1 wraps
DEV int floordiv(int a, int b) { const int q = b == -1 ? sub(0, a) : a / b; return q - (b != -1 && a % b != 0 && (a < 0) != (b < 0)); }

//@ part first_bits
// The bits of x before the n-th, counted from bit `first` of the row
DEV unsigned first_bits(unsigned x, int n, int first) {
  unsigned mask;
  asm("bmsk.clamp.b32 %0, 0, %1;" : "=r"(mask) : "r"(max(max(n, 0) - first, 0)));
  return x & mask;
}

//@ part absolute needs sub
DEV int absolute(int x) { return x < 0 ? sub(0, x) : x; }  // -2^31 stays

//@ part floormod
DEV int floormod(int a, int b) { const int r = b == -1 ? 0 : a % b; return r != 0 && (r < 0) != (b < 0) ? r + b : r; }      // has the divisor's sign

//@ part ceilshift
template <int S> DEV int ceilshift(int x) { return (x >> S) + ((x & ((1 << S) - 1)) != 0); }  // x / 2^S rounded up

//@ part ceildiv needs add, floordiv, floormod
DEV int ceildiv(int a, int b) { return add(floordiv(a, b), floormod(a, b) != 0); }  // no sum that wraps

//@ part limit needs sub
// y - x + PLUS, or the end of the range on whose side it lies: a limit on columns, of which none is there
template <int PLUS> DEV int limit(int y, int x) {
  const int d = sub(y, x), kept = ((y ^ x) & (y ^ d)) >= 0 ? d : y < 0 ? -2147483647 - 1 : 2147483647;
  return PLUS ? min(kept, 2147483646) + 1 : kept;
}

//@ part fixed
// x as one number: of two that differ by a constant compilers compare each k with neither, but k - x with the constant, an addition for each k
DEV int fixed(int x) { asm("" : "+r"(x)); return x; }

//@ part quotient defines inverse, remainder
// x / y of numbers that are not negative, from inverse(y): the high product is the quotient or one less
DEV unsigned inverse(int y) { return ~0u / unsigned(y); }
DEV int quotient(unsigned x, unsigned y, unsigned inverse) {
  const unsigned q = __umulhi(x, inverse);
  return int(q + (x - q * y >= y));
}
DEV int remainder(unsigned x, unsigned y, unsigned inverse) { return int(x - quotient(x, y, inverse) * y); }

//@ part signed_quotient needs quotient defines signed_remainder
// x // y of any signs, rounded to minus infinity, from the inverse of |y|: ~(~x / y) is x // y of a negative x
DEV int signed_quotient(int x, int y, unsigned inverse) {
  const int turned = (x ^ (y >> 31)) - (y >> 31), sign = turned >> 31;
  return quotient(turned ^ sign, abs(y), inverse) ^ sign;
}
DEV int signed_remainder(int x, int y, unsigned inverse) { return x - signed_quotient(x, y, inverse) * y; }

}  // namespace cuir
