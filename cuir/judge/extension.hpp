// Stand-in for PyTorch's C++ headers: extensions compile in seconds, and their tensors are Python's, behind four calls.
// What it lacks is an error of the compiler, by its name. Operations that it has are PyTorch's own, by their names.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace cuir_host {
enum Kind : int32_t { NONE, TENSOR, INTEGER, REAL, BOOLEAN, INTEGERS, TENSORS, TEXT, DTYPE, DEVICE, REALS };
struct Value {
    int32_t kind, count;
    int64_t integer;
    double real;
    const void *items;
};
constexpr int MOST_DIMS = 12;
struct Info {
    void *data;
    int64_t dims, numel, itemsize, sizes[MOST_DIMS], strides[MOST_DIMS];
    int32_t dtype, contiguous, on_device, requires_grad;
};
struct Host {
    int (*call)(const char *name, const Value *arguments, int count, Value *result);
    void (*release)(int64_t handle);
    void (*describe)(int64_t handle, Info *info);
    const char *(*error)();
    void *(*stream)();
};
inline Host host;
inline std::string error;
[[noreturn]] inline void fail(const std::string &words) { throw std::runtime_error(words); }
}  // namespace cuir_host

namespace c10 {
using Half = __half;
using BFloat16 = __nv_bfloat16;
enum class ScalarType : int8_t { Byte, Char, Short, Int, Long, Half, Float, Double, Bool = 11, BFloat16 = 15, Undefined = 44 };
inline const char *toString(ScalarType t) {
    switch (t) {
        case ScalarType::Byte: return "Byte";
        case ScalarType::Char: return "Char";
        case ScalarType::Short: return "Short";
        case ScalarType::Int: return "Int";
        case ScalarType::Long: return "Long";
        case ScalarType::Half: return "Half";
        case ScalarType::Float: return "Float";
        case ScalarType::Double: return "Double";
        case ScalarType::Bool: return "Bool";
        case ScalarType::BFloat16: return "BFloat16";
        default: return "Undefined";
    }
}
inline std::ostream &operator<<(std::ostream &out, ScalarType t) { return out << toString(t); }
template <class T> struct CppTypeToScalarType;
#define CUIR_TYPE(T, NAME) \
    template <> struct CppTypeToScalarType<T> { static constexpr ScalarType value = ScalarType::NAME; };
CUIR_TYPE(uint8_t, Byte) CUIR_TYPE(int8_t, Char) CUIR_TYPE(int16_t, Short) CUIR_TYPE(int32_t, Int) CUIR_TYPE(int64_t, Long)
CUIR_TYPE(long long, Long) CUIR_TYPE(Half, Half) CUIR_TYPE(float, Float) CUIR_TYPE(double, Double) CUIR_TYPE(bool, Bool) CUIR_TYPE(BFloat16, BFloat16)
#undef CUIR_TYPE

enum class DeviceType : int8_t { CPU = 0, CUDA = 1 };
enum class Layout : int8_t { Strided = 0 };
enum class MemoryFormat : int8_t { Contiguous, Preserve, ChannelsLast, ChannelsLast3d };
struct Device {
    DeviceType kind = DeviceType::CPU;
    int number = 0;
    Device(DeviceType k = DeviceType::CPU, int n = 0) : kind(k), number(n) {}
    Device(const std::string &s) : kind(s.rfind("cuda", 0) == 0 ? DeviceType::CUDA : DeviceType::CPU) {}
    Device(const char *s) : Device(std::string(s)) {}
    bool is_cuda() const { return kind == DeviceType::CUDA; }
    bool is_cpu() const { return kind == DeviceType::CPU; }
    DeviceType type() const { return kind; }
    int8_t index() const { return int8_t(number); }
    bool operator==(const Device &o) const { return kind == o.kind && number == o.number; }
    bool operator!=(const Device &o) const { return !(*this == o); }
};
inline std::ostream &operator<<(std::ostream &out, const Device &d) { return out << (d.is_cuda() ? "cuda:0" : "cpu"); }

template <class T> using optional = std::optional<T>;
using std::nullopt;
constexpr auto nullopt_ = std::nullopt;

template <class T> class ArrayRef {
    std::vector<T> kept;

  public:
    ArrayRef() = default;
    ArrayRef(std::initializer_list<T> list) : kept(list) {}
    template <class U, class = std::enable_if_t<std::is_integral_v<U> && !std::is_same_v<U, T>>> ArrayRef(std::initializer_list<U> list) : kept(list.begin(), list.end()) {}
    ArrayRef(const std::vector<T> &v) : kept(v) {}
    ArrayRef(const T *p, size_t n) : kept(p, p + n) {}
    template <size_t N> ArrayRef(const std::array<T, N> &a) : kept(a.begin(), a.end()) {}
    ArrayRef(const T &one) : kept{one} {}
    size_t size() const { return kept.size(); }
    bool empty() const { return kept.empty(); }
    const T &operator[](size_t i) const { return kept[i]; }
    const T &back() const { return kept.back(); }
    const T *data() const { return kept.data(); }
    auto begin() const { return kept.begin(); }
    auto end() const { return kept.end(); }
    std::vector<T> vec() const { return kept; }
    bool operator==(const ArrayRef &o) const { return kept == o.kept; }
    bool operator!=(const ArrayRef &o) const { return kept != o.kept; }
};
template <class T> std::ostream &operator<<(std::ostream &out, const ArrayRef<T> &a) {
    out << "[";
    for (size_t i = 0; i < a.size(); i++) out << (i ? ", " : "") << a[i];
    return out << "]";
}
using IntArrayRef = ArrayRef<int64_t>;

struct Scalar {
    bool whole;
    int64_t integer = 0;
    double real = 0;
    template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
    Scalar(T x) : whole(std::is_integral_v<T>), integer(int64_t(x)), real(double(x)) {}
    template <class T> T to() const { return whole ? T(integer) : T(real); }
};

struct TensorOptions {
    optional<ScalarType> type;
    optional<Device> place;
    TensorOptions() = default;
    TensorOptions(ScalarType t) : type(t) {}
    TensorOptions(Device d) : place(d) {}
    TensorOptions(DeviceType d) : place(Device(d)) {}
    TensorOptions dtype(ScalarType t) const { TensorOptions o = *this; o.type = t; return o; }
    TensorOptions device(Device d) const { TensorOptions o = *this; o.place = d; return o; }
    TensorOptions device(DeviceType d, int n = 0) const { return device(Device(d, n)); }
    TensorOptions layout(Layout) const { return *this; }
    TensorOptions requires_grad(bool) const { return *this; }
    TensorOptions memory_format(MemoryFormat) const { return *this; }
};
inline TensorOptions dtype(ScalarType t) { return TensorOptions(t); }
inline TensorOptions device(Device d) { return TensorOptions(d); }
}  // namespace c10

