"""Descriptions of launches agree with the CUDA text, with the launcher's buffer, and with the number of units."""

from __future__ import annotations

import json
import re

import pytest

import corpus
import cuir
from cuir.arguments.tile_count import count_tiles
from cuir.lowering import Cuda
from cuir.runtime.launch_description import count_ctas, describe_launch

KERNELS = {
    "gemm": {"T": cuir.f16, "BM": 64, "BN": 64},
    "flash_fwd_sm90": {"T": cuir.f16, "D": 64},
    "flash_fwd_cluster": {"T": cuir.f16, "D": 64},
    "decode_sm90": {"T": cuir.f16, "D": 64},
}


def lower(name: str) -> Cuda:
    path = {**corpus.kernels(), **corpus.programs()}[name]
    return cuir.lower(cuir.check(cuir.load(path), consts=KERNELS[name]))


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", KERNELS)
def test_parameters_are_those_of_the_signature(name: str) -> None:
    cuda = lower(name)
    launch = describe_launch(cuda)
    match = re.search(rf"__global__[^(]*\([^)]*\)\s+{launch.symbol}\((.*?)\) \{{", cuda.source, re.S)
    assert match
    names = [re.sub(r"_stride(\d+)$", r".stride(\1)", p.split()[-1]) for p in match[1].split(",")]
    assert [p.name for p in launch.parameters] == names
    sizes = {"CUtensorMap": 128, "int64_t": 8, "int": 4, "float": 4, "bool": 1}
    end = 0
    for p in launch.parameters:
        size = sizes.get(p.type, 8)
        assert p.offset == -(-end // min(size, 64)) * min(size, 64), p.name
        end = p.offset + size
    assert f"__launch_bounds__({launch.block}, " in cuda.source
    assert {m.name for m in launch.maps} == {p.name for p in launch.parameters if p.type == "CUtensorMap"}
    assert json.loads(json.dumps(launch.as_json()))["symbol"] == launch.symbol


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", KERNELS)
def test_units_are_those_that_a_launch_counts(name: str) -> None:
    cuda = lower(name)
    dims = dict(zip(cuda.dims, (3, 8, 500, 4, 700, 2), strict=False))
    units = describe_launch(cuda).units
    assert units is not None
    value = eval(units, {"cdiv": lambda a, b: -(-a // b), "max": max, "min": min}, dims)
    assert value == count_tiles(cuda.checked, dims, {"scale": 1.0})


@pytest.mark.parametrize(("arch", "per_unit"), [("sm_80", True), ("sm_90a", False)])
def test_dynamic_units_of_older_gpus_are_ctas(arch: str, per_unit: bool) -> None:
    """Their hardware starts a CTA when another ends; a queue needs mbarriers."""
    text = """
@kernel(arch="ARCH")
def double(X: Global[f32, M, 64]):
    work = tiles(cdiv(M, 64), dynamic=DYNAMIC)
    with role("all", warpgroups=1):
        for t in work:
            store(X[t * 64 : t * 64 + 64, :], load(X[t * 64 : t * 64 + 64, :]) * 2.0)
"""
    dynamic, static = (
        cuir.lower(cuir.check(cuir.parse(text.replace("ARCH", arch).replace("DYNAMIC", word)))) for word in ("True", "False")
    )
    assert not static.cta_per_unit and dynamic.cta_per_unit == per_unit
    assert [count_ctas(cuda, 1000, 264) for cuda in (dynamic, static)] == [1000 if per_unit else 264, 264]
    assert [count_ctas(dynamic, units, 264) for units in (-1, 0, 7, None)] == [0, 0, 7, 1]
    assert describe_launch(dynamic).grid.startswith("units = cdiv(M, 64)" if per_unit else "min(units, ")


def test_a_kernel_without_tiles_is_one_cta() -> None:
    text = """
@kernel(arch="sm_90a")
def copy(X: Global[f32, 64, 64], Y: Global[f32, 64, 64]):
    with role("all", warpgroups=1):
        store(Y[0:64, :], load(X[0:64, :]))
"""
    launch = describe_launch(cuir.lower(cuir.check(cuir.parse(text))))
    assert launch.units is None and launch.grid == "1" and launch.maps == ()
