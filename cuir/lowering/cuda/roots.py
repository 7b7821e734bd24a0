"""Square roots as device functions: correctly rounded, without a branch."""

SQRT = """
// Correctly rounded, without a call, which would serialise products: the compiler's own steps, on small numbers times 2^64 so that no residual is lost
DEV float sqrt(float x) {
  const bool small = x < 7.888609052210118e-31f;
  const float a = small ? x * 18446744073709551616.f : x, r = rsqrt(a), s = a * r;
  const float root = fmaf(fmaf(-s, s, a), .5f * r, s);
  return x > 0.f && x < INFINITY ? (small ? root * 2.3283064365386963e-10f : root) : x < 0.f ? NAN : x;
}"""

SQRT_OF_WHOLE = """
// Of 0 and numbers from 1 on nothing is small
DEV float sqrt_of_whole(float x) {
  const float r = rsqrt(x), s = x * r, root = fmaf(fmaf(-s, s, x), .5f * r, s);
  return x != 0.f && x != INFINITY ? root : x;
}"""

__all__ = ["SQRT", "SQRT_OF_WHOLE"]
