"""How often a mod runs in a first call: once to trace it, and not again. Runs on real tensors are no tracing: PyTorch's block masks and verification need them.

Mods that each call makes anew, as a layer does: only what depends on the call is done, and nothing is taken for what it is not.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn.attention import flex_attention as torch_flex

import corpus
import cuir
from cuir import CuirError, create_block_mask, flex_attention
from cuir.attn.api import materialised_block_masks, prepared_calls
from cuir.attn.tracing.proxy import Proxy
from tests.attn.launches import Launches

M, N, D = 40, 50, 64
Q, K, V = (torch.randn(1, 2, n, D).half() for n in (M, N, N))
DOCUMENTS = torch.arange(64) // 20


@pytest.fixture
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_ATTENTIONS", "_TRACED", "_WARM"):
        monkeypatch.setattr(prepared_calls, name, OrderedDict())
    monkeypatch.setattr(materialised_block_masks, "_STANDING", weakref.WeakKeyDictionary())


def pair(window: int = 30) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A score_mod and a mask_mod; each captured value has a name that the kernel uses itself, so that parameters must be called otherwise."""
    S, BM = torch.tensor([0.5, 2.0]), window

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score * S[h]

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (DOCUMENTS[q_idx] == DOCUMENTS[kv_idx]) & (q_idx - kv_idx <= BM)

    return score_mod, mask_mod


