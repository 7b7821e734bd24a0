"""An operation as a function of torch, as a method of a tensor, and with arguments by name or in order: each spelling is taken, and gives what PyTorch gives."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from cuir import CuirError
from cuir.attn.tracing.mod_evaluator import evaluate
from cuir.attn.tracing.operation_table import FUNCTIONS, HANDLERS
from cuir.attn.tracing.trace import trace
from cuir.spec.specification import Specification

F = torch.nn.functional
N = 8
generator = torch.Generator().manual_seed(0)
rows = torch.randn(N, 3, generator=generator)
matrices = torch.randn(N, 2, 3, generator=generator)
whole = torch.randint(1, 9, (N, 3), generator=generator)
flags = torch.rand(N, 3, generator=generator) > 0.5
SCOPE = {"torch": torch, "F": F, "math": math, "rows": rows, "matrices": matrices, "whole": whole, "flags": flags}


def evaluate_both(text: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Evaluate an expression by PyTorch and by its trace; of several results the first one's last element.

    Its names: rows r and s, a matrix m, integers i and j, bools c.
    """
    body = f"""
def mod(score, b, h, q, k):
    r, s, m, i, j, c = rows[q], rows[k], matrices[q], whole[q], whole[k], flags[q]
    found = {text}
    found = found[0] if isinstance(found, tuple) else found
    while getattr(found, "ndim", 0):
        found = found[-1]
    return score * 0 + found
"""
    names: dict[str, Any] = dict(SCOPE)
    exec(body, names)  # spellings are text
    mod = names["mod"]
    want = mod(torch.zeros(()), 0, 0, torch.tensor(3), torch.tensor(5))
    traced = trace(Specification("spelling", None, mod))
    values = {p.name: p.on(p.value, "cpu") for p in traced.parameters if p.value is not None}
    places = {n: torch.tensor(i, dtype=torch.int32) for n, i in (("b", 0), ("h", 0), ("q", 3), ("k", 5))}
    return want, torch.as_tensor(evaluate(traced.score, {"S": torch.zeros(()), "scale": 1.0, **places, **values}))


def same(text: str) -> None:
    want, result = evaluate_both(text)
    torch.testing.assert_close(result.double(), want.double(), rtol=2e-5, atol=1e-6)


# arguments of those that take more than a row, behind it; None: another test has it, or PyTorch spells it in one way alone
MORE: dict[str, str | None] = {
    **dict.fromkeys(("add", "sub", "subtract", "mul", "multiply", "div", "divide", "true_divide", "floor_divide", "remainder", "fmod", "maximum", "minimum", "fmax",
                     "fmin", "eq", "ne", "not_equal", "lt", "less", "le", "less_equal", "gt", "greater", "ge", "greater_equal", "hypot", "atan2", "arctan2", "copysign", "logaddexp",
                     "xlogy", "heaviside", "ldexp", "dot", "vdot", "inner", "equal", "logical_and", "logical_or", "logical_xor", "dist"), "s"),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor"), "j"),
    **dict.fromkeys(("bitwise_left_shift", "bitwise_right_shift"), "2"),
    "pow": "2", "clamp": "-1, 1", "clip": "-1, 1", "clamp_min": "0.1", "clamp_max": "0.1", "lerp": "s, 0.5", "addcmul": "s, s", "addcdiv": "s, s", "masked_fill": "c, 0.5",
    "where": None, "type_as": None, "to": None, "type": None, "matmul": "s", "mm": None, "mv": None, "t": "", "unsqueeze": "0", "permute": "(0,)", "transpose": "0, 0",
    "swapaxes": "0, 0", "swapdims": "0, 0", "broadcast_to": "(2, 3)", "reshape": "(3, 1)", "unflatten": "0, (3, 1)", "select": "0, 1", "narrow": "0, 0, 2", "flip": "(0,)",
    "gather": None, "take_along_dim": None, "index_select": None, "take": None, "isin": None, "stack": None, "rsub": "s", "threshold": None,
    "isclose": "s", "prelu": None, "outer": "s", "ger": "s", "softmax": "0", "log_softmax": "-1", "logsumexp": "0", "roll": "1", "tile": "(2,)", "repeat_interleave": "2", "split": None, "chunk": None,
    "var_mean": None, "std_mean": None, "tril": None, "triu": None,
}  # fmt: skip
POSITIVE = (
    "log",
    "log2",
    "log10",
    "log1p",
    "sqrt",
    "rsqrt",
    "logit",
    "acosh",
    "arccosh",
    "atanh",
    "arctanh",
    "asin",
    "acos",
    "arcsin",
    "arccos",
)
TABLE = sorted(n for n in {*HANDLERS, *FUNCTIONS} if callable(getattr(torch, n, None)) and callable(getattr(torch.Tensor, n, None)))


