#include <torch/extension.h>

constexpr int THREADS = 128;

__global__ void softmax_kernel(const float *x, float *out, int dim) {
    __shared__ float part[THREADS];
    const float *row = x + size_t(blockIdx.x) * dim;
    int t = threadIdx.x;
    float most = -INFINITY;
    for (int i = t; i < dim; i += THREADS) most = fmaxf(most, row[i]);
    part[t] = most;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (t < half) part[t] = fmaxf(part[t], part[t + half]);
        __syncthreads();
    }
    most = part[0];
    __syncthreads();
    float sum = 0;
    for (int i = t; i < dim; i += THREADS) sum += expf(row[i] - most);
    part[t] = sum;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (t < half) part[t] += part[t + half];
        __syncthreads();
    }
    for (int i = t; i < dim; i += THREADS) out[size_t(blockIdx.x) * dim + i] = expf(row[i] - most) / part[0];
}

torch::Tensor forward(torch::Tensor x) {
    auto out = torch::empty_like(x);
    softmax_kernel<<<x.size(0), THREADS>>>(x.data_ptr<float>(), out.data_ptr<float>(), x.size(1));
    return out;
}
