"""Programs that a model lifted from published kernels, each beside its source on a Hopper GPU.

    python -m benchmarks.lifted --out rows.jsonl                               # those whose source is a package that is installed, or PyTorch itself
    python -m benchmarks.lifted --learn-cuda learn_cuda.so --gemm pingpong.so  # and those whose source was built
    python -m benchmarks.lifted --table rows.jsonl                             # no GPU: the table of what was measured

Inputs are the same, results are compared. Attention: full, head dim of the program, 32 heads, batch x length 16384. The
GEMM: M = N = K, alpha 1, beta 1. Sustained: contenders take turns of 100 ms.

Building the sources: of CUTLASS

    nvcc -shared -Xcompiler -fPIC -std=c++17 -arch=sm_90a --expt-relaxed-constexpr -DNDEBUG -O3 \\
        -I CUTLASS/include -I CUTLASS/tools/util/include examples/lifting/pingpong_host.cu -o pingpong.so

and of learn-cuda `07_attention/attention_v5.cu` behind `extern "C" int run(const void *Q, const void *K, const void *V,
void *O, int batch, int queries, int keys)`.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import cuir
from benchmarks.old_and_new import as_they_come
from cuir.syntax.types import BF16, F16, DType

FOLDER = Path(__file__).parents[1] / "examples" / "lifting"
LENGTHS = (1024, 4096, 16384)
TOKENS, HEADS = 16384, 32
TOLERANCE = {F16: 3e-3, BF16: 2e-2}  # relative, of two roundings of the weights and of the result
FA3 = ("fa3_fwd_interface", "flash_attn_interface")  # the packages fa3-fwd and tokenspeed-fa3
Calls = dict[str, Callable[[], torch.Tensor]]


@dataclass(frozen=True)
class Lifted:
    """Program of examples/lifting.

    Attributes:
        calls: Function that returns the calls at a length, `lifted` and `source`; None where the source is missing.
        operations: Function that returns the operations of one call.
    """

    name: str
    dtype: DType
    calls: Callable[[Lifted, int, argparse.Namespace], Calls | None]
    operations: Callable[[int], float]

    def compile(self, **consts: Any) -> Any:
        """Compile the program."""
        return cuir.compile(FOLDER / f"{self.name}.cuir", consts={"T": self.dtype, **consts})


def draw(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Return a random tensor."""
    return torch.randn(shape, device="cuda", dtype=dtype)


def attention(dim: int) -> Callable[[int], float]:
    """Return the operations of attention by length."""
    return lambda length: 4.0 * dim * length * HEADS * TOKENS


