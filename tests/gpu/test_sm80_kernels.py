"""The expert kernels for sm_80 and sm_75 on a GPU beside float64: gradients, decoding over caches, packed sequences."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import corpus
from corpus.computes import COMPUTES
from cuir.checking.checker import check
from cuir.runtime.compiled import compile
from cuir.spec.function_specification import FunctionSpecification
from cuir.syntax.parser import parse
from cuir.syntax.types import DTYPES
from cuir.verification.function_judge import judge_function
from cuir.verification.function_problems import make_draws
from cuir.verification.spec_dispatch import prepare_launch
from tests.gpu.isolation import run_isolated

Consts = dict[str, Any]
PROBLEMS = 8  # of those of a verification
SETTINGS: dict[tuple[str, str], list[Consts]] = {
    ("flash_bwd_sm80", "prepare"): [{"D": 64}, {"D": 96}],
    ("flash_bwd_sm80", "finish"): [{"D": 64}, {"D": 40}],
    ("flash_bwd_sm80", "flash_bwd"): [
        {"D": 64},
        {"D": 128},
        {"D": 40, "PQ": 32},
        {"D": 64, "BM": 32, "ROWS": 32},
        {"D": 128, "BM": 32, "BN": 64, "QUERIES": False},
        {"D": 128, "ROWS": 32, "SPLIT": 2, "PG": 64},
        {"D": 256, "BN": 64, "ROWS": 32, "SPLIT": 4, "STAGES": 1},
        {"D": 192, "BM": 32, "BN": 64, "SPLIT": 2},
    ],
    ("flash_bwd_dq_sm80", "flash_bwd_dq"): [{"D": 64}, {"D": 128}, {"D": 96, "STAGES": 3, "BN": 32}, {"D": 256, "BM": 64, "BN": 32}],
    ("decode_cache_sm80", "flash_decode"): [
        {"D": 128, "BM": 4, "GROUP": 4},
        {"D": 64, "BM": 16, "BN": 32, "STAGES": 2},
        {"D": 64, "BM": 4, "GROUP": 8, "ROWS": 32, "WG": 2, "BN": 32, "CHUNK": 4},
    ],
    ("mla_decode_sm80", "mla_decode"): [
        {"D": 576, "DV": 512, "BM": 1, "GROUP": 64},
        {"D": 576, "DV": 512, "BM": 2, "GROUP": 16, "STAGES": 1},
        {"D": 192, "DV": 128, "BM": 4, "GROUP": 4, "STAGES": 3, "CHUNK": 4},
    ],
    ("flash_bwd_sm75", "prepare"): [{"D": 64}, {"D": 96}],
    ("flash_bwd_sm75", "flash_bwd"): [{"D": 64, "BM": 32}, {"D": 128, "BM": 32, "BN": 32, "SPLIT": 2}, {"D": 40, "BM": 32}],
    ("flash_bwd_dq_sm75", "flash_bwd_dq"): [{"D": 64}, {"D": 128, "BN": 32}, {"D": 40}],
    ("decode_cache_sm75", "flash_decode"): [{"D": 128, "BM": 4, "GROUP": 4}, {"D": 64}, {"D": 40, "BM": 2, "GROUP": 8, "WG": 1}],
    ("mla_decode_sm75", "mla_decode"): [{"D": 576, "DV": 512}, {"D": 192, "DV": 128, "BM": 4, "GROUP": 4}],
    ("flash_fwd_varlen_sm75", "flash_fwd_varlen"): [
        {"D": 64},
        {"D": 128},
        {"D": 64, "BM": 128, "ROWS": 32, "CHUNK": 16},
        {"D": 40, "BM": 32, "BN": 32, "CHUNK": 4},
    ],
    ("flash_fwd_varlen_sm80", "flash_fwd_varlen"): [
        {"D": 64},
        {"D": 128},
        {"D": 64, "CHUNK": 16},
        {"D": 40, "BM": 64, "ROWS": 16, "CHUNK": 4},
    ],
}
CASES = [
    (*kernel, i, dtype)
    for kernel, settings in SETTINGS.items()
    for i in range(len(settings))
    for dtype in (("f16",) if kernel[0].endswith("sm75") else ("f16", "bf16"))
]


def judge(name: str, kernel: str, setting: int, dtype: str) -> int:
    """Run problems of verification on the GPU and judge their numbers; return how many."""
    function = COMPUTES[name][kernel].specification
    spec = corpus.specification(function)()
    assert isinstance(spec, FunctionSpecification)
    program = parse(corpus.kernels()[name].read_text(encoding="utf-8"), f"{name}.cuir")
    checked = check(program, kernel, {"T": DTYPES[dtype], **SETTINGS[name, kernel][setting]})
    compiled, draws = compile(checked), make_draws(checked, spec, "quick")[:PROBLEMS]
    for draw in draws:
        launch = prepare_launch(program, checked, spec, draw, poison=True)
        arguments = {n: x.cuda() if isinstance(x, torch.Tensor) else x for n, x in launch.arguments().items()}
        compiled(**arguments)
        for n, x in launch.outputs.items():
            x.copy_(arguments[n])
        assert judge_function(checked, spec, launch, draw)
    return len(draws)


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "kernel", "setting", "dtype"), CASES)
def test_numbers(name: str, kernel: str, setting: int, dtype: str) -> None:
    assert run_isolated(judge, name, kernel, setting, dtype, seconds=300) > 0
