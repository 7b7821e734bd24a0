__global__ void clamp_kernel(const float *x, float *out, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) out[i] = fminf(fmaxf(x[i], 0.f), 1.f);
}
