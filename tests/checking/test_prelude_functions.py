"""The prelude: a program without a softmax of its own has one, and its own takes the place of the prelude's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cuir.checking.checker import check
from cuir.checking.prelude_functions import prelude
from cuir.interp import run
from cuir.syntax.nodes import Func, Program
from cuir.syntax.parser import parse
from cuir.syntax.types import F16
from cuir.text.diagnostics import CuirError

TEXT = (Path(__file__).parents[2] / "corpus" / "programs" / "flash_fwd.cuir").read_text()


def without_softmax() -> Program:
    program = parse(TEXT)
    return Program(tuple(i for i in program.items if not (isinstance(i, Func) and i.name.startswith("softmax_"))))


def attention(program: Program) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(1, 2, 100, 64, generator=generator).half() for _ in range(3))
    o, lse = torch.full_like(q, torch.nan), torch.full((1, 2, 100), torch.nan)
    run(program, {"Q": q, "K": k, "V": v, "O": o, "LSE": lse, "scale": 0.125}, consts={"BM": 64, "BN": 64})
    return o, lse


def test_softmax_is_there_and_is_the_same() -> None:
    ours, borrowed = attention(parse(TEXT)), attention(without_softmax())
    assert all(torch.equal(a, b) for a, b in zip(ours, borrowed, strict=True)) and not ours[0].isnan().any()


def test_a_program_replaces_it() -> None:
    text = "@func\ndef softmax_begin(R):\n    return nothing_of_this_name\n\n"
    program = Program((*parse(text).items, *without_softmax().items))
    with pytest.raises(CuirError, match="nothing_of_this_name"):
        check(program, None, {"T": F16, "D": 64})


def test_the_prelude_is_a_program() -> None:
    assert set(prelude().funcs()) == {"softmax_begin", "softmax_step", "softmax_end"} and not prelude().kernels()
