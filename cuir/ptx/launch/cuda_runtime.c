/* Stand-in for CUDA's runtime, preloaded into a host program: device memory lies in a file that the machine for PTX maps too,
 * and each launch is a message to it. A message is (kind, bytes) and a payload; its answer (status, bytes) and a payload.
 * Launches run in the order of the calls; what streams leave open is counted. Host memory is not the device's, but for managed memory. */
#define _GNU_SOURCE
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { REGISTER = 1, FUNCTION = 2, LAUNCH = 4, WRITE_VARIABLE, READ_VARIABLE, ENCODE, MISSING };
enum { ALIGNMENT = 256, MOST = 1 << 16 };
#define START ((size_t)1 << 20) /* below lie variables */
#define BASE ((char *)0x7F0000000000)

typedef struct { size_t start, size; } Allocation;
typedef struct { const uint32_t *data; uint32_t number; } Module; /* 0: nothing of it was used */
typedef struct { const void *host; Module *module; uint32_t parameters, bytes, *rows; char *name; } Function; /* rows: offsets and sizes */
typedef struct { const void *host; Module *module; size_t size; uint64_t address; char *name; } Variable;
typedef struct { dim3 grid, block; size_t shared; cudaStream_t stream; } Configuration;
enum { MULTIPROCESSORS = 8 }; /* a cluster of the largest portable size fits; more would only make persistent kernels slower */

static int channel = -1;
static char *arena, *defined;
static size_t capacity;
static Allocation *allocations;
static size_t count_of_allocations;
static Function **functions; /* callers keep their addresses */
static Variable *variables;
static uint32_t count_of_functions, count_of_variables, count_of_modules;
static Configuration pushed;
static cudaError_t last = cudaSuccess;

static void fail(const char *words) {
    fprintf(stderr, "cuir cuda run: %s\n", words);
    _exit(70);
}

static void transfer(void *bytes, size_t n, int sends) {
    char *at = bytes;
    while (n) {
        ssize_t part = sends ? send(channel, at, n, MSG_NOSIGNAL) : recv(channel, at, n, 0);
        if (part <= 0) _exit(130);
        at += part, n -= part;
    }
}

static int32_t ask(uint32_t kind, const void *payload, uint32_t n, void *answer, uint32_t most) {
    uint32_t head[2] = {kind, n};
    transfer(head, sizeof head, 1);
    transfer((void *)payload, n, 1);
    int32_t reply[2];
    transfer(reply, sizeof reply, 0);
    if ((uint32_t)reply[1] > most) fail("an answer is too long");
    transfer(answer, reply[1], 0);
    return reply[0];
}

__attribute__((constructor)) static void start(void) {
    const char *text = getenv("CUIR_CUDA_MACHINE");
    int file, shadow;
    if (text == NULL || sscanf(text, "%d,%d,%d,%zu", &channel, &file, &shadow, &capacity) != 4) fail("it is not run by `cuir cuda run`");
    unsetenv("CUIR_CUDA_MACHINE");
    unsetenv("LD_PRELOAD");
    arena = mmap(BASE, capacity, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, file, 0);
    defined = mmap(NULL, capacity, PROT_READ | PROT_WRITE, MAP_SHARED, shadow, 0);
    allocations = calloc(MOST, sizeof *allocations);
    if (arena != BASE || defined == MAP_FAILED || allocations == NULL) fail("no place for the device's memory");
}

void cuir_missing(const char *name) {
    ask(MISSING, name, strlen(name) + 1, NULL, 0);
    _exit(70);
}

static cudaError_t note(cudaError_t error) {
    if (error != cudaSuccess) last = error;
    return error;
}

/* ---- streams: the last work of each, and the work of others that it comes after */
enum { STREAMS = 64, HOST = STREAMS };
typedef struct { uint64_t after[STREAMS]; } Clock;
static Clock clocks[STREAMS + 1]; /* the last is the host's */
static uint64_t issued[STREAMS];
static int count_of_streams = 1, joins_default[STREAMS] = {1}, current, started;
static uint64_t ready, early[2]; /* the work that made a call's inputs; launches that do not come after it: on the default stream, on others */

