#include <torch/extension.h>

// One pass over a row by each warp: the sum follows the largest element so far.
template <typename scalar_t>
__global__ void softmax_warps(const scalar_t *__restrict__ x, scalar_t *__restrict__ out, int rows, int dim) {
    int row = blockIdx.x * blockDim.y + threadIdx.y, lane = threadIdx.x;
    if (row >= rows) return;
    x += size_t(row) * dim, out += size_t(row) * dim;
    float most = -INFINITY, sum = 0;
    for (int i = lane; i < dim; i += 32) {
        float v = float(x[i]), top = fmaxf(most, v);
        sum = sum * (most == top ? 1.f : __expf(most - top)) + (v == top ? 1.f : __expf(v - top));
        most = top;
    }
    for (int step = 16; step > 0; step /= 2) {
        float other = __shfl_xor_sync(0xffffffffu, most, step), more = __shfl_xor_sync(0xffffffffu, sum, step);
        float top = fmaxf(most, other);
        sum = sum * (most == top ? 1.f : __expf(most - top)) + more * (other == top ? 1.f : __expf(other - top));
        most = top;
    }
    for (int i = lane; i < dim; i += 32) out[i] = scalar_t(__expf(float(x[i]) - most) / sum);
}

torch::Tensor forward(torch::Tensor x) {
    auto out = torch::empty_like(x);
    int rows = x.size(0), dim = x.size(1);
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "softmax", ([&] {
        softmax_warps<scalar_t><<<(rows + 3) / 4, dim3(32, 4)>>>(x.data_ptr<scalar_t>(), out.data_ptr<scalar_t>(), rows, dim);
    }));
    return out;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("forward", &forward, "softmax of rows"); }
