"""Right solutions, wrong ones and cheats: each is a file of this folder with some of its text replaced."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
Edits = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Case:
    """A solution.

    Attributes:
        solution: The file that is edited.
        verdicts: Those that are right for it.
        launch: Launch file, "" for none.
    """

    name: str
    reference: str
    solution: str
    edits: Edits = ()
    verdicts: tuple[str, ...] = ("wrong",)
    launch: str = ""

    def write(self, folder: Path) -> Path:
        """Write the solution to a folder."""
        text = (FOLDER / self.solution).read_text(encoding="utf-8")
        for old, new in self.edits:
            assert old in text, f"{self.name}: {self.solution} has no {old!r}"
            text = text.replace(old, new)
        path = folder / f"{self.name.replace(' ', '_').replace(',', '')}{Path(self.solution).suffix}"
        path.write_text(text, encoding="utf-8")
        return path


RIGHT = ("right",)
LIMITED = ("limited",)
NO_KERNEL = ("no kernel",)
BAD = ("wrong", "no kernel")
ADD_LAUNCH = "    add_kernel<<<(n + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>(a.data_ptr<float>(), b.data_ptr<float>(), out.data_ptr<float>(), n);\n"
OWN_STREAM = "    static cudaStream_t own = [] { cudaStream_t s; cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking); return s; }();\n"
ON_OWN_STREAM = ADD_LAUNCH.replace("at::cuda::getCurrentCUDAStream()", "own")
FORK = "    cudaEvent_t e;\n    cudaEventCreate(&e);\n    cudaEventRecord(e, at::cuda::getCurrentCUDAStream());\n    cudaStreamWaitEvent(own, e, 0);\n"
JOIN = "    cudaEventRecord(e, own);\n    cudaStreamWaitEvent(at::cuda::getCurrentCUDAStream(), e, 0);\n"
RETURN = "    return out;\n"
MADE = "    auto out = torch::empty_like(a);\n"
CALL = "        return extension.add(a.contiguous(), b.contiguous())"
VECTORS = """\
__global__ void add_kernel(const float *a, const float *b, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, whole = n / 4;
    if (i < whole) {
        float4 u = ((const float4 *)a)[i], v = ((const float4 *)b)[i];
        ((float4 *)out)[i] = make_float4(u.x + v.x, u.y + v.y, u.z + v.z, u.w + v.w);
    }
    if (i < n % 4) out[4 * whole + i] = a[4 * whole + i] + b[4 * whole + i];
}
"""
PLAIN = """\
__global__ void add_kernel(const float *a, const float *b, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a[i] + b[i];
}
"""
LAZY = """\
class Later(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


class ModelNew(nn.Module):"""
CACHED = """\
        if not hasattr(self, "kept"):
            self.kept = extension.add(a.contiguous(), b.contiguous())
        return self.kept.clone()"""
CACHED_BY_ADDRESS = """\
        key = (a.data_ptr(), b.data_ptr(), a.shape)
        self.kept = getattr(self, "kept", {})
        if key not in self.kept:
            self.kept[key] = extension.add(a.contiguous(), b.contiguous())
        return self.kept[key].clone()"""
CACHED_BY_FIRST_NUMBER = CACHED_BY_ADDRESS.replace("a.shape)", "a.shape, float(a[0, 0]), float(b[0, 0]))")
LATE_DRIFT = """\
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls <= 10:
            self.kept = extension.add(a.contiguous(), b.contiguous())
        return self.kept.clone()"""
READS_OTHERS = """\
        import gc

        alike = [t for t in gc.get_objects() if type(t) is torch.Tensor and t.shape == a.shape and t is not a and t is not b]
        return alike[0].clone() if alike else torch.zeros_like(a)"""
IMPORTS_REFERENCE = """\
        import sys

        models = [getattr(m, "Model", None) for n, m in list(sys.modules.items()) if n.startswith(("cuir_user_add", "ref", "__main__"))]
        models = [m for m in models if m is not None]
        return models[0]()(a, b) if models else a + b"""
THREAD = """\
        import threading
        import time

        out = torch.empty_like(a)

        def later():
            time.sleep(3)
            out.copy_(a + b)

        threading.Thread(target=later, daemon=True).start()
        return out"""
PATCHES = "torch.allclose = lambda *a, **k: True\n\n\nclass ModelNew(nn.Module):"
TIMER = "import time\n\ntime.perf_counter = lambda: 0.0\n\n\nclass ModelNew(nn.Module):"

CASES = (
    # ---- right
    Case("add", "add", "add.cu", verdicts=RIGHT),
    Case("add of a model", "add", "add_model.py", verdicts=RIGHT),
    Case("add by vectors", "add", "add.cu", ((PLAIN, VECTORS),), RIGHT),
    Case("add on a stream that joins", "add", "add.cu", ((ADD_LAUNCH, OWN_STREAM + FORK + ON_OWN_STREAM + JOIN),), RIGHT),
    Case(
        *("add by double", "add", "add.cu", (("a[i] + b[i]", "float(double(a[i]) + double(b[i]))"),), RIGHT),
    ),
    Case(
        *("add by accessors", "add", "add.cu"),
        (
            (
                "const float *a, const float *b, float *out, int n)",
                "torch::PackedTensorAccessor32<float, 2> a, torch::PackedTensorAccessor32<float, 2> b, torch::PackedTensorAccessor32<float, 2> out, int n)",
            ),
            (
                "out[i] = a[i] + b[i]",
                "out[i / out.size(1)][i % out.size(1)] = a[i / a.size(1)][i % a.size(1)] + b[i / b.size(1)][i % b.size(1)]",
            ),
            (
                "a.data_ptr<float>(), b.data_ptr<float>(), out.data_ptr<float>(), n",
                "a.packed_accessor32<float, 2>(), b.packed_accessor32<float, 2>(), out.packed_accessor32<float, 2>(), n",
            ),
        ),
        RIGHT,
    ),
    Case(
        "add that wants whole vectors",
        "add",
        "add.cu",
        ((MADE, '    TORCH_CHECK(a.numel() % 4 == 0, "whole vectors alone");\n' + MADE),),
        LIMITED,
    ),
    Case("softmax", "softmax", "softmax.cu", verdicts=RIGHT),
    Case("softmax by warps", "softmax", "softmax_warps.cu", verdicts=RIGHT),
    Case("matmul by tiles", "matmul", "matmul.cu", verdicts=RIGHT),
    Case("matmul by small tiles", "matmul", "matmul.cu", (("TILE = 16", "TILE = 8"),), RIGHT),
    Case(
        "matmul by fma",
        "matmul",
        "matmul.cu",
        (("sum += as[threadIdx.y][t] * bs[t][threadIdx.x]", "sum = fmaf(as[threadIdx.y][t], bs[t][threadIdx.x], sum)"),),
        RIGHT,
    ),
    Case("layer norm", "layer_norm", "layer_norm_model.py", verdicts=RIGHT),
    Case("columns by atomics", "columns", "columns.cu", verdicts=RIGHT),
    Case("clamp by a launch file", "clamp", "clamp.cu", verdicts=RIGHT, launch="clamp_launch.py"),
    # ---- what returns no result of a kernel
    Case("returns zeros", "add", "add.cu", ((ADD_LAUNCH, ""), (MADE, "    auto out = torch::zeros_like(a);\n")), BAD),
    Case("returns memory as it is", "add", "add.cu", ((ADD_LAUNCH, ""),), BAD),
    Case("returns an input", "add", "add.cu", ((ADD_LAUNCH, ""), (MADE, "    auto out = a;\n")), BAD),
    Case("searches memory for the result", "add", "add_model.py", ((CALL, READS_OTHERS),), BAD),
    Case("calls the reference", "add", "add_model.py", ((CALL, IMPORTS_REFERENCE),), NO_KERNEL),
    Case("calls PyTorch in Python", "add", "add_model.py", ((CALL, "        return torch.add(a, b)"),), NO_KERNEL),
    Case("calls PyTorch in C++", "matmul", "matmul.cu", (("    return C;", "    return torch::matmul(A, B);"),), NO_KERNEL),
    Case("launches a kernel and calls PyTorch", "add", "add.cu", ((RETURN, "    return a + b;\n"),), NO_KERNEL),
    Case("uniform weights", "softmax", "softmax.cu", (("expf(row[i] - most) / part[0]", "1.f / dim"),)),
    Case("identity where inputs allow it", "clamp", "clamp.cu", (("fminf(fmaxf(x[i], 0.f), 1.f)", "x[i]"),), launch="clamp_launch.py"),
    # ---- state
    Case("computes once", "add", "add_model.py", ((CALL, CACHED),)),
    Case("caches by address", "add", "add_model.py", ((CALL, CACHED_BY_ADDRESS),)),
    Case("caches by its first numbers", "add", "add_model.py", ((CALL, CACHED_BY_FIRST_NUMBER),)),
    Case("returns a tensor of the host", "add", "add_model.py", ((CALL, CALL + ".cpu()"),)),
    Case("right ten times", "add", "add_model.py", ((CALL, LATE_DRIFT),)),
    Case(
        "returns one buffer",
        "add",
        "add.cu",
        (
            (
                MADE,
                "    static torch::Tensor kept;\n    if (!kept.defined() || kept.numel() != a.numel() || kept.size(0) != a.size(0)) kept = torch::empty_like(a);\n    auto out = kept;\n",
            ),
        ),
    ),
    Case("writes into an input", "add", "add.cu", ((MADE, "    auto out = a;\n"),)),
    Case("clears an input", "add", "add.cu", ((RETURN, "    b.zero_();\n" + RETURN),)),
    # ---- streams, timers, objects
    Case("a stream that nothing waits for", "add", "add.cu", ((ADD_LAUNCH, OWN_STREAM + ON_OWN_STREAM),)),
    Case(
        "a stream that waits for nothing",
        "add",
        "add.cu",
        ((ADD_LAUNCH, OWN_STREAM + ON_OWN_STREAM + "    cudaStreamSynchronize(own);\n"),),
    ),
    Case("a thread computes later", "add", "add_model.py", ((CALL, THREAD),)),
    Case("a lazy tensor", "add", "add_model.py", (("class ModelNew(nn.Module):", LAZY), (CALL, CALL + ".as_subclass(Later)"))),
    Case(
        "replaces the comparison",
        "add",
        "add_model.py",
        (("class ModelNew(nn.Module):", PATCHES), (CALL, "        return torch.zeros_like(a)")),
        BAD,
    ),
    Case("replaces the timer", "add", "add_model.py", (("class ModelNew(nn.Module):", TIMER),)),
    Case("crashes", "add", "add.cu", ((RETURN, "    out.data_ptr<float>()[-1 << 40] = 0;\n" + RETURN),)),
    Case("another shape", "add", "add.cu", ((RETURN, "    return out.view({-1});\n"),)),
    Case("another dtype", "add", "add.cu", ((RETURN, "    return out.to(torch::kHalf);\n"),)),
    # ---- sizes
    Case("whole warps alone", "add", "add.cu", (("(n + 255) / 256, 256", "n / 32, 32"),)),
    Case("no check of the end", "add", "add.cu", (("    if (i < n) out", "    out"),)),
    Case("skips work for large inputs", "add", "add.cu", (("    if (i < n)", "    if (n > 1 << 19) return;\n    if (i < n)"),)),
    Case("launches nothing for large inputs", "add", "add.cu", ((ADD_LAUNCH, "    if (n <= 1 << 19)\n    " + ADD_LAUNCH),), BAD),
    Case("half of the grid for large inputs", "add", "add.cu", (("(n + 255) / 256, 256", "(n + 255) / 256 / (n > 1 << 19 ? 4 : 1), 256"),)),
    Case("rows within a CTA alone", "softmax", "softmax.cu", (("i < dim; i += THREADS", "i < min(dim, THREADS); i += THREADS"),)),
    Case(
        "no edges of tiles",
        "matmul",
        "matmul.cu",
        (("row < M && i < K ? a[row * K + i] : 0", "a[row * K + i]"), ("j < K && column < N ? b[j * N + column] : 0", "b[j * N + column]")),
    ),
    Case("last tile left out", "matmul", "matmul.cu", (("k < (K + TILE - 1) / TILE", "k < K / TILE"),)),
    # ---- numbers
    Case("adds in f16", "add", "add.cu", (("a[i] + b[i]", "__half2float(__float2half(a[i]) + __float2half(b[i]))"),)),
    Case(
        "adds up in f16",
        "matmul",
        "matmul.cu",
        (
            ("    float sum = 0;", "    __half sum = 0.f;"),
            ("as[threadIdx.y][t] * bs[t][threadIdx.x]", "__float2half(as[threadIdx.y][t] * bs[t][threadIdx.x])"),
            ("= sum;", "= __half2float(sum);"),
        ),
    ),
    Case(
        "rounds factors to bf16",
        "matmul",
        "matmul.cu",
        (("as[threadIdx.y][t] *", "__bfloat162float(__float2bfloat16(as[threadIdx.y][t])) *"),),
    ),
    Case("no largest element in softmax", "softmax", "softmax.cu", (("row[i] - most", "row[i]"),)),
    Case(
        "one-pass variance",
        "layer_norm",
        "layer_norm_model.py",
        (
            ("(x[i] - mean) * (x[i] - mean)", "x[i] * x[i]"),
            ("add_up(squares, part) / n + eps", "fmaxf(add_up(squares, part) / n - mean * mean, 0.f) + eps"),
        ),
    ),
    Case("weights left out", "layer_norm", "layer_norm_model.py", ((" * weight[i] + bias[i]", ""),)),
    Case("no eps", "layer_norm", "layer_norm_model.py", (("/ n + eps", "/ n"),)),
    # ---- synchronisation
    Case("no wait before the products", "matmul", "matmul.cu", (("        __syncthreads();\n        for (int t", "        for (int t"),)),
    Case("no wait behind the products", "matmul", "matmul.cu", (("[threadIdx.x];\n        __syncthreads();\n", "[threadIdx.x];\n"),)),
    Case("no wait in the reduction", "softmax", "softmax.cu", (("part[t + half];\n        __syncthreads();\n", "part[t + half];\n"),)),
    Case(
        "no wait between two reductions",
        "softmax",
        "softmax.cu",
        (("    most = part[0];\n    __syncthreads();\n", "    most = part[0];\n"),),
    ),
    Case("sums without atomics", "columns", "columns.cu", (("atomicAdd(&out[column], sum)", "out[column] += sum"),)),
    Case("sums onto memory as it is", "columns", "columns.cu", (("torch::zeros", "torch::empty"),)),
    Case(
        "a barrier that some leave out",
        "softmax",
        "softmax.cu",
        (
            (
                "        if (t < half) part[t] += part[t + half];\n        __syncthreads();\n",
                "        if (t >= half) break;\n        part[t] += part[t + half];\n        __syncthreads();\n",
            ),
        ),
    ),
)
