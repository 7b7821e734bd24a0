"""Mods and masks that are made inside of a compiled function: closures over tensors, numbers and parameters of a module, partials, combinations."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as torch_flex

from cuir import CuirError, create_block_mask, flex_attention
from cuir.attn.capture import graph_errors
from cuir.flex import and_masks

B, H, S, D = 1, 2, 40, 64
Mod = Callable[..., Any]
QKV = tuple(torch.randn(B, H, S, D, generator=torch.Generator().manual_seed(i)).half() for i in range(3))
attend = functools.partial(flex_attention, backend="interpret")


def compute_expected(score_mod: Mod | None = None, mask_mod: Mod | None = None) -> torch.Tensor:
    mask = None if mask_mod is None else torch_flex.create_block_mask(mask_mod, B, H, S, S, device="cpu")
    o: torch.Tensor = torch_flex.flex_attention(*(x.double() for x in QKV), score_mod=score_mod, block_mask=mask)
    return o


def close(result: torch.Tensor, exact: torch.Tensor) -> None:
    torch.testing.assert_close(result.double(), exact, rtol=6e-3, atol=6e-3)


class Compiled:
    """A function under torch.compile, and the graphs that were made of it."""

    def __init__(self, function: Any, backend: str = "eager"):
        torch._dynamo.reset()
        self.graphs: list[Any] = []

        def keep(graph: Any, inputs: Any) -> Any:
            self.graphs.append(graph)
            return graph

        self.function = torch.compile(function, backend=keep if backend == "eager" else backend, fullgraph=True)

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)


def test_a_closure_over_tensors_is_an_input_of_the_graph() -> None:
    def forward(q: Any, k: Any, v: Any, bias: Any) -> Any:
        doubled = bias * 2

        def score_mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return s + torch.sin(doubled[i]) + bias[j]

        return attend(q, k, v, score_mod=score_mod)

    f = Compiled(forward)
    for seed in (3, 4):
        bias = torch.randn(S, generator=torch.Generator().manual_seed(seed))
        close(f(*QKV, bias), compute_expected(lambda s, b, h, i, j, bias=bias: s + torch.sin(bias[i] * 2) + bias[j]))
    (graph,) = f.graphs
    assert [n.target for n in graph.graph.nodes if "cuir" in str(n.target)] == [torch.ops.cuir.flex_attention.default]
    assert not list(graph.children())


def test_longer_tensors_need_no_graph_each() -> None:
    """Their lengths are inputs of the graph, and no numbers of the mod."""

    def forward(q: Any, k: Any, v: Any, bias: Any) -> Any:
        return attend(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[j])

    f = Compiled(forward)
    for longer in range(5):
        bias = torch.randn(S + longer, generator=torch.Generator().manual_seed(longer))
        close(f(*QKV, bias), compute_expected(lambda s, b, h, i, j, bias=bias: s + bias[j]))
    assert len(f.graphs) == 2  # the second for any length


@pytest.mark.parametrize("sink", [0.5, torch.tensor([0.5, -1.0])], ids=["number", "tensor"])
def test_a_sink_and_the_largest_scores_of_a_mod_from_inside(sink: Any) -> None:
    def forward(q: Any, k: Any, v: Any, bias: Any) -> Any:
        o, aux = attend(
            q, k, v, score_mod=lambda s, b, h, i, j: s + bias[j], sink=sink, return_aux=torch_flex.AuxRequest(lse=True, max_scores=True)
        )
        return o, aux.lse, aux.max_scores

    bias = torch.randn(S, generator=torch.Generator().manual_seed(5))
    result = Compiled(forward)(*QKV, bias)
    q, k, v = (x.double() for x in QKV)
    scores = q @ k.mT * D**-0.5 + bias
    whole = torch.cat([scores, torch.as_tensor(sink).double().expand(H).view(1, H, 1, 1).expand(B, H, S, 1)], -1)
    close(result[0], whole.softmax(-1)[..., :-1] @ v)
    close(result[1], whole.logsumexp(-1))
    close(result[2], scores.amax(-1))


@pytest.mark.parametrize("written", [False, True])
def test_a_mod_from_outside_shares_a_variable_with_the_function(written: bool) -> None:
    bias = torch.randn(S, generator=torch.Generator().manual_seed(6))

    def score_mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s + bias[j]

    def forward(q: Any, k: Any, v: Any) -> Any:
        if written:
            bias.mul_(0.5)
        return attend(q, k, v, score_mod=score_mod) + bias.sum() * 0

    f = Compiled(forward)
    for _ in range(3):
        actual = f(*QKV)
        close(actual, compute_expected(lambda s, b, h, i, j: s + bias[j]))


def test_a_tensor_that_the_graph_computes() -> None:
    def forward(q: Any, k: Any, v: Any) -> Any:
        slope = torch.arange(S) * 0.1
        return attend(q, k, v, score_mod=lambda s, b, h, i, j: s + slope[i] * slope[j])

    slope = torch.arange(S) * 0.1
    close(Compiled(forward)(*QKV), compute_expected(lambda s, b, h, i, j: s + slope[i] * slope[j]))


def test_an_integer_that_torch_compile_takes_for_dynamic() -> None:
    def forward(q: Any, k: Any, v: Any, width: int) -> Any:
        mask = create_block_mask(lambda b, h, i, j: i - j < width, None, None, S, S, device="cpu")
        return attend(q, k, v, score_mod=lambda s, b, h, i, j: s * width, block_mask=mask)

    f = Compiled(forward)
    for width in (5, 9, 11, 5):
        close(f(*QKV, width), compute_expected(lambda s, b, h, i, j, w=width: s * w, lambda b, h, i, j, w=width: i - j < w))


@pytest.mark.parametrize("place", ["inside", "outside"])
def test_partials(place: str) -> None:
    table = torch.randn(S)

    def score_mod(t: Any, s: Any, b: Any, h: Any, i: Any, j: Any, *, factor: float) -> Any:
        return s * factor + t[j]

    partial = functools.partial(score_mod, table, factor=0.5)

    def forward(q: Any, k: Any, v: Any, t: Any) -> Any:
        return attend(q, k, v, score_mod=functools.partial(score_mod, t, factor=0.5) if place == "inside" else partial)

    close(Compiled(forward)(*QKV, table), compute_expected(lambda s, b, h, i, j: s * 0.5 + table[j]))


def test_a_mask_of_a_new_partial_in_each_call_is_one_graph() -> None:
    """Also where somebody sets another mod, before a call or within; then that one is obeyed."""

    def near(b: Any, h: Any, i: Any, j: Any, *, ids: Any, width: int) -> Any:
        return (ids[i] == ids[j]) & (i - j <= width)

    def forward(q: Any, k: Any, v: Any, mask: Any, second: Any) -> Any:
        if second is not None:
            mask.mask_mod = second
        return attend(q, k, v, block_mask=mask)

    f = Compiled(forward)
    mods = [functools.partial(near, ids=torch.arange(S) // step, width=9) for step in (7, 9, 4, 5)]
    masks = [create_block_mask(mod, None, None, S, S, device="cpu") for mod in mods]
    for mask, mod in zip(masks[:3], mods):
        close(f(*QKV, mask, None), compute_expected(None, mod))
    assert len(f.graphs) == 1
    broken = torch.compile(forward, backend="eager")  # a partial that was set breaks a graph
    masks[0].mask_mod = mods[3]
    close(broken(*QKV, masks[0], None), compute_expected(None, mods[3]))
    close(broken(*QKV, masks[1], mods[2]), compute_expected(None, mods[2]))
    assert masks[1].mask_mod is mods[2]
    close(f(*QKV, masks[2], None), compute_expected(None, mods[2]))


def test_a_mask_of_a_mod_from_inside_with_one_from_outside() -> None:
    def causal(b: Any, h: Any, i: Any, j: Any) -> Any:
        return i >= j

    def forward(q: Any, k: Any, v: Any, ids: Any) -> Any:
        mask = create_block_mask(and_masks(causal, lambda b, h, i, j: ids[i] == ids[j]), None, None, S, S, device="cpu")
        return attend(q, k, v, block_mask=mask, return_lse=True)

    f = Compiled(forward)
    for step in (7, 9):
        ids = torch.arange(S) // step
        close(f(*QKV, ids)[0], compute_expected(None, lambda b, h, i, j, ids=ids: (i >= j) & (ids[i] == ids[j])))
    assert len(f.graphs) == 1


def test_a_module_whose_parameter_the_mod_reads() -> None:
    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = torch.nn.Parameter(torch.randn(H, S, S))

        def forward(self, q: Any, k: Any, v: Any) -> Any:
            return attend(q, k, v, score_mod=lambda s, b, h, i, j: s + self.bias[h, i, j])

    module = Attention()
    with torch.no_grad():
        f = Compiled(module)
        close(f(*QKV), compute_expected(lambda s, b, h, i, j: s + module.bias[h, i, j]))
        module.bias.mul_(2)
        close(f(*QKV), compute_expected(lambda s, b, h, i, j: s + module.bias[h, i, j]))
    assert f(*QKV).requires_grad  # its gradient: test_learned.py


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_what_a_mod_may_do(backend: str) -> None:
    def mod(t: Any) -> Mod:
        def score_mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            near = torch.where(i % 2 == 0, torch.nn.functional.gelu(s), s.abs().clamp(max=1.0))
            return near + t[-1, 0] * (i // 3) + torch.dot(t[i % 5], t[j % 5]) + t.view(-1)[j % 7] + t[h].sum() + h.new_zeros(h.shape)

        return score_mod

    table, same = torch.randn(5, 4), torch.eye(D).half()
    # products beside the call: for other operations, inductor has a C++ compiler read PyTorch's headers for ten seconds
    f = Compiled(lambda q, k, v, t, same: attend(q @ same, k, v, score_mod=mod(t)) @ same, backend)
    close(f(*QKV, table, same), compute_expected(mod(table)))


class Scaled(torch.nn.Module):
    """An attention whose mods are its own methods, or those of what it holds."""

    def __init__(self, of_another: bool):
        super().__init__()
        self.factor, self.bias = 3, torch.nn.Parameter(torch.randn(S), requires_grad=False)
        self.inner = Scaled(False) if of_another else None

    def scaled(self, s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s * self.factor + self.bias[j]

    def before(self, b: Any, h: Any, i: Any, j: Any) -> Any:
        return i * self.factor >= j

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        mods = self if self.inner is None else self.inner
        return attend(q, k, v, score_mod=mods.scaled, block_mask=create_block_mask(mods.before, None, None, S, S, device="cpu"))


@pytest.mark.sweep(4)
@pytest.mark.parametrize("of_another", [False, True])
def test_methods_are_mods(of_another: bool) -> None:
    module = Scaled(of_another)
    f, owner = Compiled(module), module.inner or module
    for factor in (3, -2, 3):
        owner.factor = factor
        owner.bias.data.add_(1)
        close(f(*QKV), compute_expected(owner.scaled, lambda b, h, i, j: owner.before(b, h, i, j)))


def test_layers_that_share_a_mask_with_a_variable() -> None:
    """Or a score_mod: what it closes over is met a second time in the graph."""

    def within(w: Any) -> Any:
        return create_block_mask(lambda b, h, i, j: i - j < w, None, None, S, S, device="cpu")

    masks = [within(w) for w in (5, 9, torch.tensor(7))]

    def layers(q: Any, k: Any, v: Any, mask: Any) -> Any:
        for _ in range(3):
            q = attend(q, k, v, block_mask=mask)
        return q

    f = Compiled(layers)
    for mask in masks:
        close(f(*QKV, mask), layers(*QKV, mask).double())
    factor = 3

    def score_mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s * factor

    def twice(q: Any, k: Any, v: Any) -> Any:
        return attend(attend(q, k, v, score_mod=score_mod), k, v, score_mod=score_mod)

    close(Compiled(twice)(*QKV), twice(*QKV).double())


def test_floats_that_change_share_a_graph() -> None:
    f = Compiled(lambda q, k, v, cap: attend(q, k, v, score_mod=lambda s, b, h, i, j: cap * torch.tanh(s / cap)))
    for cap in (5.0, 4.0, 3.0, 2.0):
        close(f(*QKV, cap), compute_expected(lambda s, b, h, i, j, cap=cap: cap * torch.tanh(s / cap)))
    assert len(f.graphs) == 2  # one for a constant, one for a number that changes


BIAS = torch.randn(H, S, generator=torch.Generator().manual_seed(9))
TABLES = {"bias": [BIAS * 2]}


def from_table(h: Any, j: Any) -> Any:
    return TABLES["bias"][0][h, j]


@pytest.mark.parametrize("by", ["name", "function", "default"])
def test_a_mod_from_inside_reads_a_tensor_of_the_file(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Notebooks read global tensors: a write, and another tensor under the name, are noticed."""

    def forward(q: Any, k: Any, v: Any) -> Any:
        def by_name(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return s + BIAS[h, j]

        def by_function(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return s + from_table(h, j) / 2

        def by_default(s: Any, b: Any, h: Any, i: Any, j: Any, table: Any = BIAS) -> Any:
            return s + table[h, j]

        return attend(q, k, v, score_mod={"name": by_name, "function": by_function, "default": by_default}[by])

    def right(bias: torch.Tensor) -> torch.Tensor:
        return compute_expected(lambda s, b, h, i, j: s + bias[h, j])

    f, first = Compiled(forward), BIAS.clone()
    close(f(*QKV), right(first))
    monkeypatch.setitem(globals(), "BIAS", first * 3)
    monkeypatch.setitem(TABLES, "bias", [first * 6])
    close(f(*QKV), right(first * 3))
    BIAS.mul_(0.5)
    TABLES["bias"][0].mul_(0.5)
    close(f(*QKV), right(first * 1.5))
    assert len(f.graphs) == 1


SETTINGS = {"slope": 0.5}


def slope_of(distance: Any) -> Any:
    return distance * SETTINGS["slope"]


def steeper(distance: Any, times: float = 0.5) -> Any:
    return distance * times


@pytest.mark.sweep(4)
@pytest.mark.parametrize("by", ["function", "settings", "functions of functions"])
def test_a_mod_from_inside_calls_functions_of_the_file(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Helpers of a notebook hold no tensor; what they read by name is noticed, too."""

    def forward(q: Any, k: Any, v: Any) -> Any:
        def by_function(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return s - steeper(i - j)

        def by_settings(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return s - (i - j) * SETTINGS["slope"]

        def by_both(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return s - slope_of(i - j)

        return attend(q, k, v, score_mod={"function": by_function, "settings": by_settings, "functions of functions": by_both}[by])

    f = Compiled(forward)
    close(f(*QKV), compute_expected(lambda s, b, h, i, j: s - (i - j) * 0.5))
    if by != "function":
        monkeypatch.setitem(SETTINGS, "slope", 0.25)
        close(f(*QKV), compute_expected(lambda s, b, h, i, j: s - (i - j) * 0.25))


def test_a_branch_of_a_helper_is_told_where_it_stands() -> None:
    def forward(q: Any, k: Any, v: Any) -> Any:
        return attend(q, k, v, score_mod=lambda s, b, h, i, j: s * _branch(j))

    with pytest.raises(CuirError) as caught:
        Compiled(forward)(*QKV)
    assert caught.value.diagnostics[0].code in ("X121", "X122")
    span = caught.value.diagnostics[0].span
    assert span is not None and span.line == _branch.__code__.co_firstlineno + 1


def _branch(j: Any) -> float:
    if j > 3:
        return 1.0
    return 2.0


@pytest.mark.sweep
@pytest.mark.usefixtures("few_problems")
@pytest.mark.parametrize("how", ["closure", "partial"])
def test_a_mod_from_inside_asks_for_lengths(how: str) -> None:
    """By the names that mods from outside may ask for, those with a default aside."""

    def forward(q: Any, k: Any, v: Any, slopes: Any) -> Any:
        steep = slopes * 2

        def score_mod(s: Any, b: Any, h: Any, i: Any, j: Any, *, M: Any, N: Any, H: int = 7) -> Any:
            return s + steep[h] * (i + N - M - j) * H

        def of_table(table: Any, b: Any, h: Any, i: Any, j: Any, *, N: Any) -> Any:
            return (j >= N - 30) & (table[h] < 9)

        mods = (score_mod, None) if how == "closure" else (None, functools.partial(of_table, steep))
        return attend(q, k[:, :, :35], v[:, :, :35], mods[0], mods[1] and create_block_mask(mods[1], None, None, S, 35, device="cpu"))

    f, slopes = Compiled(forward), torch.tensor([0.01, -0.02])
    torch.testing.assert_close(f(*QKV, slopes), forward(*QKV, slopes))
    assert len(f.graphs) == 1 and not [n for n in f.graphs[0].graph.nodes if "new_empty" in str(n.target)]


FLOATS = (0.3, 0.7, 2.5, -1.5)


def _window(c: float) -> Any:
    mask = create_block_mask(lambda b, h, i, j: (i - j) * 0.5 < c, None, None, 20, 20, device="cpu")
    return flex_attention(*FEW, block_mask=mask, backend="interpret")


def _default(c: float) -> Any:
    return flex_attention(*FEW, score_mod=lambda s, b, h, i, j, w=c: s * w, backend="interpret")


def _local(c: float) -> Any:
    double = 2 * c
    return flex_attention(*FEW, score_mod=lambda s, b, h, i, j: s + double * j, backend="interpret")


def _partial(c: float) -> Any:
    return flex_attention(*FEW, score_mod=functools.partial(lambda s, b, h, i, j, w: s * w, w=c), backend="interpret")


FEW = torch.randn(3, 1, 2, 20, 16, generator=torch.Generator().manual_seed(0)).unbind()


@pytest.mark.sweep
@pytest.mark.parametrize("function", [_window, _default, _local, _partial])
def test_floats_that_change_are_not_cut_to_integers(function: Callable[[float], Any]) -> None:
    """A float becomes symbolic at its second value."""
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="eager", fullgraph=True)
    for c in FLOATS:
        torch.testing.assert_close(compiled(c), function(c))


def test_numbers_that_data_decide_are_refused() -> None:
    def attend(keep: torch.Tensor) -> Any:
        n = keep.sum().item()
        return flex_attention(*FEW, score_mod=lambda s, b, h, i, j: torch.where(j < n, s, -torch.inf), backend="interpret")

    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=True), pytest.raises(CuirError, match=r"X122.*data decide"):
        torch.compile(attend, backend="eager", fullgraph=True)(torch.ones(7, dtype=torch.int64))


def test_blocks_are_read_outside_of_a_graph_by_a_tracer_that_takes_no_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_errors, "TRACER_TRIED", (99, 0))
    mask = create_block_mask(lambda b, h, i, j: i >= j, 1, 1, S, S, "cpu", BLOCK_SIZE=16)

    def count(x: torch.Tensor) -> torch.Tensor:
        return x + mask.kv_num_blocks.sum()

    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="graph_break"):
        torch.compile(count, backend="eager", fullgraph=True)(torch.zeros(1))
    assert torch.compile(count, backend="eager")(torch.zeros(1)) == mask.kv_num_blocks.sum()


@pytest.mark.parametrize("whole", [True, False])
def test_a_version_of_pytorch_whose_tracer_is_not_ours_to_ask(whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call leaves the graph, with gradients and without a graph a call; where it may not, the message names the versions."""
    monkeypatch.setattr(graph_errors, "TRACER_TRIED", (99, 0))
    torch._dynamo.reset()
    table, graphs = torch.randn(S, S, generator=torch.Generator().manual_seed(5), requires_grad=True), []

    def keep(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    def forward(q: Any, k: Any, v: Any) -> Any:
        bias = torch.sin(table) + q.float().sum()
        return attend(q, k, v, lambda s, b, h, i, j: s + bias[i, j])

    f = torch.compile(forward, backend=keep, fullgraph=whole)
    if whole:
        with pytest.raises(CuirError, match=rf"X122.*a score_mod .* from PyTorch 99.0 on, and this is {torch.__version__.split('+')[0]}"):
            f(*QKV)
        return
    for n in range(3):
        q, k, v = (x.roll(n, 2) for x in QKV)
        bias = torch.sin(table.double()) + q.float().sum()
        exact = ((q.double() @ k.double().mT * D**-0.5 + bias).softmax(-1) @ v.double()).sum(-1)
        o = f(q, k, v)
        torch.testing.assert_close(o.double().sum(-1), exact, rtol=6e-3, atol=6e-2)
        result, right = (torch.autograd.grad(x.square().sum(), table)[0] for x in (o.float().sum(-1), exact))
        assert float((result - right).norm()) < 2e-2 * float(right.norm())
    assert len(graphs) == 2