@contextmanager
def count_runs(*mods: Any) -> Iterator[Counter[str]]:
    """Runs of mods by what they are run with, `traced` or `tensors`. By their code: tracing runs copies, which write to copies of what a mod holds."""
    counts: Counter[str] = Counter()
    codes: set[CodeType] = {mod.__code__ for mod in mods}

    def look(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code in codes:
            kind = "traced" if any(isinstance(x, Proxy) for x in frame.f_locals.values()) else "tensors"
            counts[f"{frame.f_code.co_name} {kind}"] += 1

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield counts
    finally:
        sys.setprofile(before)


ONCE = {"score_mod traced": 1, "mask_mod traced": 1}


@pytest.mark.usefixtures("nothing_is_known")
@pytest.mark.parametrize("whole", [True, False], ids=["mods", "masked score"])
def test_a_first_call_traces_each_mod_once_and_a_second_one_none(whole: bool) -> None:
    score_mod, mask_mod = pair()
    with count_runs(score_mod, mask_mod) as runs:
        mask = create_block_mask(mask_mod, None, None, M, N) if whole else None
        assert not runs, "a block mask of ours holds its mask_mod and computes nothing"
        first = flex_attention(Q, K, V, score_mod, mask, backend="interpret")
        assert runs == (ONCE if whole else {"score_mod traced": 1})
        assert torch.equal(flex_attention(Q, K, V, score_mod, mask, backend="interpret"), first)
        assert sum(runs.values()) == (2 if whole else 1)


@pytest.mark.usefixtures("nothing_is_known")
def test_mods_made_anew_with_other_numbers_are_traced_once_more() -> None:
    flex_attention(Q, K, V, pair()[0], create_block_mask(pair()[1], None, None, M, N), backend="interpret")
    score_mod, mask_mod = pair(window=20)
    with count_runs(score_mod, mask_mod) as runs:
        flex_attention(Q, K, V, score_mod, create_block_mask(mask_mod, None, None, M, N), backend="interpret")
    assert runs == ONCE, "their program is known, but that is only seen in what they trace to"


@pytest.mark.usefixtures("nothing_is_known")
def test_the_blocks_of_a_mask_of_pytorch_are_compared_without_another_trace() -> None:
    score_mod, mask_mod = pair()
    with count_runs(score_mod, mask_mod) as runs:
        mask = torch_flex.create_block_mask(mask_mod, None, None, M, N, device="cpu")
        assert set(runs) == {"mask_mod tensors"}, "PyTorch computes its blocks from the mask_mod"
        runs.clear()
        flex_attention(Q, K, V, score_mod, mask, backend="interpret")
    assert runs == ONCE


@pytest.mark.usefixtures("nothing_is_known")
def test_blocks_of_a_mask_whose_condition_nothing_hangs_on_are_compared_all_the_same() -> None:
    """What the mask_mod reads is no parameter then, so it is traced alone."""
    mask_mod = pair()[1]

    def nothing(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return torch.where(torch.tensor(False), score, -torch.inf)

    mask = torch_flex.create_block_mask(mask_mod, None, None, M, N, device="cpu")
    assert not flex_attention(Q, K, V, nothing, mask, backend="interpret").any()


@pytest.mark.usefixtures("nothing_is_known")
def test_an_attention_and_a_transfer_trace_once() -> None:
    score_mod, mask_mod = pair()
    spec = cuir.Specification("pair", mask_mod, score_mod)
    with count_runs(score_mod, mask_mod) as runs:
        result = cuir.attention(spec, head_dim=D)
        assert runs == ONCE
        result(Q, K, V, backend="interpret")
        assert runs == ONCE
        runs.clear()
        cuir.transfer(corpus.kernels()["flash_fwd_sm90"], spec)
    assert runs == ONCE


@pytest.mark.thorough
@pytest.mark.usefixtures("nothing_is_known")
def test_verification_traces_once_beside_its_runs_on_tensors() -> None:
    """It asks a mod for its values at many lengths; a kernel of another mask, which is refused early, shows how often it traces."""
    score_mod, mask_mod = pair()
    program = cuir.transfer(corpus.kernels()["flash_fwd_sm90"], cuir.Specification("pair", pair()[1], pair()[0])).text
    spec = cuir.Specification("pair", mask_mod, score_mod)
    with count_runs(score_mod, mask_mod) as runs:
        report = cuir.verify(cuir.parse(program.replace("<= BM_", "< BM_")), spec, consts={"T": cuir.f16, "D": D}, shrink=False, seeded=0)
    assert not report.ok and [s.verdict for s in report.stages[:2]] == ["passed", "failed"]
    assert {name: n for name, n in runs.items() if name.endswith("traced")} == ONCE
    assert runs["mask_mod tensors"] > 10


@pytest.mark.usefixtures("nothing_is_known")
def test_a_graph_traces_once() -> None:
    score_mod, mask_mod = pair()
    mask = create_block_mask(mask_mod, None, None, M, N)
    compiled = torch.compile(
        lambda q, k, v: flex_attention(q, k, v, score_mod, mask, backend="interpret"), fullgraph=True, backend="aot_eager"
    )
    with count_runs(score_mod, mask_mod) as runs:
        result = compiled(Q, K, V)
        assert runs == ONCE
        compiled(Q, K, V)
    assert runs == ONCE and torch.equal(result, flex_attention(Q, K, V, score_mod, mask, backend="interpret"))


@pytest.mark.usefixtures("nothing_is_known")
def test_a_number_that_decides_control_flow_costs_a_second_run() -> None:
    """Only the first one shows that it does; then it stays what it is."""
    backwards = 0

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return q_idx <= kv_idx if backwards else q_idx >= kv_idx

    with count_runs(mask_mod) as runs:
        flex_attention(Q, K, V, None, create_block_mask(mask_mod, None, None, M, N), backend="interpret")
    assert runs == {"mask_mod traced": 2}


class Memo:
    slope: Any = None


@pytest.mark.usefixtures("nothing_is_known")
def test_a_mod_that_keeps_what_it_computes_is_traced_again_which_refuses_it() -> None:
    """Its first trace is right, but every later one would meet a value of the first: so no call goes through, not only the first."""
    gain = 2.0

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        Memo.slope = Memo.slope if Memo.slope is not None else gain * 2.0
        return score * Memo.slope

    with count_runs(score_mod) as runs, pytest.raises(CuirError, match="X122"):
        flex_attention(Q, K, V, score_mod, backend="interpret")
    assert runs == {"score_mod traced": 2}


@pytest.mark.usefixtures("nothing_is_known")
def test_a_mod_that_cannot_be_traced_is_run_once() -> None:
    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return q_idx >= kv_idx and kv_idx > 3

    with count_runs(mask_mod) as runs, pytest.raises(CuirError, match="X121"):
        flex_attention(Q, K, V, None, create_block_mask(mask_mod, None, None, M, N), backend="interpret")
    assert runs == {"mask_mod traced": 1}


M, N, D = 40, 50, 64
Mod = Callable[..., Any]
Q, K, V = (torch.randn(1, 2, n, D).half() for n in (M, N, N))


def call(score: Mod) -> Any:
    return flex_attention(Q, K, V, score, verify="off")


def make_bias(bias: torch.Tensor) -> Mod:
    return lambda s, b, h, q, k: s + bias[h]


def test_mods_made_anew_do_what_depends_on_the_call_alone(launches: Launches) -> None:
    """Counted as calls of functions, which no other process delays: 461 when each call examined everything, 321 since."""
    bias, counted = torch.rand(2), 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    for _ in range(3):
        call(make_bias(bias))
    mod = make_bias(bias)
    sys.setprofile(count)
    try:
        call(mod)
    finally:
        sys.setprofile(None)
    assert counted < 340


def test_mods_made_anew_pass_their_own_tensors(launches: Launches) -> None:
    for _ in range(3):
        bias = torch.rand(2)
        call(make_bias(bias))
        inputs = next(v for n, v in launches.arguments[-1].items() if n.rstrip("_") == "bias")
        assert torch.equal(inputs, bias) and inputs.data_ptr() == bias.data_ptr()
    assert len(prepared_calls._TRACED) == 1


def tangent(x: torch.Tensor, use: Callable[[torch.Tensor], object]) -> None:
    with forward_ad.dual_level():
        use(forward_ad.make_dual(x, torch.ones_like(x)))


def use_outside_transform(x: torch.Tensor, use: Callable[[torch.Tensor], object]) -> None:
    """A batched tensor that its transform has left behind."""
    escapees: list[torch.Tensor] = []
    torch.vmap(lambda each: escapees.append(each) or each)(x[None])
    use(escapees[0])


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize(
    ("wrap", "code"),
    [
        (lambda x, use: torch.vmap(use)(x[None]), "U403"),
        (lambda x, use: torch.func.grad(lambda y: use(y))(x), "U403"),
        (tangent, "U410"),
        (use_outside_transform, "U403"),
    ],
)
def test_what_stands_for_others_is_refused_after_a_call_of_its_signature(
    launches: Launches, wrap: Callable[[torch.Tensor, Callable[[torch.Tensor], object]], object], code: str, captured: bool
) -> None:
    bias = torch.rand(2)
    call(make_bias(bias))
    use = (lambda x: call(make_bias(x))) if captured else (lambda x: flex_attention(x, K, V, make_bias(bias), verify="off"))
    with pytest.raises(CuirError, match=code):
        wrap(bias if captured else Q, use)
    call(make_bias(bias))
    assert len(launches.arguments) == 2


def test_what_fits_once_is_told_apart_from_what_does_not(launches: Launches) -> None:
    """Sizes, dtypes, strides of subclasses, and shared heads, after a call that fits."""
    bias, shared = torch.rand(2), Q.repeat(1, 2, 1, 1)
    call(make_bias(bias))
    flex_attention(shared, K, V, make_bias(torch.rand(4)), enable_gqa=True, verify="off")
    for code, refused in (
        ("U411", lambda: flex_attention(shared, K, V, make_bias(torch.rand(4)), verify="off")),
        ("U408", lambda: flex_attention(Q, K, V[:, :, 1:], make_bias(bias), verify="off")),
        ("U404", lambda: flex_attention(Q, K.float(), V, make_bias(bias), verify="off")),
        ("U403", lambda: flex_attention(Q, K.to_sparse(), V, make_bias(bias), verify="off")),
        ("U416", lambda: call(make_bias(torch.rand(1)))),
        ("U407.*`bias`", lambda: call(make_bias(bias.to("meta")))),
    ):
        with pytest.raises(CuirError, match=code):
            refused()
    call(make_bias(bias))
    assert len(launches.arguments) == 3
