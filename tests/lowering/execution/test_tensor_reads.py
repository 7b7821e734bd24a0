"""Elements of scratch are read two neighbours at a time where they lie so, with the values that the language says; its strides are the text's own.

Code for tensors that a kernel reads and writes: plain pointers, cluster scope, the fence of all spaces.

Elsewhere nothing changes.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import corpus
from cuir.checking.checker import check
from cuir.lowering import lower
from cuir.runtime.nvcc import find_nvcc, include_dir
from cuir.runtime.watchdog import add_watchdog
from cuir.syntax.parser import parse
from cuir.syntax.types import F16
from tests.gpu.test_exchange import EXCHANGE
from tests.lowering.conftest import kernel
from tests.lowering.host import GXX, on_cpu

HEAD = """\
@kernel(arch="sm_90a")
def k(X: Global[{dtype}, M, {cols}], Y: Global[{dtype}, M, {cols}], S: Scratch[{dtype}, 3, M, {width}], first: i32):
    with role("all", warpgroups=1):
"""
ROUND_TRIP = """\
store(S[first, rows(64), {column} + cols({cols})], X[rows(64), cols({cols})])
store(Y[rows(64), cols({cols})], S[first, rows(64), {column} + cols({cols})] + S[first, rows(64), {column} + cols({cols})])
"""


def text(dtype: str = "f32", cols: int = 16, width: int = 40, column: str = "8") -> str:
    return lower(kernel(ROUND_TRIP.format(cols=cols, column=column), HEAD.format(dtype=dtype, cols=cols, width=width))).source


def test_neighbours_are_read_at_once() -> None:
    assert "cuir::read_pair<2>(" in text() and "cuir::read_pair<1>(" in text("i32", 8)


@pytest.mark.parametrize(
    "inputs",
    [{"width": 41}, {"column": "first"}, {"column": "3"}, {"dtype": "f16"}],
    ids=["odd rows", "any column", "an odd column", "halves"],
)
def test_what_may_lie_otherwise_is_read_alone(inputs: dict[str, str]) -> None:
    assert "read_pair" not in text(**inputs)  # type: ignore[arg-type]


def test_even_columns_that_a_number_gives() -> None:
    assert "cuir::read_pair<2>(" in text(column="4 * first")


def test_only_scratch_is() -> None:
    """Strides of a caller's tensor are unknown."""
    result = lower(
        kernel(ROUND_TRIP.format(cols=16, column="8"), HEAD.format(dtype="f32", cols=16, width=40).replace("Scratch[", "Global["))
    ).source
    assert "read_pair" not in result and "const int64_t S_stride0," in result
    ours = text()
    assert (
        "S_stride0," not in ours.split("{")[0]
        and "const int64_t S_stride1 = 40;" in ours
        and "const int64_t S_stride0 = M * S_stride1;" in ours
    )


@cache
def compile_round_trip(dtype: str, cols: int, width: int, column: str) -> Callable[..., None]:
    """A function of arrays X, Y, S, and numbers."""
    cuda = lower(kernel(ROUND_TRIP.format(cols=cols, column=column), HEAD.format(dtype=dtype, cols=cols, width=width)))
    call = on_cpu(cuda, Path(mkdtemp()))

    def run(first: int, M: int, **arrays: np.ndarray) -> None:
        inputs = [(arrays[name],) if name == "S" else (arrays[name], cols) for name in cuda.tensors]
        call(*(x for pair in inputs for x in pair), first, M)

    return run


@pytest.mark.skipif(GXX is None, reason="no g++ on the PATH")
@given(
    st.sampled_from(["f32", "i32"]),
    st.sampled_from([(8, 8, "0"), (16, 40, "8"), (24, 16, "8"), (16, 41, "8"), (16, 40, "4 * first")]),
    st.integers(1, 70),
    st.integers(0, 2),
)
def test_the_values(dtype: str, lie: tuple[int, int, str], M: int, first: int) -> None:
    """Elements beyond a row are dropped when written, and 0 when read."""
    cols, width, column = lie
    x = np.random.default_rng(M).integers(-99, 99, (M, cols)).astype({"f32": np.float32, "i32": np.int32}[dtype])
    y, s = np.full_like(x, 7), np.zeros((3, M, width), x.dtype)
    compile_round_trip(dtype, *lie)(first, M, X=x, Y=y, S=s)
    at = 4 * first if "first" in column else int(column)
    retained = np.arange(cols) + at < width
    assert (y[:64] == np.where(retained, 2 * x[:64], 0)).all() and (y[64:] == 7).all()


def source(text: str = EXCHANGE, **consts: int) -> str:
    return lower(check(parse(text, "k.cuir"), None, consts)).source


