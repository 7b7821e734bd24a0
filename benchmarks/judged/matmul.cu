#include <torch/extension.h>

constexpr int TILE = 16;

__global__ void matmul_kernel(const float *a, const float *b, float *c, int M, int N, int K) {
    __shared__ float as[TILE][TILE], bs[TILE][TILE];
    int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < (K + TILE - 1) / TILE; k++) {
        int i = k * TILE + threadIdx.x, j = k * TILE + threadIdx.y;
        as[threadIdx.y][threadIdx.x] = row < M && i < K ? a[row * K + i] : 0;
        bs[threadIdx.y][threadIdx.x] = j < K && column < N ? b[j * N + column] : 0;
        __syncthreads();
        for (int t = 0; t < TILE; t++) sum += as[threadIdx.y][t] * bs[t][threadIdx.x];
        __syncthreads();
    }
    if (row < M && column < N) c[row * N + column] = sum;
}

torch::Tensor forward(torch::Tensor A, torch::Tensor B) {
    int M = A.size(0), K = A.size(1), N = B.size(1);
    auto C = torch::empty({M, N}, A.options());
    dim3 block(TILE, TILE), grid((N + TILE - 1) / TILE, (M + TILE - 1) / TILE);
    matmul_kernel<<<grid, block>>>(A.data_ptr<float>(), B.data_ptr<float>(), C.data_ptr<float>(), M, N, K);
    return C;
}