namespace at {
using namespace c10;
class Tensor;
using TensorList = ArrayRef<Tensor>;
}  // namespace at

namespace cuir_host {
struct Holder {  // frees Python's tensor with its last copy
    int64_t handle;
    Info info;
    explicit Holder(int64_t h) : handle(h) { host.describe(h, &info); }
    ~Holder() { host.release(handle); }
    Holder(const Holder &) = delete;
};
struct Boxes {  // arguments, and what they point to
    std::vector<Value> values;
    std::vector<std::shared_ptr<void>> kept;
    void add(Kind kind, int64_t integer = 0, double real = 0, const void *items = nullptr, size_t count = 0) {
        values.push_back(Value{kind, int32_t(count), integer, real, items});
    }
    void box(const at::Tensor &t);
    void box(bool b) { add(BOOLEAN, b); }
    template <class T> std::enable_if_t<std::is_integral_v<T>> box(T i) { add(INTEGER, int64_t(i)); }
    template <class T> std::enable_if_t<std::is_floating_point_v<T>> box(T x) { add(REAL, 0, double(x)); }
    void box(const at::Scalar &s) { s.whole ? add(INTEGER, s.integer) : add(REAL, 0, s.real); }
    void box(at::ScalarType t) { add(DTYPE, int64_t(t)); }
    void box(at::Device d) { add(DEVICE, int64_t(d.kind)); }
    void box(at::DeviceType d) { add(DEVICE, int64_t(d)); }
    void box(at::MemoryFormat) {}
    void box(std::nullopt_t) { add(NONE); }
    void box(const char *text) { add(TEXT, 0, 0, text); }
    void box(const std::string &text) {
        auto copy = std::make_shared<std::string>(text);
        kept.push_back(copy), add(TEXT, 0, 0, copy->c_str());
    }
    void box(const at::TensorOptions &o) {
        if (o.type) box(*o.type);
        box(o.place ? *o.place : at::Device());
    }
    void box(const at::IntArrayRef &a) {
        auto copy = std::make_shared<std::vector<int64_t>>(a.vec());
        kept.push_back(copy), add(INTEGERS, 0, 0, copy->data(), copy->size());
    }
    void box(const std::vector<int64_t> &a) { box(at::IntArrayRef(a)); }
    template <class T> std::enable_if_t<std::is_integral_v<T>> box(std::initializer_list<T> a) { box(at::IntArrayRef(std::vector<int64_t>(a.begin(), a.end()))); }
    void box(const std::vector<at::Tensor> &list);
    template <class T> void box(const std::optional<T> &o) {
        if (o) box(*o);
        else add(NONE);
    }
    template <class T, size_t N> void box(const std::array<T, N> &a) { box(std::vector<T>(a.begin(), a.end())); }
    template <class... T> void box(const std::tuple<T...> &t) {
        box(std::apply([](const auto &...x) { return std::vector<at::Tensor>{x...}; }, t));
    }
    template <class A, class B> void box(const std::pair<A, B> &p) { box(std::vector<at::Tensor>{p.first, p.second}); }
};
template <class... A> Value ask(const char *name, const A &...arguments) {
    Boxes boxes;
    (boxes.box(arguments), ...);
    Value result{};
    if (host.call(name, boxes.values.data(), int(boxes.values.size()), &result)) fail(host.error());
    return result;
}
}  // namespace cuir_host