static int number(cudaStream_t s) { return (uintptr_t)s <= 2 ? 0 : (int)((uintptr_t)s - 0x100) % STREAMS; }
static void join(Clock *to, const Clock *from) {
    for (int i = 0; i < STREAMS; i++)
        if (from->after[i] > to->after[i]) to->after[i] = from->after[i];
}
static void issue(cudaStream_t stream) {
    int s = number(stream);
    join(&clocks[s], &clocks[HOST]);
    for (int i = 0; i < count_of_streams; i++) /* the default stream and those that are not "non-blocking" wait for each other */
        if (i != s && (s == 0 ? joins_default[i] : i == 0 && joins_default[s])) join(&clocks[s], &clocks[i]);
    if (started && s != current && clocks[s].after[current] < ready) early[s != 0]++;
    clocks[s].after[s] = ++issued[s];
}
static cudaError_t make_stream(cudaStream_t *s, int joins) {
    if (count_of_streams == STREAMS) fail("too many streams");
    joins_default[count_of_streams] = joins;
    *s = (cudaStream_t)(uintptr_t)(0x100 + count_of_streams++);
    return cudaSuccess;
}
/* Begin a call whose inputs were just made on a stream. */
void cuir_begin_call(void *stream) {
    current = number(stream), started = 0;
    issue(stream);
    ready = issued[current], started = 1, early[0] = early[1] = 0;
}
/* Return what a call left open: 1, launches on the default stream, 2, launches on other streams that the inputs, or the results, do not wait for. */
int cuir_end_call(void) {
    int open = (early[0] > 0) | (early[1] > 0) << 1;
    Clock seen = clocks[current];
    join(&seen, &clocks[HOST]);
    for (int i = 0; i < count_of_streams; i++)
        if (i != current && issued[i] > seen.after[i] && !(current == 0 && joins_default[i])) open |= i ? 2 : 1;
    started = 0;
    return open;
}

/* ---- memory */
static cudaError_t allocate(void **out, size_t size) {
    size_t start = START, i = 0;
    for (; i < count_of_allocations; i++) { /* they are in the order of their places */
        if (allocations[i].start >= start + size + ALIGNMENT) break;
        start = (allocations[i].start + allocations[i].size + 2 * ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    if (start + size > capacity || count_of_allocations == MOST) return note(cudaErrorMemoryAllocation);
    memmove(allocations + i + 1, allocations + i, (count_of_allocations - i) * sizeof *allocations);
    allocations[i] = (Allocation){start, size};
    count_of_allocations++;
    memset(defined + start, 0, size);
    *out = BASE + start;
    return cudaSuccess;
}

static cudaError_t release(void *p) {
    for (size_t i = 0; i < count_of_allocations; i++) {
        if (BASE + allocations[i].start == p) {
            memmove(allocations + i, allocations + i + 1, (--count_of_allocations - i) * sizeof *allocations);
            return cudaSuccess;
        }
    }
    return p == NULL ? cudaSuccess : note(cudaErrorInvalidValue);
}

static int is_device(const void *p) { return (const char *)p >= BASE && (const char *)p < BASE + capacity; }

static cudaError_t check(const void *p, size_t n) {
    if (!is_device(p)) return cudaSuccess;
    size_t at = (const char *)p - BASE;
    for (size_t i = 0; i < count_of_allocations; i++)
        if (at >= allocations[i].start && at + n <= allocations[i].start + allocations[i].size) return cudaSuccess;
    return note(cudaErrorInvalidValue);
}

static cudaError_t copy(void *to, const void *from, size_t n) {
    if (check(to, n) != cudaSuccess || check(from, n) != cudaSuccess) return cudaErrorInvalidValue;
    memmove(to, from, n);
    if (is_device(to)) {
        if (is_device(from)) memmove(defined + ((char *)to - BASE), defined + ((const char *)from - BASE), n);
        else memset(defined + ((char *)to - BASE), 1, n);
    }
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **p, size_t n) { return allocate(p, n); }
cudaError_t cudaMallocAsync(void **p, size_t n, cudaStream_t s) { return allocate(p, n); }
cudaError_t cudaMallocManaged(void **p, size_t n, unsigned flags) {
    cudaError_t error = allocate(p, n);
    if (error == cudaSuccess) memset(defined + ((char *)*p - BASE), 1, n); /* the host writes it without a call */
    return error;
}
cudaError_t cudaFree(void *p) { return release(p); }
cudaError_t cudaFreeAsync(void *p, cudaStream_t s) { return release(p); }
cudaError_t cudaMallocHost(void **p, size_t n) { return (*p = malloc(n)) ? cudaSuccess : note(cudaErrorMemoryAllocation); }
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned flags) { return cudaMallocHost(p, n); }
cudaError_t cudaFreeHost(void *p) { return free(p), cudaSuccess; }
cudaError_t cudaMemcpy(void *to, const void *from, size_t n, enum cudaMemcpyKind k) { return copy(to, from, n); }
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind k, cudaStream_t s) { return issue(s), copy(to, from, n); }
cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, enum cudaMemcpyKind k) {
    for (size_t i = 0; i < height; i++)
        if (copy((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width) != cudaSuccess) return cudaErrorInvalidValue;
    return cudaSuccess;
}
cudaError_t cudaMemset(void *p, int value, size_t n) {
    if (!is_device(p) || check(p, n) != cudaSuccess) return note(cudaErrorInvalidValue);
    memset(p, value, n), memset(defined + ((char *)p - BASE), 1, n);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t s) { return issue(s), cudaMemset(p, value, n); }
cudaError_t cudaMemGetInfo(size_t *left, size_t *all) { return *left = *all = capacity, cudaSuccess; }

/* ---- kernels and variables */
void **__cudaRegisterFatBinary(void *wrapper) {
    struct { int magic, version; const uint32_t *data; void *more; } *w = wrapper;
    Module *m = calloc(1, sizeof *m);
    if (m == NULL) fail("no memory for a module");
    m->data = w->data;
    return (void **)m;
}
/* Return a module's number. A library such as PyTorch's enters thousands of kernels: what none uses is not sent. */
static uint32_t enter(Module *m) {
    if (m->number == 0) {
        ask(REGISTER, m->data, ((const uint16_t *)m->data)[3] + *(const uint64_t *)(m->data + 2), NULL, 0);
        m->number = ++count_of_modules;
    }
    return m->number;
}
/* Return an array with room for one more element; a power of two of them fills it. */
static void *grow(void *array, uint32_t count, size_t size) {
    if (count & (count - 1)) return array;
    array = realloc(array, (count ? 2 * (size_t)count : 1) * size);
    if (array == NULL) fail("no memory for a table");
    return array;
}
void __cudaRegisterFatBinaryEnd(void **handle) {}
void __cudaUnregisterFatBinary(void **handle) {}
char __cudaInitModule(void **handle) { return 1; }

void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, uint3 *t, uint3 *b, dim3 *bd, dim3 *gd, int *w) {
    functions = grow(functions, count_of_functions, sizeof *functions);
    Function *f = calloc(1, sizeof *f);
    if (f == NULL) fail("no memory for a kernel");
    *f = (Function){host, (Module *)handle, ~0u, 0, NULL, strdup(name)};
    functions[count_of_functions++] = f;
}
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int ext, size_t size, int constant, int global) {
    variables = grow(variables, count_of_variables, sizeof *variables);
    variables[count_of_variables++] = (Variable){host, (Module *)handle, size, 0, strdup(name)};
}

