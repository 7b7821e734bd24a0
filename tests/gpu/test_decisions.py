"""Functions that jump give PyTorch's whole numbers: in the interpreter, and on a GPU. `python -m pytest tests/gpu/test_decisions.py -q -m gpu`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.interp import run
from cuir.syntax.parser import parse
from cuir.verification.values.step_inputs import _draw_at_steps
from tests.gpu.isolation import run_isolated

ROWS, COLUMNS, PAIRS = 4096, 64, 512
WHOLE = 61.0  # whose rounded inverse times it is not 1
SCALARS = {"s": WHOLE, "third": float(torch.tensor(1 / 3))}
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """Statements that bind `y`, and what it is in float32."""

    text: str
    expected: Callable[[Values], torch.Tensor]


def _loop(x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = x * 0.7 - 7.0
    return x


def _largest(x: torch.Tensor) -> torch.Tensor:
    return x.amax(-1, keepdim=True)


CASES = (
    Case("y = floor(x / z)", lambda v: torch.floor(v["X"] / v["Z"])),
    Case("y = cast(cast(x / z, i32), f32)", lambda v: torch.trunc(v["X"] / v["Z"])),
    Case("y = floor(x * 0.7 - 7.0)", lambda v: torch.floor(v["X"] * 0.7 - 7)),
    Case("p = x * 0.6\ny = floor(p - 6.0)", lambda v: torch.floor(v["X"] * 0.6 - 6)),
    Case("y = floor(line(x))", lambda v: torch.floor(v["X"] * 0.3 - 3)),
    Case("y = round(x / s)", lambda v: torch.round(v["X"] / v["s"])),
    Case("y = round(x * (1.0 / s))", lambda v: torch.round(v["X"] * (1 / v["s"]))),
    Case("y = round(x / s) * s", lambda v: torch.round(v["X"] / v["s"]) * v["s"]),
    Case("y = -floor(-x / 3.0)", lambda v: torch.ceil(v["X"] / torch.tensor(3.0))),
    Case("y = floor(x * third + z * third)", lambda v: torch.floor(v["X"] * v["third"] + v["Z"] * v["third"])),
    Case("y = floor(x * z - z * third)", lambda v: torch.floor(v["X"] * v["Z"] - v["Z"] * v["third"])),
    Case("y = fmod(x * 0.2 - 2.0, 0.7)", lambda v: torch.fmod(v["X"] * 0.2 - 2, torch.tensor(0.7))),
    Case("y = fmod(x / z, third)", lambda v: torch.fmod(v["X"] / v["Z"], v["third"])),
    Case(
        "y = floor(where(x > z, x * 0.1 - 1.0, x / z))",
        lambda v: torch.floor(torch.where(v["X"] > v["Z"], v["X"] * 0.1 - 1, v["X"] / v["Z"])),
    ),
    Case("t_ = x\nfor i in range(3):\n    t_ = t_ * 0.7 - 7.0\ny = floor(t_)", lambda v: torch.floor(_loop(v["X"]))),
    Case("y = x + floor(row_max(x * 1.1 - 11.0))", lambda v: v["X"] + torch.floor(_largest(v["X"] * 1.1 - 11))),
    Case(
        "y = round(x / (max(row_max(abs(x)), 0.001) / 127.0))",
        lambda v: torch.round(v["X"] / (_largest(v["X"].abs()).clamp(min=0.001) / torch.tensor(127.0))),
    ),
    Case("store(buf, x * 0.9 - 9.0)\nsync()\ny = floor(load(buf))\nsync()", lambda v: torch.floor(v["X"] * 0.9 - 9)),
    Case("y = x * third + 12582912.0 - 12582912.0", lambda v: v["X"] * v["third"] + 12582912.0 - 12582912.0),
    Case("y = min(max(round(x * 0.3 / 0.7), -127.0), 127.0)", lambda v: torch.round(v["X"] * 0.3 / torch.tensor(0.7)).clamp(-127, 127)),
    Case("y = T[cast(min(max(floor(x / z), 0.0), 511.0), i32)]", lambda v: v["T"][torch.floor(v["X"] / v["Z"]).clamp(0, 511).long()]),
    Case(
        "y = cast(cast(floor(x * 1.3 - 13.0), i32) % 5, f32)", lambda v: torch.floor(v["X"] * 1.3 - 13).to(torch.int32).remainder(5).float()
    ),
)

HEAD = """\
@func
def line(x):
    return x * 0.3 - 3.0

@kernel(arch="sm_90a")
def decisions(X: Global[f32, M, 64], Z: Global[f32, M, 64], T: Global[f32, 512], Y: Global[f32, C, M, 64], s: f32, third: f32):
    buf = shared(f32, [64, 64])
    work = tiles(cdiv(M, 64))
    with role("all", warpgroups=1):
        for t in work:
            x, z = X[t * 64 + rows(64), cols(64)], Z[t * 64 + rows(64), cols(64)]
