"""Self-test of `cuir doctor`: each step checks a part of the system against PyTorch, the GPU last."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..text.diagnostics import CuirError

_SCALE = """
@kernel(arch="sm_80")
def scale(X: Global[f32, M, 64], Y: Global[f32, M, 64]):
    work = tiles(cdiv(M, 64))
    with role("all", warpgroups=1):
        for t in work:
            i = t * 64 + rows(64)
            store(Y[i, cols(64)], X[i, cols(64)] * 2.0)
"""


@dataclass(frozen=True)
class Step:
    """Result of one step. reason: why it failed, or was left out; "" if it passed."""

    name: str
    seconds: float
    verdict: str
    reason: str = ""


# names of the steps, and the functions that run them, which return why a step is left out
STEPS = {
    "verify a kernel in the interpreter": "_verify",
    "find a planted fault": "_find_fault",
    "attention in the interpreter, with gradients": "_interpret_attention",
    "compile the expert kernel": "_compile",
    "launch a kernel on the GPU": "_launch",
    "attention on the GPU, with gradients": "_launch_attention",
}


def run_self_test(begin_step: Callable[[str], None] = lambda name: None) -> Iterator[Step]:
    """Run the steps in turn; a step that fails does not stop the next ones.

    `begin_step` receives the name of each.
    """
    for name, step in STEPS.items():
        begin_step(name)
        begin = time.perf_counter()
        try:
            reason = globals()[step]()
            yield Step(name, time.perf_counter() - begin, "left out" if reason else "passed", reason)
        except (CuirError, AssertionError, RuntimeError) as error:
            yield Step(name, time.perf_counter() - begin, "failed", str(error))
        except Exception as error:  # of a package that is not whole, say: an issue needs the other steps too
            yield Step(name, time.perf_counter() - begin, "failed", f"{type(error).__name__}: {error}")


def _verify() -> str:
    from ..syntax.parser import parse
    from ..testing import assert_matches

    assert_matches(parse(_SCALE), lambda x: x * 2)
    return ""


def _find_fault() -> str:
    from ..syntax.parser import parse
    from ..testing import MismatchError, assert_matches

    try:
        assert_matches(parse(_SCALE.replace("cdiv(M, 64)", "M // 64")), lambda x: x * 2, M=65)
    except MismatchError:
        return ""
    raise AssertionError("a kernel that leaves out the last rows passes")


def _interpret_attention() -> str:
    from ..testing import assert_attention_matches

    assert_attention_matches(None, lambda b, h, q, k: q >= k, M=100, N=100)
    return ""


def _compile() -> str:
    from ..attn.kernels.card_kernels import choose_target, find_kernel, get_current_device
    from ..attn.kernels.experts import origin_of
    from ..checking.checker import check
    from ..lowering import lower
    from ..runtime.launchable import NOTHING_TO_COMPILE_WITH
    from ..runtime.nvcc import compile_cuda
    from ..syntax.types import F16

    try:
        name = find_kernel(choose_target(get_current_device()).arch, "forward", F16)
        compile_cuda(lower(check(origin_of(name), None, {"T": F16, "D": 128})))
    except CuirError as error:
        if error.diagnostics[0].code not in NOTHING_TO_COMPILE_WITH:
            raise
        return error.diagnostics[0].message
    return ""


def _needs(find: Callable[[], object]) -> str:
    try:
        find()
    except CuirError as error:
        return error.diagnostics[0].message
    return ""


def _launch() -> str:
    import torch

    from ..checking.checker import check
    from ..runtime.driver_api import driver
    from ..runtime.nvcc import find_compiler
    from ..syntax.parser import parse
    from ..testing.matching import check_on_gpu
    from ..verification.spec_dispatch import prepare_specification
    from ..verification.values.cases import Draw

    if not torch.cuda.is_available():
        return "no GPU"
    if reason := _needs(find_compiler) or _needs(driver):
        return reason
    program = parse(_SCALE)
    checked = check(program)
    spec = prepare_specification(lambda x: x * 2, checked.origin, program, checked.consts)
    check_on_gpu(program, checked, spec, Draw("one problem", {"M": 1000}))
    return ""


def _launch_attention() -> str:
    from ..attn.capture.call_inputs import need_gpu
    from ..attn.kernels.card_kernels import KERNELS, choose_target, get_current_device
    from ..testing import assert_attention_matches

    device = get_current_device()
    if reason := _needs(lambda: need_gpu(device, choose_target(device).arch)):
        return reason
    trains = "keys" in KERNELS[choose_target(device).arch]
    assert_attention_matches(None, lambda b, h, q, k: q >= k, M=500, N=500, D=128, gpu=True, gradients=trains)
    return ""