static Function *find(const void *host) {
    for (uint32_t i = 0; i < count_of_functions; i++) {
        Function *f = functions[i];
        if (f->host != host && f != host) continue;
        if (f->parameters == ~0u) { /* ask for offsets and sizes of its parameters */
            char text[8192];
            uint32_t answer[1024], n = snprintf(text, sizeof text, "%u %s", enter(f->module), f->name) + 1;
            int32_t status = ask(FUNCTION, text, n, answer, sizeof answer);
            if (status < 0) return NULL;
            f->parameters = status;
            f->rows = malloc(8 * (size_t)status + 8);
            if (f->rows == NULL) fail("no memory for a kernel");
            memcpy(f->rows, answer, 8 * (size_t)status);
            f->bytes = status ? f->rows[2 * status - 2] + f->rows[2 * status - 1] : 0;
        }
        return f;
    }
    return NULL;
}

static cudaError_t launch(const void *host, dim3 grid, dim3 block, dim3 cluster, void **arguments, size_t shared, cudaStream_t stream) {
    Function *f = find(host);
    if (f == NULL) return note(cudaErrorInvalidDeviceFunction);
    if (!grid.x || !grid.y || !grid.z || !block.x || !block.y || !block.z) return note(cudaErrorInvalidConfiguration);
    issue(stream);
    size_t name = strlen(f->name) + 1, n = 13 * 4 + 16 * count_of_allocations + f->bytes + name;
    char *payload = calloc(1, n), *at = payload;
    uint32_t head[13] = {enter(f->module), grid.x, grid.y, grid.z, block.x, block.y, block.z, cluster.x, cluster.y, cluster.z, shared, count_of_allocations, f->bytes};
    memcpy(at, head, sizeof head), at += sizeof head;
    for (size_t i = 0; i < count_of_allocations; i++, at += 16) memcpy(at, &allocations[i].start, 8), memcpy(at + 8, &allocations[i].size, 8);
    for (uint32_t i = 0; i < f->parameters; i++) memcpy(at + f->rows[2 * i], arguments[i], f->rows[2 * i + 1]);
    memcpy(at + f->bytes, f->name, name);
    int32_t status = ask(LAUNCH, payload, n, NULL, 0);
    free(payload);
    return note((cudaError_t)status);
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream) {
    pushed = (Configuration){grid, block, shared, stream};
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    *grid = pushed.grid, *block = pushed.block, *shared = pushed.shared, *(cudaStream_t *)stream = pushed.stream;
    return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host) { return *kernel = (cudaKernel_t)find(host), cudaSuccess; }
