"""Launches causal attention by PyCUDA twice: as a call with GPUArrays, and by hand with its `pycuda.driver.Function`, grid, shared memory and arguments.

python examples/pycuda_launch.py            # on a Hopper GPU with PyCUDA; elsewhere it says what is missing
"""

from __future__ import annotations

import sys

import numpy as np

import corpus
import cuir

BATCH, HEADS, LENGTH, DIM = 2, 4, 1000, 64
ALLOWED = 2e-3  # relative error, in the Euclidean norm: of f16


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float) -> np.ndarray:
    """Compute causal attention in float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = np.where(np.tri(q.shape[-2], dtype=bool), q @ k.swapaxes(-1, -2) * scale, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(weights @ v / weights.sum(-1, keepdims=True))


def show_error(name: str, found: np.ndarray, expected: np.ndarray) -> bool:
    error = float(np.linalg.norm(found.astype(np.float64) - expected) / np.linalg.norm(expected))
    print(f"{name}: relative error {error:.1e} from float64")
    return error <= ALLOWED


def run() -> bool:
    """Return whether both launches are right. Raises CuirError for what is missing."""
    text = corpus.kernels()["flash_fwd_sm90"].read_text(encoding="utf-8")
    program = cuir.parse(text, "flash_fwd_sm90.cuir")
    kernel = cuir.lower(cuir.check(program, consts={"T": cuir.f16, "D": DIM})).pycuda()

    import pycuda.autoinit  # noqa: F401
    import pycuda.driver as drv
    from pycuda import gpuarray

    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((BATCH, HEADS, LENGTH, DIM)).astype(np.float16) for _ in range(3))
    expected, scale = attend(q, k, v, DIM**-0.5), DIM**-0.5
    Q, K, V = map(gpuarray.to_gpu, (q, k, v))

    o, _ = kernel(Q=Q, K=K, V=V, scale=scale)  # results that are left out are GPUArrays
    called = show_error("called", o.get(), expected)

    drv.memset_d8(o.gpudata, 0, o.nbytes)
    launch = kernel.prepare(Q=Q, K=K, V=V, O=o, scale=scale)
    launch.function(*launch.arguments, grid=launch.grid, block=launch.block, shared=launch.shared, stream=drv.Stream())
    drv.Context.synchronize()
    print(f"{len(launch.arguments)} arguments, grid {launch.grid}, block {launch.block}, {launch.shared} bytes of shared memory")
    return show_error("launched by hand", o.get(), expected) and called


def main() -> int:
    try:
        return 0 if run() else 1
    except cuir.CuirError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
