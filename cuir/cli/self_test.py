"""Self-test of `cuir doctor`: each step checks a part of the system against PyTorch, the GPU last.

The steps run in a process of their own, `python -m cuir.cli.self_test`, which is killed when their time is over.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..performance.timing.worker import Worker, WorkerLost, serve
from ..text.diagnostics import CuirError

SECONDS = 120.0  # of all steps together, wall time
COMMAND = (sys.executable, "-m", "cuir.cli.self_test")
_SCALE = """
@kernel(arch="sm_75")
def scale(X: Global[f32, M, 64], Y: Global[f32, M, 64]):
    work = tiles(cdiv(M, 64))
    with role("all", warpgroups=1):
        for t in work:
            i = t * 64 + rows(64)
            store(Y[i, cols(64)], X[i, cols(64)] * 2.0)
"""


@dataclass(frozen=True)
class Step:
    """Result of one step.

    Attributes:
        verdict: "passed", "failed", "left out", "cut off" at the end of the time, or "not run" after it.
        reason: of every verdict but "passed", where it is "".
    """

    name: str
    seconds: float
    verdict: str
    reason: str = ""


def run_self_test(
    steps: Iterable[str], command: Sequence[str] = COMMAND, seconds: float = SECONDS, begin_step: Callable[[str], None] = lambda name: None
) -> Iterator[Step]:
    """Run the steps in turn; a step that fails or crashes does not stop the next ones.

    When the time is over, the running step is cut off and the others are not run.

    Args:
        steps: their names.
        command: starts the process that runs them (see `serve_steps`).
        seconds: the wall time of all steps together, and of starting their process.
        begin_step: receives the name of each step that begins.
    """
    deadline = time.monotonic() + seconds
    with Worker(command) as worker:
        for name in steps:
            begin = time.monotonic()
            if begin >= deadline:
                yield Step(name, 0.0, "not run", f"the {seconds:.0f} s of the self-test were over")
                continue
            begin_step(name)
            try:
                answer = worker.ask({"do": "step", "name": name}, deadline - begin)
                verdict, reason = answer["verdict"], answer["reason"]
            except WorkerLost as lost:
                late = lost.status == "hangs"
                verdict, reason = (
                    ("cut off", f"it had not ended after the {seconds:.0f} s of the self-test") if late else ("failed", str(lost))
                )
            yield Step(name, time.monotonic() - begin, verdict, reason)


def serve_steps(steps: Mapping[str, Callable[[], str]]) -> int:
    """Run the steps that are asked for by name; their functions return why a step is left out."""

    def run_step(request: Mapping[str, Any]) -> dict[str, str]:
        try:
            reason = steps[request["name"]]()
        except (CuirError, AssertionError, RuntimeError) as error:
            return {"verdict": "failed", "reason": str(error)}
        except Exception as error:  # of a package that is not whole, say: an issue needs the other steps too
            return {"verdict": "failed", "reason": f"{type(error).__name__}: {error}"}
        return {"verdict": "left out" if reason else "passed", "reason": reason}

    return serve({"step": run_step})


def verify_kernel() -> str:
    """Verify a kernel against PyTorch, in the interpreter."""
    from ..syntax.parser import parse
    from ..testing import assert_matches

    assert_matches(parse(_SCALE), lambda x: x * 2)
    return ""


def find_fault() -> str:
    """Verify a kernel that leaves out the last rows, which must be found."""
    from ..syntax.parser import parse
    from ..testing import MismatchError, assert_matches

    try:
        assert_matches(parse(_SCALE.replace("cdiv(M, 64)", "M // 64")), lambda x: x * 2, M=65)
    except MismatchError:
        return ""
    raise AssertionError("a kernel that leaves out the last rows passes")


def interpret_attention() -> str:
    """Compare attention and its gradients with PyTorch's, in the interpreter."""
    from ..testing import assert_attention_matches

    assert_attention_matches(None, lambda b, h, q, k: q >= k, M=100, N=100)
    return ""


def compile_expert() -> str:
    """Compile the forward kernel of this machine's GPU, without one that of Hopper."""
    from ..attn.kernels.card_kernels import choose_target, find_kernel, get_current_device
    from ..attn.kernels.experts import origin_of
    from ..checking.checker import check
    from ..lowering import lower
    from ..runtime.launchable import NOTHING_TO_COMPILE_WITH
    from ..runtime.nvcc import compile_cuda
    from ..syntax.types import F16

    if reason := _find_obstacle(lambda: choose_target(get_current_device())):
        return reason
    name = find_kernel(choose_target(get_current_device()).arch, "forward", F16)
    try:
        compile_cuda(lower(check(origin_of(name), None, {"T": F16, "D": 128})))
    except CuirError as error:
        if error.diagnostics[0].code not in NOTHING_TO_COMPILE_WITH:
            raise
        return error.diagnostics[0].message
    return ""


def _find_obstacle(find: Callable[[], object]) -> str:
    """Return the message of what a search misses; "" if it finds all."""
    try:
        find()
    except CuirError as error:
        return error.diagnostics[0].message
    return ""


def launch_kernel() -> str:
    """Compare a kernel on the GPU with PyTorch."""
    from ..attn.capture.call_inputs import need_gpu
    from ..attn.kernels.card_kernels import get_current_device
    from ..checking.checker import check
    from ..syntax.parser import parse
    from ..testing.matching import check_on_gpu
    from ..verification.spec_dispatch import prepare_specification
    from ..verification.values.cases import Draw

    program = parse(_SCALE)
    checked = check(program)
    if reason := _find_obstacle(lambda: need_gpu(get_current_device(), checked.arch)):
        return reason
    spec = prepare_specification(lambda x: x * 2, checked.origin, program, checked.consts)
    check_on_gpu(program, checked, spec, Draw("one problem", {"M": 1000}))
    return ""


def launch_attention() -> str:
    """Compare attention on the GPU, and its gradients, with PyTorch's."""
    from ..attn.capture.call_inputs import need_gpu
    from ..attn.kernels.card_kernels import KERNELS, choose_target, get_current_device
    from ..testing import assert_attention_matches

    device = get_current_device()
    if reason := _find_obstacle(lambda: need_gpu(device, choose_target(device).arch)):
        return reason
    trains = "keys" in KERNELS[choose_target(device).arch]
    assert_attention_matches(None, lambda b, h, q, k: q >= k, M=500, N=500, D=128, gpu=True, gradients=trains)
    return ""


STEPS: Mapping[str, Callable[[], str]] = {
    "verify a kernel in the interpreter": verify_kernel,
    "find a planted fault": find_fault,
    "attention in the interpreter, with gradients": interpret_attention,
    "compile the expert kernel": compile_expert,
    "launch a kernel on the GPU": launch_kernel,
    "attention on the GPU, with gradients": launch_attention,
}


if __name__ == "__main__":
    sys.exit(serve_steps(STEPS))
