"""Candidates of one kernel on a GPU: checked against float64 and timed, here or in a worker process."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch

from ...arguments.binding import TORCH
from ...checking.checked import Const
from ...spec.function_specification import Value
from ...spec.specification import lengths_of
from ...syntax.types import DTYPES
from ...text.diagnostics import CuirError
from ..timing.problem import Expectation, Shape, compute_expectation, make_tensors
from ..timing.timing_protocol import median_ms
from ..timing.worker import Tell, Worker, WorkerLost
from .space import plain

if TYPE_CHECKING:
    from ...attn.splicing.splice import TransferResult

REPEATS = 3
BEGIN_SECONDS = 300.0  # a cold start, a compilation, and results in float64; many processes may share cores and GPU
CHECK_SECONDS, TIME_SECONDS = 60.0, 60.0  # limits for launches, which take milliseconds each
RAGGED = (2, 2, 1000, 1100)  # batch, heads for each key head, queries, keys: no multiple of any tile


class PreparedProblem:
    """A problem with poisoned outputs, and its expected results."""

    def __init__(self, transferred: TransferResult, shape: Shape, dtype: torch.dtype, device: str = "cuda"):
        self.problem = make_tensors(shape, dtype, device)
        q, k = self.problem["Q"], self.problem["K"]
        self.scale = shape.D**-0.5
        self.outputs = {
            "O": torch.empty(*q.shape[:-1], shape.DV, dtype=dtype, device=device),
            "LSE": torch.empty(q.shape[:-1], device=device),
        }
        self.transferred, self.lengths, self.device = transferred, lengths_of(q, k), device
        self.spec = transferred.spec
        self._expected: Expectation | None = None

    @property
    def expected(self) -> Expectation:
        """The expected results, computed once."""
        if self._expected is None:
            self._expected = compute_expectation(self.spec, self.problem["Q"], self.problem["K"], self.problem["V"], self.scale)
        return self._expected

    def arguments(self, consts: Mapping[str, Const] | None = None) -> dict[str, Value]:
        """Return the arguments for a kernel that is compiled with these consts."""
        added = self.transferred.arguments(self.lengths, self.device, consts)
        return {**self.problem, **self.outputs, "scale": self.scale, **added}

    def judge(self, launch: Callable[..., object], consts: Mapping[str, Const] | None = None) -> str:
        """Return why a kernel is wrong; empty if it is right, with the same bits in each run."""
        arguments = self.arguments(consts)
        first: list[torch.Tensor] = []
        for _ in range(REPEATS):
            for output in self.outputs.values():
                output.fill_(math.nan)
            launch(**arguments)
            if self.problem["Q"].is_cuda:
                torch.cuda.synchronize()
            outputs = [output.clone() for output in self.outputs.values()]
            if (
                first
                and not all(torch.equal(a, b) for a, b in zip(first, outputs))
                and not any(bool(torch.isnan(x).any()) for x in (*first, *outputs))
            ):
                return "two runs give different bits"
            first = first or outputs
        return self.expected.judge(self.outputs["O"], self.outputs["LSE"])


def make_ragged_shape(shape: Shape) -> Shape:
    """Return a small problem with the same head dims, grouped heads, and lengths that divide no tile."""
    batch, group, queries, keys = RAGGED
    return Shape(batch, 2 * group, 2, queries, keys, shape.D, shape.DV)


class LocalDevice:
    """Candidates of one program at one shape, in this process, which hangs with a kernel that hangs.

    Its methods take the text of another program with the same parameters, to run instead of the transferred one.
    """

    def __init__(self, transferred: TransferResult, kernel: str | None, shape: Shape, dtype: str):
        self.transferred, self.kernel, self.shape = transferred, kernel, shape
        self.kernels: dict[str, Callable[..., object]] = {}
        torch_dtype = TORCH[DTYPES[dtype]]
        self.cases = [PreparedProblem(transferred, s, torch_dtype) for s in (make_ragged_shape(shape), shape)]

    def launch(self, consts: Mapping[str, Const], text: str = "") -> Callable[..., object]:
        """Return the compiled kernel of a setting."""
        from ...runtime.compiled import compile
        from ...syntax.parser import parse

        name = text + str(plain(consts))
        if name not in self.kernels:
            self.kernels[name] = compile(parse(text) if text else self.transferred.program, kernel=self.kernel, consts=consts)
        return self.kernels[name]

    def check(self, consts: Mapping[str, Const], text: str = "", tell: Tell = lambda doing, seconds: None) -> tuple[str, str]:
        """Compare launches with float64.

        `tell` is called when the launches begin, with their limit in seconds.

        Returns: "right" or "wrong", and why.
        """
        launch = self.launch(consts, text)
        for case in self.cases:
            case.expected  # noqa: B018 - computed once, outside of the launches' limit
        tell("check", CHECK_SECONDS)
        for case in self.cases:
            why = case.judge(launch, consts)
            if why:
                q = case.problem["Q"]
                return "wrong", f"{why}; {tuple(q.shape)} queries, {case.problem['K'].shape[2]} keys"
        return "right", ""

    def time(self, consts: Mapping[str, Const], text: str = "", tell: Tell = lambda doing, seconds: None) -> float:
        """Return the median milliseconds of a launch."""
        launch, arguments = self.launch(consts, text), self.cases[-1].arguments(consts)
        tell("time", TIME_SECONDS)
        return median_ms(lambda: launch(**arguments))


class RemoteDevice:
    """Candidates in a worker (`Worker`), which is killed when one hangs.

    `job` has the request's fields that identify the tuned problem.
    """

    def __init__(self, worker: Worker, job: Mapping[str, object]):
        self.worker, self.job = worker, dict(job)

    def check(self, consts: Mapping[str, Const], text: str = "") -> tuple[str, str]:
        """Compare launches with float64.

        Returns: "right", "wrong", "hangs", "fault" or "refused", and why.
        """
        try:
            answer = self.worker.ask({**self.job, "do": "check", "consts": plain(consts), "text": text}, BEGIN_SECONDS)
        except WorkerLost as lost:
            return lost.status, str(lost)
        except CuirError as error:
            if error.diagnostics[0].code.startswith("U"):
                raise
            return "refused", f"{error.diagnostics[0].code}: {error.diagnostics[0].message}"
        return answer["status"], answer["why"]

    def time(self, consts: Mapping[str, Const], text: str = "") -> float:
        """Return the median milliseconds of a launch; NaN if the worker is lost."""
        try:
            return float(self.worker.ask({**self.job, "do": "time", "consts": plain(consts), "text": text}, BEGIN_SECONDS)["milliseconds"])
        except WorkerLost:
            return math.nan
