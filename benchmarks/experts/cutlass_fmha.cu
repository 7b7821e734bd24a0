// CUTLASS's attention for Hopper (its example 88), forward: q [b, h, m, 64], k and v [b, h, n, 64], o, lse [b, h, m].
#include <cstdlib>
#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"
#include "collective/fmha_fusion.hpp"
#include "device/device_universal.hpp"
#include "kernel/fmha_kernel_builder.hpp"
#include "tensors.h"
using namespace cute;

using Half = cutlass::half_t;
using Strides = tuple<int, _1, tuple<int, int>>;
using Kernel = cutlass::fmha::kernel::FmhaBuilder<Half, float, float, Shape<_128, _64, _64>, Strides, Strides, Strides, cutlass::fmha::collective::FUSION,
    cutlass::gemm::KernelTmaWarpSpecializedPingpong>::Kernel;

int main(int, char** argv) {
  int b = atoi(argv[1]), h = atoi(argv[2]), m = atoi(argv[3]), n = atoi(argv[4]), d = 64;
  Strides rows = make_stride(d, _1{}, make_stride(h * m * d, m * d)), keys = make_stride(d, _1{}, make_stride(h * n * d, n * d));
  auto sums = make_stride(_1{}, make_stride(h * m, m));
  cutlass::KernelHardwareInfo hardware;
  hardware.device_id = 0, hardware.sm_count = 2;
  typename Kernel::Arguments arguments{{b, h, m, n, d}, {(Half*)tensor(0), rows, (Half*)tensor(1), keys, (Half*)tensor(2), keys},
      {(Half*)tensor(3), rows, (float*)tensor(4), sums}, hardware};
  cutlass::device::Universal<Kernel> attention;
  if (attention.can_implement(arguments) != cutlass::Status::kSuccess || attention.initialize(arguments) != cutlass::Status::kSuccess) return 1;
  return attention.run() != cutlass::Status::kSuccess;
}
