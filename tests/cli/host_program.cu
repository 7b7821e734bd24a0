// A host program for tests of `cuir cuda run`: its first argument names what it does.
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <cuda.h>
#include <cuda_runtime.h>

__device__ int launches = 0;
__constant__ float factor = 1.0f;

__global__ void add(const float* x, const float* y, float* z, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) z[i] = factor * (x[i] + y[i]);
    if (i == 0) launches++;
}

__global__ void reverse(float* x) {
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];
    x[threadIdx.x] = s[63 - threadIdx.x];
}

__global__ void copy_box(const __grid_constant__ CUtensorMap map, int* bytes) {
    __shared__ alignas(128) float box[128];
    __shared__ alignas(8) unsigned long long bar;
    unsigned at = __cvta_generic_to_shared(&bar), to = __cvta_generic_to_shared(box);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at));
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 512;" ::"r"(at) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %2}], [%3];" ::"r"(to),
                 "l"(&map), "r"(0), "r"(at)
                 : "memory");
    unsigned done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(at) : "memory");
    int count = 0;
    for (int i = 0; i < 128; i++) count += box[i] == 1.0f;
    *bytes = count;
}

static float* allocate(int n) {
    float* p;
    cudaMalloc(&p, n * sizeof(float));
    return p;
}

static int run_add(int n) {
    std::vector<float> x(n, 1.0f), y(n, 2.0f), z(n);
    float *dx = allocate(n), *dy = allocate(n), *dz = allocate(n);
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    cudaMemcpy(dx, x.data(), n * 4, cudaMemcpyHostToDevice);
    cudaMemcpyAsync(dy, y.data(), n * 4, cudaMemcpyHostToDevice, stream);
    int blocks = (n + 511) / 512, least, best, clusters = 0;
    cudaLaunchConfig_t config{};
    if (cudaOccupancyMaxPotentialBlockSize(&least, &best, add) != cudaSuccess || best != 1024) return 4;
    if (cudaOccupancyMaxActiveClusters(&clusters, add, &config) != cudaSuccess || clusters < 1) return 4;
    for (int i = 0; i < 2; i++) add<<<blocks, 512, 0, stream>>>(dx, dy, dz, n);
    void* arguments[] = {&dx, &dy, &dz, &n};
    cudaLaunchKernel((const void*)add, dim3(blocks), dim3(512), arguments, 0, stream);
    float* managed;
    cudaMallocManaged(&managed, 64 * 4);
    for (int i = 0; i < 64; i++) managed[i] = i;
    cudaMemset(managed, 0, 64 * 4);
    float two = 2.0f;
    cudaMemcpyToSymbol(factor, &two, 4);
    add<<<blocks + 1, 512>>>(dx, dx, dz, n);
    two = 1.0f;
    cudaMemcpyToSymbol(factor, &two, 4);
    cudaMemcpy(z.data(), dz, n * 4, cudaMemcpyDeviceToHost);
    if (z[0] != 4.0f) return 2;
    int counted;
    cudaMemcpyFromSymbol(&counted, launches, 4);

    CUtensorMap map;
    void* encode;
    cudaDriverEntryPointQueryResult found;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &found);
    cuuint64_t sizes[] = {16, 8}, strides[] = {64};
    cuuint32_t box[] = {16, 8}, steps[] = {1, 1};
    ((decltype(&cuTensorMapEncodeTiled))encode)(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, dx, sizes, strides, box, steps,
                                                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    int *bytes, elements;
    cudaMalloc(&bytes, 4);
    copy_box<<<1, 1>>>(map, bytes);
    cudaMemcpy(&elements, bytes, 4, cudaMemcpyDeviceToHost);
    if (cudaDeviceSynchronize() != cudaSuccess) return 1;
    printf("sum %g, %d launches counted, a box of %d elements\n", n * 3.0, counted - 1, elements);
    cudaFree(dx), cudaFree(dy), cudaFree(dz), cudaFree(managed), cudaFree(bytes);
    return 0;
}

int main(int count, char** arguments) {
    std::string what = count > 1 ? arguments[1] : "";
    if (what == "add") return run_add(std::stoi(arguments[2]));
    if (what == "lacking") {
        size_t limit;
        return cudaDeviceGetLimit(&limit, cudaLimitStackSize);
    }
    if (what == "empty") {
        add<<<0, 64>>>(nullptr, nullptr, nullptr, 0);
        if (cudaGetLastError() != cudaErrorInvalidConfiguration) return 5;
        return cudaGetLastError();
    }
    float *x = allocate(what == "past" ? 16 : 64), *y = allocate(64);
    cudaMemset(y, 0, 256);
    if (what == "past") cudaMemset(x, 0, 64);
    if (what == "race") cudaMemset(x, 0, 256);
    if (what == "freed") cudaFree(x);
    if (what == "race" || what == "past" || what == "freed" || what == "undefined") {
        reverse<<<1, 64>>>(x);
        if (what == "race") reverse<<<1, 64>>>(x);
        return 0;
    }
    return 3;
}
