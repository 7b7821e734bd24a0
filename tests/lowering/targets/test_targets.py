"""Targets: what a kernel may name follows from the folders, each prints what it has, and the skeleton's code compiles."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import corpus
from cuir.checking.checker import check
from cuir.lowering import lower
from cuir.lowering.targets import gaps, target_of
from cuir.ops import TABLE
from cuir.ops.limits import FEATURES, TARGETS, list_architectures
from cuir.runtime.nvcc import compile_cuda
from cuir.syntax.parser import parse
from cuir.syntax.types import F16
from cuir.text.diagnostics import CuirError

FOLDER = Path(__file__).parents[3] / "cuir/lowering/targets"
needs_nvcc = pytest.mark.nvcc
PIPELINE = """\
@kernel(arch="ARCH")
def scaled(X: Global[f16, M, 64], Y: Global[f16, M, 64], *, STAGES: const = 2):
    sX, sY = shared(f16, [STAGES, 64, 64]), shared(f16, [64, 64])
    full, empty = mbarrier(1, stages=STAGES), mbarrier(1, stages=STAGES)
    work = tiles(cdiv(M, 64), dynamic=True)
    with role("loader", warps=1, registers=40):
        i = 0
        for t in work:
            s = i % STAGES
            empty[s].wait(i // STAGES % 2 ^ 1)
            full[s].expect(nbytes(sX[s]))
            copy_async(X[t * 64 : t * 64 + 64, :], sX[s], full[s])
            i = i + 1
    with role("math", warpgroups=1, registers=232):
        i = 0
        for t in work:
            s = i % STAGES
            full[s].wait(i // STAGES % 2)
            x = load(sX[s])
            empty[s].arrive()
            store_wait()
            store(sY, cast(cast(x, f32) * 2.0, f16))
            fence_async()
            store_async(sY, Y[t * 64 : t * 64 + 64, :])
            i = i + 1
"""
PRODUCT = """\
@kernel(arch="ARCH")
def product(X: Global[f16, M, 64], Y: Global[f32, M, 64]):
    sX = shared(f16, [64, 64])
    work = tiles(cdiv(M, 64))
    with role("all", warpgroups=1):
        for t in work:
            store(sX, load(X[t * 64 : t * 64 + 64, :]))
            fence_async()
            p = mma_async(sX, sX.T)
            mma_wait(p)
            store(Y[t * 64 : t * 64 + 64, :], p)
"""


def test_each_folder_is_an_architecture() -> None:
    folders = {p.parent.name for p in FOLDER.glob("*/__init__.py")}
    assert {t.folder for t in TARGETS.values()} == folders
    assert all(target_of(arch).limits is limits for arch, limits in TARGETS.items())


@pytest.mark.parametrize("arch", ["sm_75", "sm_89"])
def test_a_card_that_extends_another_is_six_files(arch: str) -> None:
    """And nobody else names it (tests/test_architecture.py), or what its files define."""
    target = target_of(arch)
    files = [p for p in (FOLDER / target.limits.folder).rglob("*") if p.suffix in {".cuh", ".py", ".toml"}]
    assert len(files) <= 6, sorted(p.name for p in files)
    defined = {f"{step} {way}" for step, ways in target.ways.steps.items() for way in ways} | set(target.printers.codes)
    defined |= {f"cuir::{name}" for part in target.parts for name in (part, *target.parts[part].names)}
    common = [p for p in FOLDER.parent.rglob("*.py") if FOLDER not in p.parents]
    named = {word for p in common for word in defined if re.search(rf"{re.escape(word)}\b", p.read_text(encoding="utf-8"))}
    assert defined and not named


def test_each_architecture_prints_what_it_has() -> None:
    assert gaps() == (set(), set())


def test_every_feature_is_needed_and_there() -> None:
    needed = {f for op in TABLE.values() for f in op.needs}
    assert needed <= FEATURES.keys() == {f for t in TARGETS.values() for f in t.features}


def test_an_unknown_architecture_is_told_which_there_are() -> None:
    with pytest.raises(CuirError) as caught:
        check(parse(PRODUCT.replace("ARCH", "sm_70")))
    (result,) = caught.value.diagnostics
    assert result.code == "S207" and all(arch in result.message for arch in TARGETS)


@pytest.mark.parametrize("arch", TARGETS)
def test_what_an_architecture_lacks_is_refused(arch: str) -> None:
    program = parse(PRODUCT.replace("ARCH", arch))
    if arch in list_architectures("wgmma"):
        assert "wgmma_64x64" in lower(check(program)).source
        return
    with pytest.raises(CuirError) as caught:
        check(program)
    assert {d.code for d in caught.value.diagnostics} == {"S217"}


def test_which_devices_run_which_code() -> None:
    devices = [(7, 5), (8, 0), (8, 9), (9, 0), (10, 0)]
    assert {t.name: [d for d in devices if t.runs_on(d)] for t in TARGETS.values()} == {
        "sm_75": devices,
        "sm_80": devices[1:],
        "sm_89": devices[2:],
        "sm_90a": [(9, 0)],
        "sm_100a": [(10, 0)],
    }


@needs_nvcc
@pytest.mark.thorough("a kernel of each architecture compiles elsewhere")
@pytest.mark.parametrize("arch", list_architectures("bulk_copies"))
def test_a_pipeline_compiles_for_each_architecture_with_bulk_copies(arch: str) -> None:
    assert compile_cuda(lower(check(parse(PIPELINE.replace("ARCH", arch))))).cubin


@pytest.mark.thorough("tcgen05 compiles for sm_100a, products of warps for sm_80")
@needs_nvcc
def test_the_skeleton_compiles_products_of_warps_and_asynchronous_copies() -> None:
    program = corpus.programs()["flash_fwd_warps"].read_text(encoding="utf-8").replace('arch="sm_80"', 'arch="sm_100a"')
    cuda = lower(check(parse(program), consts={"T": F16, "D": 64}))
    assert cuda.arch == "sm_100a" and "cuir::cp_async" in cuda.source and "SM80_16x8x16" in cuda.source and "wgmma" not in cuda.source
    assert compile_cuda(cuda).cubin