cudaError_t __cudaLaunchKernel(cudaKernel_t k, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t s) {
    return launch(k, grid, block, (dim3){0, 0, 0}, arguments, shared, s);
}
cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t k, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t s) {
    return launch(k, grid, block, (dim3){0, 0, 0}, arguments, shared, s);
}
cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t s) {
    return launch(host, grid, block, (dim3){0, 0, 0}, arguments, shared, s);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *host, void **arguments) {
    dim3 cluster = {0, 0, 0};
    for (unsigned i = 0; i < c->numAttrs; i++)
        if (c->attrs[i].id == cudaLaunchAttributeClusterDimension)
            cluster = (dim3){c->attrs[i].val.clusterDim.x, c->attrs[i].val.clusterDim.y, c->attrs[i].val.clusterDim.z};
    return launch(host, c->gridDim, c->blockDim, cluster, arguments, c->dynamicSmemBytes, c->stream);
}

static Variable *find_variable(const void *host) {
    for (uint32_t i = 0; i < count_of_variables; i++)
        if (variables[i].host == host) return &variables[i];
    return NULL;
}
static cudaError_t access_variable(uint32_t kind, const void *symbol, void *bytes, size_t n, size_t offset) {
    Variable *v = find_variable(symbol);
    if (v == NULL || offset + n > v->size) return note(cudaErrorInvalidSymbol);
    size_t name = strlen(v->name) + 1, head = 24 + name;
    char *payload = malloc(head + n);
    uint64_t numbers[3] = {enter(v->module), offset, n};
    memcpy(payload, numbers, 24), memcpy(payload + 24, v->name, name);
    if (kind == WRITE_VARIABLE) memcpy(payload + head, bytes, n);
    int32_t status = ask(kind, payload, kind == WRITE_VARIABLE ? head + n : head, bytes, kind == READ_VARIABLE ? n : 0);
    free(payload);
    return note((cudaError_t)status);
}
cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t n, size_t offset, enum cudaMemcpyKind k) {
    return access_variable(WRITE_VARIABLE, symbol, (void *)from, n, offset);
}
cudaError_t cudaMemcpyFromSymbol(void *to, const void *symbol, size_t n, size_t offset, enum cudaMemcpyKind k) {
    return access_variable(READ_VARIABLE, symbol, to, n, offset);
}

/* ---- tensor maps */
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *sizes,
                                const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *steps, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    struct __attribute__((packed)) { uint32_t type, rank, swizzle; uint64_t address, sizes[5], strides[5]; uint32_t box[5], steps[5]; } m = {0};
    if (rank < 1 || rank > 5 || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE) return CUDA_ERROR_INVALID_VALUE;
    m.type = type, m.rank = rank, m.swizzle = swizzle, m.address = (uint64_t)address;
    for (cuuint32_t i = 0; i < rank; i++) {
        m.sizes[i] = sizes[i], m.box[i] = box[i], m.steps[i] = steps[i];
        if (i + 1 < rank) m.strides[i] = strides[i];
    }
    return ask(ENCODE, &m, sizeof m, map, sizeof *map) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
static cudaError_t find_entry(const char *name, void **function, enum cudaDriverEntryPointQueryResult *result) {
    if (strcmp(name, "cuTensorMapEncodeTiled")) cuir_missing(name);
    *function = (void *)cuTensorMapEncodeTiled;
    if (result != NULL) *result = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, enum cudaDriverEntryPointQueryResult *result) {
    return find_entry(name, function, result);
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result) {
    return find_entry(name, function, result);
}

