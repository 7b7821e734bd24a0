import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/extension.h>

__device__ float add_up(float v, float *part) {
    for (int step = 16; step > 0; step /= 2) v += __shfl_down_sync(0xffffffffu, v, step);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < blockDim.x / 32; i++) sum += part[i];
    __syncthreads();
    return sum;
}

__global__ void layer_norm(const float *x, const float *weight, const float *bias, float *out, int n, float eps) {
    __shared__ float part[32];
    x += size_t(blockIdx.x) * n, out += size_t(blockIdx.x) * n;
    float sum = 0, squares = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[i];
    float mean = add_up(sum, part) / n;
    for (int i = threadIdx.x; i < n; i += blockDim.x) squares += (x[i] - mean) * (x[i] - mean);
    float scale = rsqrtf(add_up(squares, part) / n + eps);
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = (x[i] - mean) * scale * weight[i] + bias[i];
}

torch::Tensor layer_norm_cuda(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, double eps) {
    x = x.contiguous();
    auto out = torch::empty_like(x);
    int n = x.size(-1);
    layer_norm<<<x.numel() / n, 128>>>(x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(), out.data_ptr<float>(), n, float(eps));
    return out;
}
"""
DECLARATION = "torch::Tensor layer_norm_cuda(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, double eps);"
extension = load_inline(name="layer_norm", cpp_sources=DECLARATION, cuda_sources=SOURCE, functions=["layer_norm_cuda"])


class ModelNew(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = extension.layer_norm_cuda(x, self.norm.weight, self.norm.bias, self.norm.eps)
        return normed
