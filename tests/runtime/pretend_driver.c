/* A libcuda.so.1 without a GPU: contexts and streams are numbers, memory is the host's, launches are written down.
   It serves PyCUDA and cuda-bindings at once, so that what either of them hands to the driver can be compared.
   $CUIR_PRETEND_LOG names the file of launches: a line of words and hexadecimal bytes each. Other functions answer CUDA_ERROR_NOT_SUPPORTED. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID_VALUE = 1, INVALID_CONTEXT = 201, NOT_FOUND = 500, NOT_SUPPORTED = 801, DEPTH = 64, SMS = 4 };
typedef uint64_t u64;

static u64 stack[DEPTH], primary = 0x1000, last = 0x2000;
static int depth, device_of_context;

static void say(const char *format, ...) {
  const char *path = getenv("CUIR_PRETEND_LOG");
  FILE *file = path ? fopen(path, "a") : NULL;
  if (!file) return;
  va_list list;
  va_start(list, format);
  vfprintf(file, format, list);
  va_end(list);
  fclose(file);
}
static int current(u64 *context) { *context = depth ? stack[depth - 1] : 0; return OK; }

/* devices and contexts */
int cuInit(unsigned flags) { return OK; }
int cuDriverGetVersion(int *v) { *v = 13000; return OK; }
int cuDeviceGetCount(int *n) { *n = 1; return OK; }
int cuDeviceGet(int *device, int i) { *device = i; return i ? INVALID_VALUE : OK; }
int cuDeviceComputeCapability(int *major, int *minor, int device) { *major = 9; *minor = 0; return OK; }
int cuDeviceGetAttribute(int *value, int kind, int device) {
  *value = kind == 75 ? 9 : kind == 76 ? 0 : SMS; /* compute capability, its minor part, all else the number of multiprocessors */
  return OK;
}
int cuCtxCreate_v2(u64 *context, unsigned flags, int device) { stack[depth++] = *context = last += 16; return OK; }
int cuCtxCreate_v4(u64 *context, void *parameters, unsigned flags, int device) { return cuCtxCreate_v2(context, flags, device); }
int cuCtxDestroy_v2(u64 context) { if (depth && stack[depth - 1] == context) depth--; return OK; }
int cuCtxPushCurrent_v2(u64 context) { stack[depth++] = context; return OK; }
int cuCtxPopCurrent_v2(u64 *context) { if (!depth) return INVALID_CONTEXT; *context = stack[--depth]; return OK; }
int cuCtxGetCurrent(u64 *context) { return current(context); }
int cuCtxSetCurrent(u64 context) { if (depth) stack[depth - 1] = context; else stack[depth++] = context; return OK; }
int cuCtxGetDevice(int *device) { *device = 0; return depth ? OK : INVALID_CONTEXT; }
int cuCtxGetDevice_v2(int *device, u64 context) { *device = 0; return OK; }
int cuCtxDetach(u64 context) { return OK; }
int cuCtxSynchronize(void) { return OK; }
int cuDevicePrimaryCtxRetain(u64 *context, int device) { *context = primary; return OK; }
int cuDevicePrimaryCtxRelease_v2(int device) { return OK; }

/* modules; one whose data is "refuse" is refused */
int cuModuleLoadData(u64 *module, const void *data) {
  u64 context;
  current(&context);
  if (!context) return INVALID_CONTEXT;
  *module = last += 16;
  say("load context=%llx\n", (unsigned long long)context);
  return memcmp(data, "refuse", 6) ? OK : 200;
}
int cuModuleLoadDataEx(u64 *module, const void *data, unsigned n, void *options, void *values) { return cuModuleLoadData(module, data); }
int cuModuleGetFunction(u64 *function, u64 module, const char *name) { *function = last += 16; say("function %s\n", name); return OK; }
int cuModuleUnload(u64 module) { return OK; }
int cuFuncSetAttribute(u64 function, int kind, int value) { say("attribute %d=%d\n", kind, value); return OK; }
int cuFuncGetParamInfo(u64 function, size_t i, size_t *offset, size_t *size) { *offset = 112; if (size) *size = 0; return OK; } /* as on sm_90, of the first one */
int cuFuncSetBlockShape(u64 function, int x, int y, int z) { return OK; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, u64 function, int threads, size_t shared) { *n = 2; return OK; }
int cuOccupancyMaxActiveClusters(int *n, u64 function, void *config) { *n = 3; return OK; }