/* ---- streams and events, and what has no effect here */
cudaError_t cudaDeviceSynchronize(void) {
    for (int i = 0; i < count_of_streams; i++) join(&clocks[HOST], &clocks[i]);
    return last;
}
cudaError_t cudaStreamCreate(cudaStream_t *s) { return make_stream(s, 1); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags) { return make_stream(s, flags != cudaStreamNonBlocking); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority) { return cudaStreamCreateWithFlags(s, flags); }
cudaError_t cudaStreamDestroy(cudaStream_t s) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t s) { return join(&clocks[HOST], &clocks[number(s)]), last; }
cudaError_t cudaStreamQuery(cudaStream_t s) { return last; }
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags) { return join(&clocks[number(s)], (Clock *)e), cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t *e) { return (*e = calloc(1, sizeof(Clock))) ? cudaSuccess : note(cudaErrorMemoryAllocation); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) { return cudaEventCreate(e); }
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) { return *(Clock *)e = clocks[number(s)], cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t e) { return join(&clocks[HOST], (Clock *)e), last; }
cudaError_t cudaEventQuery(cudaEvent_t e) { return last; }
cudaError_t cudaEventDestroy(cudaEvent_t e) { return free(e), cudaSuccess; }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b) { return *ms = 1.0f, cudaSuccess; }
cudaError_t cudaEventElapsedTime_v2(float *ms, cudaEvent_t a, cudaEvent_t b) { return *ms = 1.0f, cudaSuccess; }
cudaError_t cudaGetDevice(int *device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return device ? note(cudaErrorInvalidDevice) : cudaSuccess; }
cudaError_t cudaGetDeviceCount(int *count) { return *count = 1, cudaSuccess; }
cudaError_t cudaDeviceReset(void) { return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute attribute, int value) { return cudaSuccess; }
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *host) {
    memset(a, 0, sizeof *a);
    if (find(host) == NULL) return note(cudaErrorInvalidDeviceFunction);
    a->maxThreadsPerBlock = 1024, a->maxDynamicSharedSizeBytes = 227 << 10, a->numRegs = 64;
    a->ptxVersion = a->binaryVersion = 90;
    return cudaSuccess;
}
cudaError_t cudaFuncSetCacheConfig(const void *host, enum cudaFuncCache config) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *host, int threads, size_t shared) { return *n = 1, cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *host, int threads, size_t shared, unsigned flags) {
    return *n = 1, cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int *n, const void *host, const cudaLaunchConfig_t *c) { return *n = 1, cudaSuccess; }
cudaError_t cudaGetLastError(void) {
    cudaError_t error = last;
    last = cudaSuccess;
    return error;
}
cudaError_t cudaPeekAtLastError(void) { return last; }

static const char *describe(cudaError_t error) {
    switch (error) {
        case cudaSuccess: return "no error";
        case cudaErrorMemoryAllocation: return "out of memory";
        case cudaErrorLaunchFailure: return "a launch broke a rule that it could not go on with";
        case cudaErrorInvalidValue: return "an address or a size does not fit an allocation";
        case cudaErrorInvalidConfiguration: return "the grid or the block of a launch is empty";
        case cudaErrorInvalidDeviceFunction: return "the program holds no PTX of this kernel";
        default: return "an error of the stand-in for CUDA's runtime";
    }
}
const char *cudaGetErrorString(cudaError_t error) { return describe(error); }
const char *cudaGetErrorName(cudaError_t error) { return error == cudaSuccess ? "cudaSuccess" : "cudaError"; }

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    switch (attribute) {
        case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
        case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
        case cudaDevAttrMultiProcessorCount: *value = MULTIPROCESSORS; break;
        case cudaDevAttrWarpSize: *value = 32; break;
        case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
        case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 << 10; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 227 << 10; break;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 228 << 10; break;
        default: *value = 1;
    }
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    memset(p, 0, sizeof *p);
    strcpy(p->name, "the machine for PTX");
    p->major = 9, p->multiProcessorCount = MULTIPROCESSORS, p->warpSize = 32, p->maxThreadsPerBlock = 1024;
    p->totalGlobalMem = capacity, p->sharedMemPerBlock = 48 << 10, p->sharedMemPerBlockOptin = 227 << 10;
    p->sharedMemPerMultiprocessor = 228 << 10, p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->maxThreadsPerMultiProcessor = 2048, p->maxGridSize[0] = 2147483647, p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024, p->maxThreadsDim[2] = 64;
    p->concurrentManagedAccess = p->managedMemory = p->cooperativeLaunch = 1;
    return cudaSuccess;
}