@pytest.mark.parametrize("name", [n for n in TABLE if MORE.get(n, "") is not None])
def test_the_whole_table_as_functions_and_as_methods(name: str) -> None:
    of = "i" if "bitwise" in name else "torch.sigmoid(r)" if name in POSITIVE else "r"
    of = f"({of} + 1)" if name in ("acosh", "arccosh") else of
    more = MORE.get(name, "")
    same(f"torch.{name}({of}{', ' if more else ''}{more})")
    same(f"{of}.{name}({more})")


ORDERS = ("2", "1", "math.inf", "-math.inf", "0", "3", "2.5", "-1")


@pytest.mark.parametrize("order", ORDERS)
def test_norms_of_any_order_in_every_spelling(order: str) -> None:
    for more in (order, f"p={order}", f"p={order}, dim=0", f"{order}, 0", f"{order}, 0, True"):
        same(f"torch.norm(r, {more})")
        same(f"r.norm({more})")
    for more in (order, f"ord={order}", f"{order}, dim=-1", f"{order}, -1, True", f"ord={order}, dim=(0,), keepdim=True"):
        same(f"torch.linalg.vector_norm(r, {more})")
        same(f"torch.linalg.norm(r, {more})")
    same(f"torch.norm(m, p={order}, dim=1)")
    same(f"torch.linalg.vector_norm(m, {order})")
    same(f"torch.dist(r, s, {order}) + r.dist(s, p={order})")


SPELLINGS = [
    "torch.norm(r)", "r.norm()", "torch.norm(m)", "m.norm(dim=-1)", "torch.norm(m, dim=(0, 1))", "torch.norm(m, 'fro')", "torch.norm(input=r, dtype=torch.float32)", "torch.norm(score)",
    "torch.linalg.norm(r)", "torch.linalg.norm(m)", "torch.linalg.norm(input=m, ord='fro')", "torch.linalg.norm(m, dim=1)", "torch.linalg.norm(m, 2, 1, True)", "torch.linalg.norm(m, 1)",
    "torch.linalg.norm(m, -math.inf, (0, 1), True)", "torch.linalg.matrix_norm(m)", "torch.linalg.matrix_norm(m, math.inf)", "torch.linalg.matrix_norm(m, -1, (1, 0))",
    "torch.linalg.vector_norm(x=r)", "torch.linalg.vector_norm(m, dtype=torch.float32)", "torch.Tensor.norm(r)", "torch.linalg.vecdot(r, s)", "torch.linalg.matmul(m, r)",
    "F.pairwise_distance(r, s)", "F.pairwise_distance(r, s, p=1, keepdim=True)", "F.cosine_similarity(r, s, dim=0)", "F.normalize(r, dim=0)", "F.normalize(m, p=1, dim=1)",
    "torch.sum(r, axis=0)", "m.sum(axis=1, keepdims=True)", "torch.mean(m, axis=0)", "m.amax(axis=-1)", "torch.any(c, axis=0).float()", "m.max(axis=1)", "torch.sum(m, dim=())", "m.amax(())",
    "m.mean(dim=[])", "torch.any(c, dim=0).float()", "torch.sum(input=r, dim=None)", "torch.squeeze(m[None], dim=0)", "r.expand(size=(2, 3))", "torch.permute(m, dims=(1, 0))",
    "torch.flip(m, dims=(0,))", "torch.reshape(m, shape=(3, 2))", "torch.special.expit(r)", "torch.special.exp2(r)", "torch.special.log1p(r.abs())", "torch.special.round(r, decimals=1)",
    "torch.equal(r[:2] * 0, r[:2] * torch.tensor([1.0, 0.0]))", "torch.equal(r, 1 * r)", "torch.equal(r, r[:2])", "torch.where(c, r, s)", "r.where(c, s)", "r.type_as(s)", "r.to(torch.float32)", "torch.mv(m, r)", "m.mv(r)", "torch.mm(m, m.T)", "m.mm(m.T)",
]  # fmt: skip


@pytest.mark.parametrize("text", SPELLINGS)
def test_a_spelling_gives_what_pytorch_gives(text: str) -> None:
    same(text)


@pytest.mark.parametrize(
    "text", ["torch.norm(m, 'nuc')", "torch.linalg.norm(m, 2)", "torch.linalg.matrix_norm(m, 2)", "torch.linalg.norm(m, 'nuc')"]
)
def test_norms_of_singular_values_are_refused_in_words(text: str) -> None:
    with pytest.raises(CuirError, match=r"X120.*matrix norm.*(?s:.*)singular values"):
        evaluate_both(text)


def test_a_new_tensor_of_some_size_is_refused() -> None:
    with pytest.raises(CuirError, match="X120"):
        evaluate_both("r.new_zeros(3)")
