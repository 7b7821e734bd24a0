// 8-bit floats.
#pragma once
#include "../../sm80/include/headers.cuh"
#include "../../../include/halves.cuh"

namespace cuir {

//@ section numbers

//@ for e4m3 e5m2
//@ part f8e4m3 defines round_f8e4m3
// Of 8 bits: a float rounded to nearest even, greater ones to the largest number
struct f8e4m3 {
  uint8_t bits;
  DEV_MEMBER explicit f8e4m3(float x) { uint16_t pair; asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.f), "f"(x)); bits = uint8_t(pair); }
};
DEV uint32_t to_halves_f8e4m3(uint16_t x) {
  uint32_t pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(x));
  return pair;
}
DEV float2 to_floats_f8e4m3(uint16_t x) {
  const uint32_t pair = to_halves_f8e4m3(x);
  return __half22float2(reinterpret_cast<const __half2&>(pair));
}
DEV float to_float(f8e4m3 x) { return to_floats_f8e4m3(x.bits).x; }
DEV float round_f8e4m3(float x) { return to_float(f8e4m3(x)); }
//@ end

}  // namespace cuir