namespace at {
template <class T> struct RestrictPtrTraits { using Pointer = T *__restrict__; };
template <class T> struct DefaultPtrTraits { using Pointer = T *; };

template <class T, size_t N, class Index = int64_t> class TensorAccessor {
    T *p;
    const Index *sizes_, *strides_;

  public:
    __host__ __device__ TensorAccessor(T *p, const Index *n, const Index *s) : p(p), sizes_(n), strides_(s) {}
    __host__ __device__ Index size(int i) const { return sizes_[i]; }
    __host__ __device__ Index stride(int i) const { return strides_[i]; }
    __host__ __device__ T *data() const { return p; }
    __host__ __device__ decltype(auto) operator[](Index i) const {
        if constexpr (N == 1) return static_cast<T &>(p[i * strides_[0]]);
        else return TensorAccessor<T, N - 1, Index>(p + i * strides_[0], sizes_ + 1, strides_ + 1);
    }
};
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits, class Index = int64_t> struct PackedTensorAccessor {
    T *p;
    Index sizes_[N], strides_[N];
    __host__ __device__ Index size(int i) const { return sizes_[i]; }
    __host__ __device__ Index stride(int i) const { return strides_[i]; }
    __host__ __device__ T *data() const { return p; }
    __host__ __device__ decltype(auto) operator[](Index i) const { return TensorAccessor<T, N, Index>(p, sizes_, strides_)[i]; }
};
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits> using PackedTensorAccessor32 = PackedTensorAccessor<T, N, Traits, int32_t>;
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits> using PackedTensorAccessor64 = PackedTensorAccessor<T, N, Traits, int64_t>;

struct DeprecatedTypeProperties {  // of the old tensor.type()
    ScalarType kind;
    bool on_device;
    ScalarType scalarType() const { return kind; }
    bool is_cuda() const { return on_device; }
    operator ScalarType() const { return kind; }
};

class Tensor {
    std::shared_ptr<cuir_host::Holder> holder;
    const cuir_host::Info &info() const {
        if (!holder) cuir_host::fail("an undefined tensor is used");
        return holder->info;
    }