/* memory and streams */
int cuMemAlloc_v2(u64 *address, size_t size) { return size && !posix_memalign((void **)address, 256, size) ? OK : INVALID_VALUE; }
int cuMemFree_v2(u64 address) { free((void *)address); return OK; }
int cuMemGetInfo_v2(size_t *free_, size_t *total) { *free_ = *total = 1u << 30; return OK; }
int cuMemcpyHtoD_v2(u64 to, const void *from, size_t n) { memcpy((void *)to, from, n); return OK; }
int cuMemcpyDtoH_v2(void *to, u64 from, size_t n) { memcpy(to, (void *)from, n); return OK; }
int cuMemsetD8Async(u64 to, unsigned char value, size_t n, u64 stream) { memset((void *)to, value, n); return OK; }
int cuStreamCreate(u64 *stream, unsigned flags) { *stream = last += 16; return OK; }
int cuStreamDestroy_v2(u64 stream) { return OK; }
int cuStreamSynchronize(u64 stream) { return OK; }
int cuThreadExchangeStreamCaptureMode(int *mode) { return OK; }

/* tensor maps: what was asked for, the address in front */
int cuTensorMapEncodeTiled(u64 *map, int type, unsigned rank, void *address, const u64 *sizes, const u64 *strides, const unsigned *box, const unsigned *steps,
                           int interleave, int swizzle, int promotion, int fill) {
  memset(map, 0, 128);
  map[0] = (u64)address;
  map[1] = (u64)type << 32 | rank << 16 | swizzle << 8 | promotion;
  for (unsigned i = 0; i < rank; i++) {
    map[2 + i] = sizes[i];
    if (i + 1 < rank) map[7 + i] = strides[i];
    ((unsigned *)(map + 11))[i] = box[i];
  }
  return depth ? OK : INVALID_CONTEXT;
}
int cuTensorMapReplaceAddress(u64 *map, void *address) { map[0] = (u64)address; return (u64)map % 64 ? INVALID_VALUE : depth ? OK : INVALID_CONTEXT; }

/* launches */
static int launched(unsigned grid, unsigned block, unsigned shared, u64 stream, unsigned cluster) {
  u64 context;
  current(&context);
  say("launch grid=%u block=%u shared=%u stream=%llx cluster=%u context=%llx params=", grid, block, shared, (unsigned long long)stream, cluster,
      (unsigned long long)context);
  return OK;
}
static void bytes(const unsigned char *from, size_t n) { while (n--) say("%02x", *from++); }
int cuLaunchKernel(u64 f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, u64 stream, void **params, void **extra) {
  launched(gx, bx, shared, stream, 0);
  if (extra) bytes(extra[1], *(size_t *)extra[3]); /* CU_LAUNCH_PARAM_BUFFER_POINTER, the buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, its size */
  say("\n");
  return shared > 1u << 20 ? INVALID_VALUE : OK;
}

/* of kernelParams, whose number and sizes the driver knows and this one does not: as many as $CUIR_PRETEND_SIZES has sizes, at their distances from the first */
int cuLaunchKernelEx(const unsigned *config, u64 f, void **params, void **extra) {
  const u64 *attributes = *(const u64 **)(config + 10);
  const unsigned *value = (const unsigned *)(attributes + 1);
  launched(config[0], config[3], config[6], *(const u64 *)(config + 8), config[12] ? value[0] : 0);
  char *sizes = strdup(getenv("CUIR_PRETEND_SIZES")), *size = strtok(sizes, ",");
  const unsigned char *at = params[0];
  for (int i = 0; size; size = strtok(NULL, ","), i++) {
    while (at < (unsigned char *)params[i]) say("%02x", *at++);
    bytes(at, atoi(size));
    at += atoi(size);
  }
  free(sizes);
  say("\n");
  return OK;
}

/* errors, and the table of functions that cuda-bindings asks for */
int cuGetErrorName(int error, const char **name) { *name = error == INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE" : error == 200 ? "CUDA_ERROR_INVALID_IMAGE" : "CUDA_ERROR"; return OK; }
int cuGetErrorString(int error, const char **name) { *name = error == INVALID_VALUE ? "invalid argument" : error == 200 ? "device kernel image is invalid" : "unknown error"; return OK; }
int cuGetProcAddress_v2(const char *name, void **function, int version, u64 flags, int *status) {
  const char *suffixes[] = {"_v4", "_v2", ""};
  char whole[256];
  for (int i = 0; i < 3; i++) {
    snprintf(whole, sizeof whole, "%s%s", name, suffixes[i]);
    if ((*function = dlsym(RTLD_DEFAULT, whole)) || (i == 2 && !strcmp(name, "cuGetProcAddress") && (*function = (void *)cuGetProcAddress_v2))) break;
  }
  if (status) *status = *function ? 0 : 1;
  return *function ? OK : NOT_FOUND;
}
int cuGetProcAddress(const char *name, void **function, int version, u64 flags) { return cuGetProcAddress_v2(name, function, version, flags, NULL); }
