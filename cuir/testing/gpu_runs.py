"""One problem of a kernel on the GPU, judged as a run in the interpreter is."""

from __future__ import annotations

from ..attn.verification.numeric import judge
from ..attn.verification.problems import Case
from ..checking.checked import Checked
from ..runtime.compiled import compile
from ..spec.function_specification import FunctionSpecification
from ..spec.specification import Specification
from ..syntax.nodes import Program
from ..verification.function_judge import check_function
from ..verification.inputs import FunctionLaunch
from ..verification.on_gpu import make_fault, move_to_device
from ..verification.spec_dispatch import AnyCase, AnyLaunch, prepare_launch
from ..verification.values.cases import Draw


def check_on_gpu(
    program: Program, checked: Checked, spec: FunctionSpecification | Specification, case: AnyCase, device: str = "cuda"
) -> None:
    """Compile the kernel, launch it on a problem and judge its outputs.

    Raises CuirError as `check_case`, U5xx without a GPU or nvcc, and V403 for a fault that the driver reports.
    """
    compiled, problem = compile(checked), prepare_launch(program, checked, spec, case, poison=True)

    def execute(launch: AnyLaunch) -> None:
        arguments = move_to_device(launch.arguments(), device)
        try:
            compiled.launch(arguments)
            results = {name: arguments[name].cpu() for name in launch.outputs}
        except RuntimeError as error:
            raise make_fault(checked, error, str(case)) from error
        for name, x in results.items():
            launch.outputs[name].copy_(x)

    if isinstance(problem, FunctionLaunch):
        assert isinstance(spec, FunctionSpecification) and isinstance(case, Draw)
        check_function(checked, spec, problem, case, execute)
        return
    execute(problem)
    assert isinstance(spec, Specification) and isinstance(case, Case)
    judge(problem, spec, case, checked.origin.span)
