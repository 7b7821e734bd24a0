// Extremes with NaN, without the instructions that sm_80 has for them.
#pragma once
#include "../../../include/headers.cuh"

namespace cuir {

//@ section numbers

//@ part min_nan
DEV float min_nan(float x, float y) { return x == x && y == y ? fminf(x, y) : __int_as_float(0x7fffffff); }  // a NaN stays one

//@ part max_nan
DEV float max_nan(float x, float y) { return x == x && y == y ? fmaxf(x, y) : __int_as_float(0x7fffffff); }

}  // namespace cuir