def body(text: str) -> str:
    """The kernel without the functions before it."""
    return text[text.index('extern "C" __global__') :]


def test_barriers_of_the_cluster_carry_its_scope_and_others_do_not() -> None:
    result = body(source())
    assert re.findall(r"cuir::release_cluster_warp\((\w+)", result) == ["there"] * 2 and "arrive_cluster(" not in result
    assert re.findall(r"cuir::wait_cluster\((\w+)", result) == ["there"] * 2
    assert re.findall(r"cuir::wait\((\w+)", result) == ["full", "own"]
    assert re.findall(r"cuir::fence_proxy\(\)", result) == ["cuir::fence_proxy()"]
    alone = body(source(CLUSTER=1))
    assert "_cluster" not in alone and "cuir::wait(there" in alone and "cuir::fence_proxy();" in alone


def test_a_single_lane_releases_at_each_cta() -> None:
    text = EXCHANGE.replace(
        '    with role("w"',
        '    with role("signal", warps=1):\n        for t in work:\n            if X[t, 0, 0, 0] > T[t, 0, 0, 0]:\n                other.arrive(cluster=True)\n    with role("w"',
    ).replace("there, own, full = mbarrier(CLUSTER)", "other, there, own, full = mbarrier(1), mbarrier(CLUSTER)")
    result = body(source(text))
    assert "for (int cta = 0; cta < 2; ++cta) cuir::release_cluster(other, cta);" in result
    assert re.search(r'asm volatile\("" ::: "memory"\);\s+for \(int cta', result)  # what the lane has read it has read


def test_a_tensor_that_is_read_and_written_is_a_plain_pointer() -> None:
    result = body(source())
    assert "const float* __restrict__ X," in result and "float* __restrict__ Y," in result
    assert re.search(r"^ +float\* T,", result, re.MULTILINE)


@pytest.mark.parametrize("cluster", [1, 2])
def test_the_flagship_is_as_it_was(cluster: int) -> None:
    text = (corpus.kernels()["flash_fwd_sm90"]).read_text(encoding="utf-8")
    result = source(text, T=F16, D=128, CLUSTER=cluster)  # type: ignore[arg-type]
    for word in ("release_cluster", "wait_cluster", "fence_proxy", 'asm volatile("" ::: "memory");\n'):
        assert word not in body(result)
    assert all("__restrict__" in line for line in body(result).split("\n") if re.match(r" +(const )?(float|__half)\* ", line))


def test_bulk_stores_over_what_warps_read_are_not_issued_by_warps() -> None:
    text = """\
@kernel(arch="sm_90a")
def k(X: Global[f16, M, 64], Y: Global[f16, M, 64]):
    s = shared(f16, [64, 64])
    with role("w", warpgroups=1):
        x = load(SOURCE[0 : 64, :])
        store(s, x)
        fence_async()
        store_async(s, Y[0 : 64, :])
"""
    assert "if (lane == 0)" in body(source(text.replace("SOURCE", "X")))
    assert "threadIdx.x % 128 == 0" in body(source(text.replace("SOURCE", "Y")))


def test_watched_waits_of_both_kinds() -> None:
    cuda = lower(check(parse(EXCHANGE, "k.cuir")))
    result = add_watchdog(cuda, 2.0).source
    assert result.count("give_up(bar, parity, line, begin)") == 2 and len(result.splitlines()) == len(cuda.source.splitlines())


@pytest.mark.thorough
@pytest.mark.nvcc
def test_the_qualifiers_are_in_the_ptx(tmp_path: Path) -> None:
    """And loads of the tensor are coherent, while those of the input are not. With the watchdog's waits, which must compile as well."""
    cuda = add_watchdog(lower(check(parse(EXCHANGE, "k.cuir"))), 2.0)
    file, out = tmp_path / "k.cu", tmp_path / "k.ptx"
    file.write_text(cuda.source)
    command = [find_nvcc(), "-ptx", "-arch=sm_90a", "-std=c++17", "-I", include_dir(), "-o", str(out), str(file)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    ptx = out.read_text()
    for instruction in (
        "mbarrier.arrive.release.cluster.shared::cluster.b64",
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64",
        "fence.proxy.async;",
    ):
        assert instruction in ptx, instruction
    fence, release = ptx.index("fence.proxy.async;"), ptx.index("mbarrier.arrive.release.cluster")
    acquire = ptx.index("mbarrier.try_wait.parity.acquire.cluster")
    assert ptx.index("st.global") < fence < release < acquire
    assert ptx.count("ld.global.nc.f32") == ptx.count("ld.global.f32") == 32 and ptx.index("ld.global.f32") > acquire
