// Stands for the CUDA runtime of a host program: each launch is written to the file $LAUNCHES, a line each, and nothing runs.
// $SIZES holds the bytes of each kernel's parameters: "name:bytes,bytes;...".
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <map>
#include <sstream>
#include <string>
#include <vector>

static std::map<const void*, std::string>& names() { static std::map<const void*, std::string> n; return n; }
struct Call { dim3 grid, block; size_t shared; };
static std::vector<Call> calls;

static std::vector<size_t> sizes_of(const std::string& name) {
  std::stringstream all(getenv("SIZES"));
  std::string entry;
  while (std::getline(all, entry, ';')) {
    size_t colon = entry.find(':');
    if (entry.substr(0, colon) != name) continue;
    std::vector<size_t> found;
    std::stringstream numbers(entry.substr(colon + 1));
    for (std::string n; std::getline(numbers, n, ',');) found.push_back(std::stoul(n));
    return found;
  }
  fprintf(stderr, "no parameters of %s\n", name.c_str());
  exit(1);
}

static cudaError_t write(const void* kernel, dim3 grid, dim3 block, dim3 cluster, size_t shared, void** arguments) {
  FILE* f = fopen(getenv("LAUNCHES"), "a");
  const std::string& name = names()[kernel];
  fprintf(f, "%s %u,%u,%u %u,%u,%u %u,%u,%u %zu", name.c_str(), grid.x, grid.y, grid.z, block.x, block.y, block.z, cluster.x, cluster.y, cluster.z, shared);
  std::vector<size_t> sizes = sizes_of(name);
  for (size_t i = 0; i < sizes.size(); ++i) {
    fputc(' ', f);
    for (size_t j = 0; j < sizes[i]; ++j) fprintf(f, "%02x", ((unsigned char*)arguments[i])[j]);
  }
  fputc('\n', f);
  fclose(f);
  return cudaSuccess;
}

// The map as the machine for PTX reads it.
#pragma pack(push, 1)
struct Map { char magic[8]; uint64_t address, sizes[5], strides[4]; uint16_t box[5]; uint8_t steps[5], rank, type, swizzle; };
#pragma pack(pop)
static CUresult encode(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address, const cuuint64_t* dims, const cuuint64_t* strides,
    const cuuint32_t* box, const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  if (interleave != CU_TENSOR_MAP_INTERLEAVE_NONE) return CUDA_ERROR_NOT_SUPPORTED;
  Map m{};
  memcpy(m.magic, "cuirmap1", 8);
  m.address = (uint64_t)address;
  for (int i = 0; i < 5; ++i) {
    m.sizes[i] = i < (int)rank ? dims[i] : 1;
    if (i < 4) m.strides[i] = i + 1 < (int)rank ? strides[i] : 1;
    m.box[i] = i < (int)rank ? box[i] : 1;
    m.steps[i] = i < (int)rank ? steps[i] : 1;
  }
  m.rank = rank;
  m.type = type > CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : type;
  m.swizzle = swizzle;
  memset(map, 0, sizeof(*map));
  memcpy(map, &m, sizeof(m));
  return CUDA_SUCCESS;
}

extern "C" {
void** __cudaRegisterFatBinary(void*) { static void* handle; return &handle; }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*, int*) { names()[host] = name; }
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
char __cudaInitModule(void**) { return 0; }
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void*) { calls.push_back({grid, block, shared}); return 0; }
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void*) {
  *grid = calls.back().grid; *block = calls.back().block; *shared = calls.back().shared;
  calls.pop_back();
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) { *kernel = (cudaKernel_t)host; return cudaSuccess; }
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t) {
  return write((const void*)kernel, grid, block, dim3(1, 1, 1), shared, arguments);
}
cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t) {
  return write(kernel, grid, block, dim3(1, 1, 1), shared, arguments);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* c, const void* kernel, void** arguments) {
  dim3 cluster(1, 1, 1);
  for (unsigned i = 0; i < c->numAttrs; ++i)
    if (c->attrs[i].id == cudaLaunchAttributeClusterDimension) cluster = dim3(c->attrs[i].val.clusterDim.x, c->attrs[i].val.clusterDim.y, c->attrs[i].val.clusterDim.z);
  return write(kernel, c->gridDim, c->blockDim, cluster, c->dynamicSmemBytes, arguments);
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error"; }
const char* cudaGetErrorName(cudaError_t) { return "error"; }
CUresult cuGetErrorString(CUresult, const char** text) { *text = "an error"; return CUDA_SUCCESS; }
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes*, const void*) { return cudaErrorNotSupported; }
cudaError_t cudaGetDevice(int* device) { *device = 0; return cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) { *value = 4; return cudaSuccess; }  // few SMs, so that persistent kernels take several units of work
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* count, const void*, int, size_t, unsigned) { *count = 1; return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveClusters(int* count, const void*, const cudaLaunchConfig_t*) { *count = 2; return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { *version = 13000; return cudaSuccess; }
cudaError_t cudaGetDriverEntryPoint(const char*, void** function, unsigned long long, cudaDriverEntryPointQueryResult* result) {
  *function = (void*)encode;
  if (result) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long flags, cudaDriverEntryPointQueryResult* result) {
  return cudaGetDriverEntryPoint(name, function, flags, result);
}
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address, const cuuint64_t* dims, const cuuint64_t* strides,
    const cuuint32_t* box, const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2, CUtensorMapFloatOOBfill fill) {
  return encode(map, type, rank, address, dims, strides, box, steps, interleave, swizzle, l2, fill);
}
}