def flash_attention_3(program: Lifted, length: int, options: argparse.Namespace) -> Calls | None:
    """Return the calls for FlashAttention-3."""
    package = next((name for name in FA3 if importlib.util.find_spec(name) is not None), None)
    if package is None:
        return None
    dim = 64 if "hdim64" in program.name else 128
    q, k, v = (draw(TOKENS // length, length, HEADS, dim, dtype=torch.bfloat16) for _ in range(3))  # heads inside, as the package has them
    kernel, (Q, K, V), out = program.compile(D=dim), (x.transpose(1, 2) for x in (q, k, v)), torch.empty_like(q)
    lse = torch.empty(TOKENS // length, HEADS, length, device="cuda")

    def run_lifted() -> torch.Tensor:
        kernel(Q=Q, K=K, V=V, O=out.transpose(1, 2), LSE=lse, scale=dim**-0.5)
        return out

    def source() -> torch.Tensor:
        result = flash(q, k, v)
        return result[0] if isinstance(result, tuple) else result

    flash = importlib.import_module(package).flash_attn_func
    return {"lifted": run_lifted, "source": source}


def flash_attention_2(program: Lifted, length: int, options: argparse.Namespace) -> Calls | None:
    """Return the calls for FlashAttention-2."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = (draw(TOKENS // length, HEADS, length, 128, dtype=torch.float16) for _ in range(3))
    kernel, out, lse = program.compile(D=128), torch.empty_like(q), torch.empty(q.shape[:-1], device="cuda")

    def run_lifted() -> torch.Tensor:
        kernel(Q=q, K=k, V=v, O=out, LSE=lse, scale=128**-0.5)
        return out

    def source() -> torch.Tensor:
        """Run PyTorch's copy of FlashAttention-2."""
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    return {"lifted": run_lifted, "source": source}


def learn_cuda(program: Lifted, length: int, options: argparse.Namespace) -> Calls | None:
    """Return the calls for learn-cuda's attention."""
    if options.learn_cuda is None:
        return None
    run, many = ctypes.CDLL(str(options.learn_cuda)).run, TOKENS // length * HEADS
    q, k, v = (draw(many, length, 128, dtype=torch.bfloat16) for _ in range(3))
    kernel, out, source_out = program.compile(), torch.empty_like(q), torch.empty_like(q)

    def run_lifted() -> torch.Tensor:
        kernel(q=q, k=k, v=v, O=out)
        return out

    def source() -> torch.Tensor:
        failed = run(*(ctypes.c_void_p(x.data_ptr()) for x in (q, k, v, source_out)), many, length, length)
        assert not failed, f"CUDA error {failed}"
        return source_out

    return {"lifted": run_lifted, "source": source}


def pingpong_gemm(program: Lifted, length: int, options: argparse.Namespace) -> Calls | None:
    """Return the calls for CUTLASS's ping-pong GEMM."""
    if options.gemm is None:
        return None
    ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)  # the library was linked without it
    run = ctypes.CDLL(str(options.gemm)).run
    a, b, c = (draw(length, length, dtype=torch.float16) for _ in range(3))
    a *= length**-0.5
    kernel, out, source_out = program.compile(), torch.empty_like(c), torch.empty_like(c)

    def run_lifted() -> torch.Tensor:
        kernel(A=a, Bt=b, C=c, Y=out, alpha=1.0, beta=1.0)
        return out

    def source() -> torch.Tensor:
        places = (ctypes.c_void_p(x.data_ptr()) for x in (a, b, c, source_out))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        failed = run(*places, length, length, length, ctypes.c_float(1.0), ctypes.c_float(1.0), stream)
        assert not failed, f"the GEMM is refused at step {failed}"
        return source_out

    return {"lifted": run_lifted, "source": source}


ALL = (
    Lifted("flash_attention_3_hdim128", BF16, flash_attention_3, attention(128)),
    Lifted("flash_attention_3_hdim64", BF16, flash_attention_3, attention(64)),
    Lifted("flash_attention_2_hdim128", F16, flash_attention_2, attention(128)),
    Lifted("learn_cuda_attention_v5", BF16, learn_cuda, attention(128)),
    Lifted("cutlass_pingpong_gemm", F16, pingpong_gemm, lambda length: 2.0 * length**3),
)


def measure_rows(options: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
    """Yield a row for each program and length."""
    from cuir.performance.timing.timing_protocol import describe_error, median_ms, time_in_turns

    gpu = torch.cuda.get_device_name()
    for program in ALL:
        for length in LENGTHS:
            try:
                torch.manual_seed(1)
                calls = program.calls(program, length, options)
                if calls is None:
                    yield {"program": program.name, "gpu": gpu, "failed": "its source is not here"}
                    break
                results = {name: call().float() for name, call in calls.items()}
                distance = float((results["lifted"] - results["source"]).norm() / results["source"].norm())
                del results
                times, failed = time_in_turns(calls, options.rounds, partial(median_ms, milliseconds=100.0))
                rates = {name: round(program.operations(length) / statistics.median(t) / 1e9, 1) for name, t in times.items()}
                yield {
                    "program": program.name,
                    "gpu": gpu,
                    "length": length,
                    "tflops": rates,
                    "apart": distance,
                    "right": distance <= TOLERANCE[program.dtype],
                    **failed,
                }
            except Exception as error:  # a program that cannot run costs only its rows
                yield {"program": program.name, "gpu": gpu, "length": length, "failed": describe_error(error)}
                if "CUDA error" in str(error):
                    return


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format the measurements: a line for each program and length, and each program's mean quotient."""
    lines = [
        "# Lifted programs beside their sources",
        "",
        "    python -m benchmarks.lifted --learn-cuda FILE --gemm FILE --out FILE",
        "",
        f"{rows[0]['gpu']}, sustained.",
        "",
    ]
    lines += ["| program | length | lifted, TFLOP/s | source, TFLOP/s | lifted / source | apart |", "|---|--:|--:|--:|--:|--:|"]
    quotients = dict[str, list[float]]()
    for row in rows:
        if "tflops" in row:
            quotient = row["tflops"]["lifted"] / row["tflops"]["source"]
            quotients.setdefault(row["program"], []).append(quotient)
            lines.append(
                f"| {row['program']} | {row['length']} | {row['tflops']['lifted']:.0f} | {row['tflops']['source']:.0f} | {quotient:.3f} | {row['apart']:.1e} |"
            )
    means = [
        f"{name}: {statistics.geometric_mean(ratios):.3f} in the geometric mean of {len(ratios)} lengths  "
        for name, ratios in quotients.items()
    ]
    return "\n".join([*lines, "", *means, ""])


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.lifted", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--learn-cuda", type=Path, help="learn-cuda's attention 5 as a library")
    parser.add_argument("--gemm", type=Path, help="CUTLASS's ping-pong GEMM as a library")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="lines of JSON, as they come")
    parser.add_argument("--table", type=Path, help="of lines that were written before")
    options = parser.parse_args()
    if options.table is not None:
        print(table([json.loads(line) for line in options.table.read_text(encoding="utf-8").splitlines()]))
        return 0
    from cuir.performance.timing.gpu import explain_missing_gpu

    if why := explain_missing_gpu():
        print(f"nothing measured: {why}", file=sys.stderr)
        return 1
    as_they_come(measure_rows(options), options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
