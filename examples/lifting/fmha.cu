// One instantiation of CUTLASS's Hopper FMHA (example 88), to be lifted with -I of its folder: docs/lifting.md.
#include <cutlass/cutlass.h>
#include <cutlass/device_kernel.h>
#include <cute/tensor.hpp>
#include "collective/fmha_fusion.hpp"
#include "kernel/fmha_kernel_builder.hpp"
using namespace cute;
using Strides = cute::tuple<int, _1, cute::tuple<int, int>>;
using Kernel = cutlass::fmha::kernel::FmhaBuilder<cutlass::half_t, float, float, Shape<_128, _128, _128>, Strides, Strides, Strides,
    cutlass::fmha::collective::CausalFusion, cutlass::gemm::KernelTmaWarpSpecializedPingpong>::Kernel;
template __global__ void cutlass::device_kernel<Kernel>(const __grid_constant__ Kernel::Params);
