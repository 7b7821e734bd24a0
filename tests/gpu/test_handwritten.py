"""Right kernels of people who read only the pages: what the lowering makes of their styles computes what their references say."""

from __future__ import annotations

import pytest
import torch

from benchmarks.handwritten.judge import programs, sources
from cuir.checking.checked import Checked, Const
from cuir.checking.checker import check
from cuir.interp import run
from cuir.runtime.compiled import compile
from cuir.spec.function_specification import FunctionSpecification
from cuir.spec.loading import load_any
from cuir.syntax.parser import parse
from cuir.syntax.types import DTYPES
from cuir.text.diagnostics import CuirError
from cuir.verification.function_judge import judge_function
from cuir.verification.function_problems import make_draws
from cuir.verification.inputs import make_function_launch
from cuir.verification.values.cases import Draw
from tests.gpu.isolation import run_isolated

REFUSED = -1
ENTRIES = {e["file"]: e for e in programs(sources()) if e["right"]}


def count_problems(file: str) -> int:
    """Count the problems that were run; `REFUSED` if the interpreter finds the same error. Raises CuirError for a wrong result."""
    e = ENTRIES[file]
    program = parse((e["folder"] / file).read_text(encoding="utf-8"), file)
    consts: dict[str, Const] = {n: DTYPES.get(str(v), v) for n, v in e["consts"].items()}
    checked = check(program, e["kernel"], consts)
    spec = load_any(str(e["folder"] / e["against"]))
    assert isinstance(spec, FunctionSpecification)
    kernel, cases = compile(checked), make_draws(checked, spec, "quick")
    for case in cases:
        inputs = make_function_launch(checked, spec, case)
        remote = {n: _place(x) if isinstance(x, torch.Tensor) else x for n, x in inputs.arguments().items()}
        kernel(**remote)
        torch.cuda.synchronize()
        for name, x in inputs.outputs.items():
            x.copy_(remote[name])
        try:
            judge_function(checked, spec, inputs, case)
        except CuirError as error:
            if _refuses_as_well(checked, spec, case, error):
                return REFUSED
            raise
    return len(cases)


def _refuses_as_well(checked: Checked, spec: FunctionSpecification, case: Draw, error: CuirError) -> bool:
    """Return whether the interpreter's result of the case has the same error."""
    inputs = make_function_launch(checked, spec, case)
    run(checked, inputs.arguments(), undefined=inputs.undefined)
    try:
        judge_function(checked, spec, inputs, case)
    except CuirError as interpreted_error:
        return interpreted_error.diagnostics[0].code == error.diagnostics[0].code
    return False


def _place(x: torch.Tensor) -> torch.Tensor:
    """On the GPU, with the same strides: rows that are copied begin at multiples of 16 bytes."""
    if 0 in x.stride():
        return x.cuda()
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda").copy_(x)


@pytest.mark.gpu
@pytest.mark.parametrize("file", sorted(ENTRIES))
def test_right_kernels_are_right_on_a_gpu(file: str) -> None:
    count = run_isolated(count_problems, file, seconds=300)
    if count == REFUSED:
        pytest.skip("verification refuses this program, too")
    assert count > 5