"""


def kernel() -> Checked:
    lines = list[str]()
    for i, case in enumerate(CASES):
        lines += [*case.text.replace("y =", f"y{i} =").split("\n"), f"store(Y[{i}, t * 64 + rows(64), cols(64)], y{i})"]
    return check(parse(HEAD + "".join(f"            {line}\n" for line in lines), "decisions.cuir"))


def inputs(kind: str, rows: int = ROWS) -> dict[str, torch.Tensor]:
    """kind: "pairs" of whole numbers, numbers at "steps", or "random" ones."""
    generator = torch.Generator().manual_seed(0)
    if kind == "pairs":
        at = torch.arange(ROWS * COLUMNS)
        pairs = [(x + 1).float().view(ROWS, COLUMNS) for x in (at % PAIRS, at // PAIRS)]
        skip = ROWS // rows
        x, z = (p[::skip].contiguous() for p in pairs)
    elif kind == "steps":
        numbers = [0.7, 7.0, WHOLE, 1 / 3, 3.0, 0.3, 127.0]
        x, z = (_draw_at_steps((rows, COLUMNS), torch.float32, numbers, generator, signed) for signed in (True, False))
    else:
        x, z = torch.randn(rows, COLUMNS, generator=generator) * 30, torch.rand(rows, COLUMNS, generator=generator) + 0.1
    return {"X": x, "Z": z, "T": torch.arange(512) * 3.0}


def wrong(inputs: Mapping[str, torch.Tensor], actual: torch.Tensor) -> list[str]:
    """Each case that gave other bits than PyTorch, with the first such element. Zeros are equal."""
    values = {**inputs, **{n: torch.tensor(x) for n, x in SCALARS.items()}}
    messages = []
    for case, result in zip(CASES, actual, strict=True):
        expected = case.expected(values)
        bad = (result != expected) & ~(result.isnan() & expected.isnan())
        if bad.any():
            at = tuple(torch.nonzero(bad)[0].tolist())
            operands = {n: inputs[n][at].item() for n in ("X", "Z")}
            messages.append(
                f"{case.text!r}: {int(bad.sum())} of {bad.numel()}; {result[at].item()!r} instead of {expected[at].item()!r}, of {operands}"
            )
    return messages


def by_interpreter(kind: str, rows: int) -> list[str]:
    arguments = inputs(kind, rows)
    result = torch.full((len(CASES), rows, COLUMNS), torch.nan)
    run(kernel(), {**arguments, **SCALARS, "Y": result})
    return wrong(arguments, result)


def on_gpu(kind: str) -> list[str]:
    """Collect the differences between the compiled kernel and PyTorch on a CPU, of 262,144 elements."""
    from cuir.runtime.compiled import compile

    arguments = inputs(kind)
    result = torch.full((len(CASES), ROWS, COLUMNS), torch.nan, device="cuda")
    compile(kernel())(**{n: x.cuda() for n, x in arguments.items()}, **SCALARS, Y=result)
    return wrong(arguments, result.cpu())


def mods_on_gpu() -> list[str]:
    """Scores and masks with functions that jump, whose products are whole eighths: beside PyTorch's float32, a score on the other side of a step is off by far."""
    from importlib.resources import files

    from cuir.attn.splicing.splice import transfer
    from cuir.runtime.compiled import compile
    from cuir.spec.loading import as_specification
    from cuir.syntax.types import F16

    def floored(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return torch.floor(score * 0.7 - 7)

    def divided(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return score + ((q - k) / 3.0).floor() * 0.5

    def rounded(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return torch.round(score * 0.5 / 0.7) * 0.7

    def remainder(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return score % 0.7 + score // 3.0

    def truncated(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return score + ((q - k) * 0.7 - 7).to(torch.int32)

    text = files("corpus").joinpath("kernels/flash_fwd_sm90.cuir").read_text(encoding="utf-8")
    generator = torch.Generator().manual_seed(1)
    B, H, M, D = 1, 2, 384, 64
    Q, K = (torch.randint(-3, 4, (B, H, M, D), generator=generator).half() for _ in range(2))
    V = torch.randn(B, H, M, D, generator=generator).half()
    q, k = torch.arange(M)[:, None], torch.arange(M)
    messages = []
    for mod in (floored, divided, rounded, remainder, truncated):
        mod_as_given = mod
        name, mod_as_given.__name__ = mod.__name__, "score_mod"
        checked = check(
            transfer(parse(text, "flash_fwd_sm90.cuir"), as_specification(mod_as_given, name)).program, None, {"T": F16, "D": D}
        )
        out, lse = torch.full((B, H, M, D), torch.nan, dtype=torch.float16), torch.full((B, H, M), torch.nan)
        tensors = {n: x.cuda() for n, x in {"Q": Q, "K": K, "V": V, "O": out, "LSE": lse}.items()}
        compile(checked)(**tensors, scale=0.125)
        scores = mod(Q.float() @ K.float().mT * 0.125, torch.zeros(()), torch.zeros(()), q, k)
        expected = scores.double().softmax(-1) @ V.double()
        off = (tensors["O"].cpu().double() - expected).abs().max().item()
        if not off < 4e-3:
            messages.append(f"{name}: O is off by {off:.1e}")
    return messages


KINDS = ("pairs", "steps", "random")


@pytest.mark.parametrize("kind", KINDS)
def test_the_interpreter_gives_the_bits_of_float32(kind: str) -> None:
    assert by_interpreter(kind, 128) == []


def test_wrong_bits_are_found() -> None:
    import torch

    arguments = inputs("pairs", 64)
    approximate = arguments["X"] * (1 / arguments["Z"])
    result = torch.stack([case.expected({**arguments, **SCALARS}) for case in CASES])
    result[0] = approximate.floor()
    (message,) = wrong(arguments, result)
    assert "floor(x / z)" in message


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_the_gpu_gives_the_bits_of_float32(kind: str) -> None:
    assert run_isolated(on_gpu, kind, seconds=300.0) == []


@pytest.mark.gpu
def test_mods_that_jump() -> None:
    assert run_isolated(mods_on_gpu, seconds=300.0) == []