  public:
    Tensor() = default;
    explicit Tensor(const cuir_host::Value &v) {
        if (v.kind == cuir_host::TENSOR) holder = std::make_shared<cuir_host::Holder>(v.integer);
        else if (v.kind != cuir_host::NONE) cuir_host::fail("a tensor is expected");
    }
    int64_t handle() const { return holder ? holder->handle : 0; }
    std::shared_ptr<void> keep() const { return holder; }
    bool defined() const { return bool(holder); }
    int64_t dim() const { return info().dims; }
    int64_t ndimension() const { return dim(); }
    int64_t numel() const { return info().numel; }
    int64_t size(int64_t i) const { return info().sizes[wrap(i)]; }
    int64_t stride(int64_t i) const { return info().strides[wrap(i)]; }
    IntArrayRef sizes() const { return IntArrayRef(info().sizes, size_t(dim())); }
    IntArrayRef strides() const { return IntArrayRef(info().strides, size_t(dim())); }
    ScalarType scalar_type() const { return ScalarType(info().dtype); }
    ScalarType dtype() const { return scalar_type(); }
    DeprecatedTypeProperties type() const { return {scalar_type(), is_cuda()}; }
    int64_t element_size() const { return info().itemsize; }
    int64_t itemsize() const { return info().itemsize; }
    int64_t nbytes() const { return info().itemsize * numel(); }
    bool is_cuda() const { return info().on_device; }
    bool is_cpu() const { return !is_cuda(); }
    bool is_contiguous(MemoryFormat = MemoryFormat::Contiguous) const { return info().contiguous; }
    bool is_floating_point() const { auto t = scalar_type(); return t == ScalarType::Half || t == ScalarType::Float || t == ScalarType::Double || t == ScalarType::BFloat16; }
    bool requires_grad() const { return info().requires_grad; }
    bool is_same(const Tensor &o) const { return holder == o.holder; }
    Device device() const { return Device(is_cuda() ? DeviceType::CUDA : DeviceType::CPU); }
    int64_t get_device() const { return is_cuda() ? 0 : -1; }
    TensorOptions options() const { return TensorOptions(scalar_type()).device(device()); }
    void *data_ptr() const { return info().data; }
    template <class T> T *data_ptr() const {
        using P = std::remove_const_t<T>;
        if (CppTypeToScalarType<P>::value != scalar_type())
            cuir_host::fail(std::string("expected scalar type ") + toString(CppTypeToScalarType<P>::value) + " but found " + toString(scalar_type()));
        return static_cast<T *>(info().data);
    }
    template <class T> const T *const_data_ptr() const { return data_ptr<T>(); }
    template <class T> T *mutable_data_ptr() const { return data_ptr<T>(); }
    template <class T> T *data() const { return data_ptr<T>(); }
    template <class T, size_t N, template <class> class Traits = DefaultPtrTraits, class Index = int64_t> auto packed_accessor() const {
        if (dim() != int64_t(N)) cuir_host::fail("an accessor has another number of dims than its tensor");
        PackedTensorAccessor<T, N, Traits, Index> a{data_ptr<T>(), {}, {}};
        for (size_t i = 0; i < N; i++) a.sizes_[i] = Index(size(i)), a.strides_[i] = Index(stride(i));
        return a;
    }
    template <class T, size_t N, template <class> class Traits = DefaultPtrTraits> auto packed_accessor32() const { return packed_accessor<T, N, Traits, int32_t>(); }
    template <class T, size_t N, template <class> class Traits = DefaultPtrTraits> auto packed_accessor64() const { return packed_accessor<T, N, Traits, int64_t>(); }
    template <class T> T item() const {
        auto v = cuir_host::ask("item", *this);
        return v.kind == cuir_host::REAL ? T(v.real) : T(v.integer);
    }
    template <class... A> Tensor method(const char *name, const A &...a) const { return Tensor(cuir_host::ask(name, *this, a...)); }
#define CUIR_METHOD(NAME) \
    template <class... A> Tensor NAME(const A &...a) const { return method(#NAME, a...); }
#define CUIR_SIZED(NAME) \
    Tensor NAME(IntArrayRef a) const { return method(#NAME, a); }
    CUIR_METHOD(contiguous) CUIR_METHOD(clone) CUIR_METHOD(detach) CUIR_METHOD(cuda) CUIR_METHOD(cpu) CUIR_METHOD(to) CUIR_METHOD(t)
    CUIR_METHOD(squeeze) CUIR_METHOD(unsqueeze) CUIR_METHOD(transpose) CUIR_METHOD(flatten) CUIR_METHOD(slice) CUIR_METHOD(select) CUIR_METHOD(narrow)
    CUIR_METHOD(index_select) CUIR_METHOD(fill_) CUIR_METHOD(zero_) CUIR_METHOD(copy_) CUIR_METHOD(add) CUIR_METHOD(add_) CUIR_METHOD(sub) CUIR_METHOD(mul)
    CUIR_METHOD(mul_) CUIR_METHOD(div) CUIR_METHOD(div_) CUIR_METHOD(sum) CUIR_METHOD(mean) CUIR_METHOD(max) CUIR_METHOD(min) CUIR_METHOD(amax) CUIR_METHOD(exp)
    CUIR_METHOD(log) CUIR_METHOD(sqrt) CUIR_METHOD(abs) CUIR_METHOD(relu) CUIR_METHOD(sigmoid) CUIR_METHOD(tanh) CUIR_METHOD(softmax) CUIR_METHOD(matmul)
    CUIR_METHOD(mm) CUIR_METHOD(bmm) CUIR_METHOD(pow) CUIR_METHOD(norm) CUIR_METHOD(new_empty) CUIR_METHOD(new_zeros) CUIR_METHOD(argmax) CUIR_METHOD(clamp)
    CUIR_METHOD(to_dense) CUIR_METHOD(type_as) CUIR_METHOD(equal_) CUIR_SIZED(view) CUIR_SIZED(reshape) CUIR_SIZED(permute) CUIR_SIZED(expand)
    CUIR_METHOD(expand_as) CUIR_METHOD(view_as) CUIR_METHOD(cumsum) CUIR_METHOD(prod) CUIR_METHOD(any) CUIR_METHOD(all) CUIR_METHOD(argmin)
#undef CUIR_METHOD
#undef CUIR_SIZED
    Tensor toType(ScalarType t) const { return method("to", t); }
    Tensor operator[](int64_t i) const { return method("select", 0, i); }
    Tensor operator+(const Tensor &o) const { return method("add", o); }
    Tensor operator-(const Tensor &o) const { return method("sub", o); }
    Tensor operator*(const Tensor &o) const { return method("mul", o); }
    Tensor operator/(const Tensor &o) const { return method("div", o); }
    Tensor operator+(const Scalar &o) const { return method("add", o); }
    Tensor operator-(const Scalar &o) const { return method("sub", o); }
    Tensor operator*(const Scalar &o) const { return method("mul", o); }
    Tensor operator/(const Scalar &o) const { return method("div", o); }

  private:
    int64_t wrap(int64_t i) const {
        int64_t at = i < 0 ? i + dim() : i;
        if (at < 0 || at >= dim()) cuir_host::fail("Dimension out of range");
        return at;
    }
};

#define CUIR_FUNCTION(NAME) \
    template <class... A> Tensor NAME(const A &...a) { return Tensor(cuir_host::ask("torch." #NAME, a...)); }
#define CUIR_MADE(NAME) \
    inline Tensor NAME(IntArrayRef sizes, const TensorOptions &o = {}) { return Tensor(cuir_host::ask("torch." #NAME, sizes, o)); }
CUIR_MADE(empty) CUIR_MADE(zeros) CUIR_MADE(ones) CUIR_MADE(randn) CUIR_MADE(rand)
inline Tensor full(IntArrayRef sizes, const Scalar &x, const TensorOptions &o = {}) { return Tensor(cuir_host::ask("torch.full", sizes, x, o)); }
inline Tensor empty_like(const Tensor &t) { return Tensor(cuir_host::ask("torch.empty_like", t)); }
inline Tensor zeros_like(const Tensor &t) { return Tensor(cuir_host::ask("torch.zeros_like", t)); }
inline Tensor ones_like(const Tensor &t) { return Tensor(cuir_host::ask("torch.ones_like", t)); }
inline Tensor empty_like(const Tensor &t, const TensorOptions &o) { return Tensor(cuir_host::ask("torch.empty_like", t, o)); }
inline Tensor zeros_like(const Tensor &t, const TensorOptions &o) { return Tensor(cuir_host::ask("torch.zeros_like", t, o)); }
inline Tensor full_like(const Tensor &t, const Scalar &x) { return Tensor(cuir_host::ask("torch.full_like", t, x)); }
inline Tensor tensor(std::initializer_list<int64_t> x, const TensorOptions &o = {}) { return Tensor(cuir_host::ask("torch.tensor", IntArrayRef(x), o)); }
CUIR_FUNCTION(matmul) CUIR_FUNCTION(mm) CUIR_FUNCTION(bmm) CUIR_FUNCTION(addmm) CUIR_FUNCTION(add) CUIR_FUNCTION(sub) CUIR_FUNCTION(mul) CUIR_FUNCTION(div)
CUIR_FUNCTION(relu) CUIR_FUNCTION(sigmoid) CUIR_FUNCTION(tanh) CUIR_FUNCTION(softmax) CUIR_FUNCTION(log_softmax) CUIR_FUNCTION(exp) CUIR_FUNCTION(log)
CUIR_FUNCTION(sqrt) CUIR_FUNCTION(abs) CUIR_FUNCTION(sum) CUIR_FUNCTION(mean) CUIR_FUNCTION(max) CUIR_FUNCTION(min) CUIR_FUNCTION(cat) CUIR_FUNCTION(stack)
CUIR_FUNCTION(transpose) CUIR_FUNCTION(where) CUIR_FUNCTION(clamp) CUIR_FUNCTION(conv2d) CUIR_FUNCTION(linear) CUIR_FUNCTION(layer_norm) CUIR_FUNCTION(arange)
#undef CUIR_FUNCTION
#undef CUIR_MADE
constexpr ScalarType kByte = ScalarType::Byte, kChar = ScalarType::Char, kShort = ScalarType::Short, kInt = ScalarType::Int, kLong = ScalarType::Long;
constexpr ScalarType kHalf = ScalarType::Half, kFloat = ScalarType::Float, kDouble = ScalarType::Double, kBool = ScalarType::Bool, kBFloat16 = ScalarType::BFloat16;
constexpr DeviceType kCPU = DeviceType::CPU, kCUDA = DeviceType::CUDA;

namespace cuda {
struct CUDAStream {
    cudaStream_t handle;
    operator cudaStream_t() const { return handle; }
    cudaStream_t stream() const { return handle; }
    void synchronize() const { cudaStreamSynchronize(handle); }
};
inline CUDAStream getCurrentCUDAStream(int = -1) { return {static_cast<cudaStream_t>(cuir_host::host.stream())}; }
inline CUDAStream getDefaultCUDAStream(int = -1) { return {nullptr}; }
inline CUDAStream getStreamFromPool(bool = false, int = -1) {
    cudaStream_t s;
    cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    return {s};
}
inline cudaDeviceProp *getCurrentDeviceProperties() {
    static cudaDeviceProp properties;
    cudaGetDeviceProperties(&properties, 0);
    return &properties;
}
template <class T> struct Guard { Guard(const T &) {} };
struct OptionalCUDAGuard { template <class T> OptionalCUDAGuard(const T &) {} };
struct CUDAGuard { template <class T> CUDAGuard(const T &) {} };
}  // namespace cuda
inline Device device_of(const Tensor &t) { return t.device(); }
}  // namespace at
namespace c10::cuda {
using at::cuda::CUDAGuard, at::cuda::CUDAStream, at::cuda::getCurrentCUDAStream, at::cuda::getDefaultCUDAStream, at::cuda::getStreamFromPool, at::cuda::OptionalCUDAGuard;
}
namespace torch {
using namespace at;
namespace cuda { using at::cuda::getCurrentCUDAStream; inline void synchronize() { cudaDeviceSynchronize(); } }
constexpr ScalarType kUInt8 = kByte, kInt8 = kChar, kInt16 = kShort, kInt32 = kInt, kInt64 = kLong, kFloat16 = kHalf, kFloat32 = kFloat, kFloat64 = kDouble;
struct NoGradGuard {};
}  // namespace torch

inline void cuir_host::Boxes::box(const at::Tensor &t) {
    kept.push_back(t.keep());
    t.defined() ? add(TENSOR, t.handle()) : add(NONE);
}
inline void cuir_host::Boxes::box(const std::vector<at::Tensor> &list) {
    auto copy = std::make_shared<std::vector<int64_t>>();
    for (const auto &t : list) copy->push_back(t.handle()), kept.push_back(t.keep());
    kept.push_back(copy), add(TENSORS, 0, 0, copy->data(), copy->size());
}

// ---- checks and dispatch
template <class... A> std::string cuir_join(const A &...a) {
    std::ostringstream out;
    (out << ... << a);
    return out.str();
}
#define TORCH_CHECK(CONDITION, ...) \
    do { if (!(CONDITION)) { auto told = cuir_join(__VA_ARGS__); cuir_host::fail(told.empty() ? "Expected " #CONDITION " to be true" : told); } } while (0)
#define TORCH_CHECK_EQ(A, B) TORCH_CHECK((A) == (B))
#define TORCH_INTERNAL_ASSERT TORCH_CHECK
#define AT_ASSERTM TORCH_CHECK
#define AT_ASSERT TORCH_CHECK
#define AT_ERROR(...) TORCH_CHECK(false, __VA_ARGS__)
#define TORCH_WARN(...) ((void)0)
#define C10_CUDA_CHECK(CALL) do { cudaError_t e_ = (CALL); TORCH_CHECK(e_ == cudaSuccess, "CUDA error: ", cudaGetErrorString(e_)); } while (0)
#define AT_CUDA_CHECK C10_CUDA_CHECK
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(cudaGetLastError())
#define CUIR_CASE(T, ENUM, ...) case ENUM: { using scalar_t = T; return __VA_ARGS__(); }
#define CUIR_FLOATS(...) CUIR_CASE(double, c10::ScalarType::Double, __VA_ARGS__) CUIR_CASE(float, c10::ScalarType::Float, __VA_ARGS__)
#define CUIR_INTEGERS(...) \
    CUIR_CASE(uint8_t, c10::ScalarType::Byte, __VA_ARGS__) CUIR_CASE(int8_t, c10::ScalarType::Char, __VA_ARGS__) CUIR_CASE(int16_t, c10::ScalarType::Short, __VA_ARGS__) \
    CUIR_CASE(int32_t, c10::ScalarType::Int, __VA_ARGS__) CUIR_CASE(int64_t, c10::ScalarType::Long, __VA_ARGS__)
#define CUIR_HALF(...) CUIR_CASE(at::Half, c10::ScalarType::Half, __VA_ARGS__)
#define CUIR_BFLOAT16(...) CUIR_CASE(at::BFloat16, c10::ScalarType::BFloat16, __VA_ARGS__)
#define CUIR_SWITCH(TYPE, NAME, ...) \
    [&] { switch (c10::ScalarType(TYPE)) { __VA_ARGS__ default: cuir_host::fail(std::string("\"") + NAME + "\" not implemented for '" + c10::toString(c10::ScalarType(TYPE)) + "'"); } }()
#define AT_DISPATCH_FLOATING_TYPES(TYPE, NAME, ...) CUIR_SWITCH(TYPE, NAME, CUIR_FLOATS(__VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND_HALF(TYPE, NAME, ...) CUIR_SWITCH(TYPE, NAME, CUIR_FLOATS(__VA_ARGS__) CUIR_HALF(__VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND2(A, B, TYPE, NAME, ...) CUIR_SWITCH(TYPE, NAME, CUIR_FLOATS(__VA_ARGS__) CUIR_HALF(__VA_ARGS__) CUIR_BFLOAT16(__VA_ARGS__))
#define AT_DISPATCH_INTEGRAL_TYPES(TYPE, NAME, ...) CUIR_SWITCH(TYPE, NAME, CUIR_INTEGERS(__VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES(TYPE, NAME, ...) CUIR_SWITCH(TYPE, NAME, CUIR_FLOATS(__VA_ARGS__) CUIR_INTEGERS(__VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND2(A, B, TYPE, NAME, ...) CUIR_SWITCH(TYPE, NAME, CUIR_FLOATS(__VA_ARGS__) CUIR_INTEGERS(__VA_ARGS__) CUIR_HALF(__VA_ARGS__) CUIR_BFLOAT16(__VA_ARGS__))

// ---- functions that Python calls
namespace cuir_host {
inline const char *text_of(const Value &v) { return static_cast<const char *>(v.items); }
inline void unbox(const Value &v, at::Tensor &out) { out = at::Tensor(v); }
inline void unbox(const Value &v, bool &out) { out = v.kind == REAL ? v.real != 0 : v.integer != 0; }
inline void unbox(const Value &v, std::string &out) {
    if (v.kind != TEXT) fail("a string is expected");
    out = text_of(v);
}
template <class T> std::enable_if_t<std::is_arithmetic_v<T> && !std::is_same_v<T, bool>> unbox(const Value &v, T &out) {
    if (v.kind == REAL && std::is_floating_point_v<T>) out = T(v.real);
    else if (v.kind == INTEGER || v.kind == BOOLEAN) out = T(v.integer);
    else fail("incompatible function arguments: a number is expected");
}
template <class T> std::enable_if_t<std::is_integral_v<T>> unbox(const Value &v, std::vector<T> &out) {
    const int64_t *items = static_cast<const int64_t *>(v.items);
    if (v.kind != INTEGERS) fail("incompatible function arguments: a list of integers is expected");
    out.assign(items, items + v.count);
}
inline void unbox(const Value &v, std::vector<at::Tensor> &out) {
    const int64_t *items = static_cast<const int64_t *>(v.items);
    if (v.kind != TENSORS) fail("incompatible function arguments: a list of tensors is expected");
    for (int i = 0; i < v.count; i++) out.push_back(at::Tensor(Value{TENSOR, 0, items[i], 0, nullptr}));
}
inline void unbox(const Value &v, at::IntArrayRef &out) {
    std::vector<int64_t> list;
    unbox(v, list), out = at::IntArrayRef(list);
}
inline void unbox(const Value &v, at::ScalarType &out) { out = at::ScalarType(v.integer); }
template <class T> void unbox(const Value &v, std::optional<T> &out) {
    if (v.kind == NONE) return void(out = std::nullopt);
    T inner{};
    unbox(v, inner), out = inner;
}
struct Export {
    std::string name;
    std::function<void(const Value *, int, Boxes &)> function;
};
inline std::vector<Export> exports;
inline Boxes returned;
template <class R, class... A, size_t... I> void enter(const char *name, R (*function)(A...), std::index_sequence<I...>) {
    exports.push_back({name, [=](const Value *v, int count, Boxes &out) {
        if (count != int(sizeof...(A))) fail(std::string(name) + "(): incompatible function arguments");
        std::tuple<std::decay_t<A>...> unboxed{};
        (unbox(v[I], std::get<I>(unboxed)), ...);
        if constexpr (std::is_void_v<R>) function(std::forward<A>(std::get<I>(unboxed))...), out.add(NONE);
        else out.box(function(std::forward<A>(std::get<I>(unboxed))...));
    }});
}
template <class R, class... A> void enter(const char *name, R (*function)(A...)) { enter(name, function, std::index_sequence_for<A...>{}); }
struct Module {
    template <class F, class... Rest> Module &def(const char *name, F function, const Rest &...) {
        if constexpr (std::is_convertible_v<F, void *> || std::is_pointer_v<F>) enter(name, function);
        else enter(name, +function);
        return *this;
    }
    std::string &doc() { return error; }
};
}  // namespace cuir_host
namespace pybind11 {
struct arg {
    explicit arg(const char *) {}
    template <class T> arg &operator=(const T &) { return *this; }
};
using module_ = cuir_host::Module;
template <class T> struct call_guard {};
struct gil_scoped_release {};
}  // namespace pybind11
namespace py = pybind11;
#define TORCH_EXTENSION_NAME extension
#define PYBIND11_MODULE(NAME, M) \
    static void cuir_define(cuir_host::Module &M); \
    static const bool cuir_defined = [] { cuir_host::Module made; cuir_define(made); return true; }(); \
    static void cuir_define([[maybe_unused]] cuir_host::Module &M)

extern "C" {
__attribute__((weak)) void cuir_set_host(const cuir_host::Host *h) { cuir_host::host = *h; }
__attribute__((weak)) const char *cuir_export(int i) { return i < int(cuir_host::exports.size()) ? cuir_host::exports[i].name.c_str() : nullptr; }
__attribute__((weak)) const char *cuir_error() { return cuir_host::error.c_str(); }
__attribute__((weak)) void cuir_drop() { cuir_host::returned = {}; }
__attribute__((weak)) int cuir_call(int i, const cuir_host::Value *arguments, int count, cuir_host::Value *result) {
    try {
        cuir_host::Boxes out;
        cuir_host::exports[i].function(arguments, count, out);
        cuir_host::returned = std::move(out);
        *result = cuir_host::returned.values.at(0);
        return 0;
    } catch (const std::exception &e) {
        cuir_host::error = e.what();
        return 1;
    }
}
}
