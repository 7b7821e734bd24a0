"""flex_attention under torch.compile: no graph break, what is guarded, what is an input of the graph, and the operator itself."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import flex_attention as torch_flex
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from cuir import Specification, attention, create_block_mask, flex_attention
from cuir.attn.api import operator as cuir_operator
from cuir.attn.api.operator import OPERATOR
from cuir.attn.capture.capture_keys import follow, make_capture_key
from cuir.attn.kernels.attention_kernel import Attention
from cuir.text.diagnostics import CuirError

M, N, D = 70, 90, 64
Mod = Callable[..., Any]


def tensors(heads: int = 2, m: int = M, n: int = N) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(m + n)
    return tuple(torch.randn(1, heads, s, D, generator=g).half() for s in (m, n, n))


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def make_window(size: int) -> Mod:
    return lambda b, h, q, k: q - k <= size


def documents(ids: torch.Tensor) -> Mod:
    return lambda b, h, q, k: ids[q] == ids[k]


def make_scaling(slopes: torch.Tensor) -> Mod:
    return lambda s, b, h, q, k: s * slopes[h]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Compiled:
    """A compiled function, the graphs that it has, and what it has to give."""

    def __init__(self, function: Callable[..., Any]):
        self.graphs: list[torch.fx.GraphModule] = []

        def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
            self.graphs.append(graph)
            return graph

        self.call = torch.compile(function, fullgraph=True, backend=backend)

    def __call__(self, *args: Any) -> Any:
        return self.call(*args)


def compute_expected(qkv: tuple[torch.Tensor, ...], mask: Mod | None = None, score: Mod | None = None) -> torch.Tensor:
    return Specification("wanted", mask, score).reference(*qkv, D**-0.5)[0].float()  # type: ignore[call-arg]


def close(o: torch.Tensor, second: torch.Tensor) -> None:
    torch.testing.assert_close(o.float(), second, atol=3e-3, rtol=1e-2)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, score: Mod | None, mask: Any) -> Any:
    return flex_attention(q * 1.0, k, v, score, mask, backend="interpret") + 0.0


def make_mask(mod: Mod, m: int = M, n: int = N) -> Any:
    return create_block_mask(mod, None, None, m, n, device="cpu")


# ---- graphs
def test_one_graph_for_other_tensors() -> None:
    f, qkv = Compiled(attend), tensors()
    for step in (10, 20, 45):
        mod, slopes = documents(torch.arange(N) // step), make_scaling(torch.tensor([1.0, step / 10]))
        close(f(*qkv, slopes, make_mask(mod)), compute_expected(qkv, mod, slopes))
    assert len(f.graphs) == 1
    names = [str(node.target) for node in f.graphs[0].graph.nodes if node.op == "call_function"]
    assert sum("flex_attention" in n for n in names) == 1 and all("cuir" in n for n in names if "flex_attention" in n)


def test_tensors_that_were_written_to() -> None:
    f, qkv, ids = Compiled(attend), tensors(), torch.arange(N) // 50
    mask = make_mask(documents(ids))
    for step in (50, 20):
        ids.copy_(torch.arange(N) // step)
        close(f(*qkv, None, mask), compute_expected(qkv, documents(ids)))
    assert len(f.graphs) == 1


def test_other_numbers_and_other_code_make_another_graph() -> None:
    f, qkv = Compiled(attend), tensors()
    for mod in (
        make_window(5),
        make_window(30),
        causal,
        make_window(5),
        torch_flex.and_masks(causal, make_window(20)),
        torch_flex.and_masks(make_window(20), causal),
    ):
        close(f(*qkv, None, make_mask(mod)), compute_expected(qkv, mod))
    assert len(f.graphs) == 5


def test_a_function_that_is_exchanged_inside_of_a_combination() -> None:
    def combine(first: Mod, second: Mod) -> Mod:
        return lambda b, h, q, k: first(b, h, q, k) & second(b, h, q, k)

    f, qkv = Compiled(attend), tensors()
    for mod in (
        combine(causal, make_window(9)),
        combine(lambda b, h, q, k: q > k + 2, make_window(9)),
        combine(causal, documents(torch.arange(N) // 9)),
    ):
        close(f(*qkv, None, make_mask(mod)), compute_expected(qkv, mod))


TABLE = torch.arange(N) // 30


def test_a_tensor_among_the_globals(monkeypatch: pytest.MonkeyPatch) -> None:
    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        return TABLE[q] == TABLE[k]

    f, qkv = Compiled(attend), tensors()
    close(f(*qkv, None, make_mask(mask)), compute_expected(qkv, mask))
    monkeypatch.setitem(globals(), "TABLE", torch.arange(N) // 11)
    close(f(*qkv, None, make_mask(mask)), compute_expected(qkv, mask))


def test_a_mask_that_the_graph_makes() -> None:
    def inside(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mod: Mod) -> Any:
        size = 30

        def window(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return q_idx - kv_idx <= size

        o = flex_attention(q, k, v, None, create_block_mask(window, None, None, M, N, device="cpu"), backend="interpret")
        return o, flex_attention(q, k, v, None, create_block_mask(mod, None, None, M, N), backend="interpret")

    f, qkv = Compiled(inside), tensors()
    for step in (3, 30):
        mod = documents(torch.arange(N) // step)
        item, two = f(*qkv, mod)
        close(item, compute_expected(qkv, make_window(30)))
        close(two, compute_expected(qkv, mod))
    assert len(f.graphs) == 1


def test_a_mod_that_the_graph_makes_of_another() -> None:
    def inside(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mod: Mod) -> Any:
        return flex_attention(q, k, v, None, create_block_mask(torch_flex.and_masks(mod, causal), None, None, M, N), backend="interpret")

    f, qkv = Compiled(inside), tensors()
    for step in (9, 5):
        mod = documents(torch.arange(N) // step)
        close(f(*qkv, mod), compute_expected(qkv, torch_flex.and_masks(mod, causal)))


def test_a_mod_that_cannot_be_compared_is_refused() -> None:
    table = np.arange(N)
    with pytest.raises(Exception, match="U418"):
        Compiled(attend)(*tensors(), None, make_mask(lambda b, h, q, k: q - k <= int(table[3])))


@pytest.mark.thorough
@pytest.mark.usefixtures("few_problems")
def test_what_a_compiled_call_runs_is_verified_though_a_mod_does_not_read_all_that_an_object_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pages:
        def __init__(self) -> None:
            self.table, self.free = torch.arange(N) // 9, torch.ones(7)

        def keep(self, b: Any, h: Any, q: Any, k: Any) -> Any:
            return self.table[q] == self.table[k]

    ran: list[Attention] = []
    ready = Attention.ready
    monkeypatch.setattr(Attention, "ready", lambda self, *a, **k: (ran.append(self), ready(self, *a, **k))[1])
    f, qkv, pages = Compiled(attend), tensors(), Pages()
    close(f(*qkv, None, make_mask(lambda b, h, q, k: pages.keep(b, h, q, k))), compute_expected(qkv, pages.keep))
    assert len(ran) == 1
    report = ran[0].report  # as a call on a GPU asks for it
    assert report is not None and report.ok


class Windows:
    size, ids = 5, torch.arange(N) // 9

    def mod(self, b: Any, h: Any, q: Any, k: Any) -> Any:
        return q - k <= self.size

    def documents(self, b: Any, h: Any, q: Any, k: Any) -> Any:
        return self.ids[q] == self.ids[k]


def test_numbers_of_a_class_are_guarded_and_its_tensors_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    f, qkv, windows = Compiled(attend), tensors(), Windows()
    mask = make_mask(lambda b, h, q, k: windows.mod(b, h, q, k))
    for size in (5, 20):
        monkeypatch.setattr(Windows, "size", size)
        close(f(*qkv, None, mask), compute_expected(qkv, make_window(size)))
    with pytest.raises(Exception, match=r"U418.*`ids` by way of a class"):
        f(*qkv, None, make_mask(lambda b, h, q, k: windows.documents(b, h, q, k)))


def test_lengths_may_change() -> None:
    def inside(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return flex_attention(q, k, v, None, create_block_mask(causal, None, None, q.shape[2], k.shape[2]), backend="interpret")

    f = Compiled(inside)
    for m, n in ((70, 90), (40, 33), (50, 95), (33, 20)):
        close(f(*tensors(2, m, n)), compute_expected(tensors(2, m, n), causal))
    assert len(f.graphs) <= 2


def test_masks_of_pytorch() -> None:
    if torch.__version__ < "2.13":
        pytest.skip("a mask of this PyTorch is no constant of a graph")
    f, qkv = Compiled(attend), tensors()
    for mod in (causal, documents(torch.arange(N) // 9)):
        close(f(*qkv, None, torch_flex.create_block_mask(mod, None, None, M, N, device="cpu")), compute_expected(qkv, mod))


def test_the_explicit_form() -> None:
    attend = attention(documents(torch.arange(N) // 9), head_dim=64)
    f, qkv = Compiled(lambda q, k, v: attend(q, k, v, return_lse=True, backend="interpret")), tensors()
    o, lse = f(*qkv)
    close(o, compute_expected(qkv, documents(torch.arange(N) // 9)))
    assert lse.shape == (1, 2, M)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("normalize", ["softmax", "sigmoid", "relu"])
def test_other_weights_and_sinks(normalize: Any) -> None:
    def inside(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, sink: Any) -> Any:
        return flex_attention(q, k, v, None, mask, backend="interpret", normalize=normalize, sink=sink)

    f, qkv, mask = Compiled(inside), tensors(), make_mask(causal)
    sinks: list[Any] = [None] if normalize != "softmax" else [torch.nn.Parameter(torch.rand(2), False), torch.ones(2), None, 0.5]
    for sink in sinks:
        spec = Specification("wanted", causal, normalize=normalize, sink=sink)
        for _ in range(2):
            close(f(*qkv, mask, sink), spec.reference(*qkv, D**-0.5)[0].float())  # type: ignore[call-arg]
    assert len(f.graphs) <= 4


def test_explained_without_a_break() -> None:
    observed = torch._dynamo.explain(attend)(*tensors(), None, make_mask(causal))
    assert observed.graph_break_count == 0 and observed.graph_count == 1


def test_through_aot_autograd() -> None:
    f = torch.compile(attend, fullgraph=True, backend="aot_eager")
    qkv, mod = tensors(), documents(torch.arange(N) // 9)
    with torch.no_grad():
        close(f(*qkv, None, make_mask(mod)), compute_expected(qkv, mod))


@pytest.mark.parametrize(
    ("says", "change"),
    [
        ("U411", lambda q, k, v: (q, k[:, :1], v[:, :1])),
        ("U109", lambda q, k, v: (q.double(), k.double(), v.double())),
        ("U404", lambda q, k, v: (q.requires_grad_(), k.float(), v.float())),
    ],
)
def test_mistakes_are_said(says: str, change: Callable[..., Any]) -> None:
    with pytest.raises(Exception, match=says):
        Compiled(attend)(*change(*tensors()), None, make_mask(causal))


# ---- the operator
def test_the_operator_keeps_the_rules_of_pytorch() -> None:
    mod = documents(torch.arange(N) // 9)
    handle = cuir_operator.register_mods(mod, None)
    q, k, v = tensors()
    args = (
        q.transpose(1, 2).contiguous().transpose(1, 2),
        k,
        v,
        list(make_capture_key(mod, None).tensors),
        handle,
        0.125,
        False,
        "interpret",
        "off",
    )
    torch.library.opcheck(cuir_operator.OPERATOR, args)


def test_results_of_a_graph_are_never_remembered() -> None:
    """The memory of an intermediate result may hold something else when the next call comes, although it is the same tensor."""
    qkv, ids = tensors(), torch.arange(N) // 45
    handle = cuir_operator.register_mods(documents(torch.arange(N) // 9), None)
    fresh = ids.clone()
    for step in (45, 9):
        fresh.detach().copy_(torch.arange(N) // step)
        before = fresh._version
        torch._C._autograd._unsafe_set_version_counter((fresh,), (before - 1,))
        o, _ = cuir_operator.OPERATOR(*qkv, [fresh], handle, D**-0.5, False, "interpret", "off")
        close(o, compute_expected(qkv, documents(torch.arange(N) // step)))


def make_shifted_mask(offset: torch.Tensor) -> Mod:
    return lambda b, h, q, k: q + offset >= k


def make_lookup(table: torch.Tensor, offset: torch.Tensor) -> Mod:
    return lambda b, h, q, k: table[q + offset] >= k


@pytest.mark.sweep(4)
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize(
    ("dtype", "tabled", "result"),
    [
        (torch.int32, False, 1),
        (torch.int64, False, 3),
        (torch.int32, True, 3),
    ],
)
def test_other_tensors_that_a_kernel_reads_as_they_lie_need_nothing_made(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, tabled: bool, result: int, inside: bool
) -> None:
    """As a decoding step's offset is, of a mask that the graph makes or is given. Integers of 64 bits, and elements whose index depends on a number of the graph, are looked at in each call."""
    qkv, prepared = tensors(m=3, n=300), []
    own_prepare = cuir_operator.prepare
    monkeypatch.setattr(cuir_operator, "prepare", lambda *args: prepared.append(1) or own_prepare(*args))
    table = torch.arange(400, dtype=torch.int32)

    def mask_at(offset: torch.Tensor) -> Any:
        return create_block_mask(make_lookup(table, offset) if tabled else make_shifted_mask(offset), None, None, 3, 300, device="cpu")

    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: Any) -> Any:
        mask = mask_at(table + 1) if inside else table
        return flex_attention(q * 1.0, k, v, None, mask, backend="interpret") + 0.0

    compiled = Compiled(step)
    for n in (10, 200, 280):
        offset = torch.tensor(n, dtype=dtype)
        close(compiled(*qkv, offset if inside else mask_at(offset + 1)), compute_expected(qkv, lambda b, h, q, k, n=n: q + n + 1 >= k))  # type: ignore[misc]
    assert len(prepared) == result and len(compiled.graphs) == 1


def test_a_read_that_a_number_of_the_graph_masks_is_looked_at_in_each_call() -> None:
    qkv, table = tensors(m=3, n=300), torch.arange(2, dtype=torch.int32)

    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: torch.Tensor) -> Any:
        limit = first + 1
        mask = create_block_mask(lambda b, h, q, k: (q < limit) & (table[q] >= k), None, None, 3, 300, device="cpu")
        return flex_attention(q * 1.0, k, v, None, mask, backend="interpret") + 0.0

    compiled = Compiled(step)
    for n in (0, 1):
        close(compiled(*qkv, torch.tensor(n, dtype=torch.int32)), compute_expected(qkv, lambda b, h, q, k, n=n: (q <= n) & (q >= k)))  # type: ignore[misc]
    with pytest.raises(CuirError, match="has 2 elements, and its element 2 is read"):
        compiled(*qkv, torch.tensor(2, dtype=torch.int32))


def test_paths_lead_to_what_the_walk_found() -> None:
    class Holder:
        def __init__(self) -> None:
            self.tables = {"a": [torch.ones(3)], "n": 4}

        def __call__(self, b: Any, h: Any, q: Any, k: Any) -> Any:
            return self.tables["a"][0][q] + self.tables["n"] > 0

    holder = Holder()
    mods = (torch_flex.and_masks(causal, documents(torch.ones(4))), lambda s, b, h, q, k, *, t=5: s * t + holder(b, h, q, k) + TABLE[q])
    owner = make_capture_key(*mods)
    assert {kind for kind, _, _ in owner.places} >= {"tensor", "number", "function", "object", "length"} and len(owner.tensors) == 3
    for kind, path, value in owner.places:
        result = follow(mods, path)
        if kind in ("members", "order"):
            assert tuple(result) == value
        else:
            assert len(result) == value if kind == "length" else result is value


CHANGED: dict[str, tuple[tuple[Any, ...], Callable[..., Any]]] = {
    "a function of PyTorch": ((torch.tanh, torch.sigmoid, torch.tanh), lambda v, s: v(s)),
    "a function of Python's": ((math.sqrt, math.exp), lambda v, s: s * v(2)),
    "an operator": ((operator.add, operator.mul), lambda v, s: v(s, 2)),
    "a type": ((int, float), lambda v, s: s * v(2.5)),
    "a dtype": ((torch.float32, torch.int32), lambda v, s: s * torch.tensor(2.5).to(v)),
    "a set": (({0}, {1}), lambda v, s: s * (2 if 0 in v else 3)),
    "a frozenset": ((frozenset({0}), frozenset({1})), lambda v, s: s * (2 if 0 in v else 3)),
    "a range": ((range(3), range(5)), lambda v, s: s * len(v)),
    "the order of a dict": (({"a": 1, "b": 2}, {"b": 2, "a": 1}), lambda v, s: s * next(iter(v.values()))),
    "a module": ((math, operator), lambda v, s: s * (2 if v is math else 3)),
}


@pytest.mark.sweep
@pytest.mark.parametrize(("values", "mod"), CHANGED.values(), ids=CHANGED)
@pytest.mark.parametrize("position", ["cell", "attribute"])
def test_whatever_a_mod_captures_is_noticed_when_it_is_exchanged(values: tuple[Any, ...], mod: Callable[..., Any], position: str) -> None:
    class Holder:
        value = values[0]

    holder, cell = Holder(), values[0]
    holder.value = values[0]

    def by_attribute(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return mod(holder.value, s)

    def by_cell(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return mod(cell, s)

    score_mod = by_cell if position == "cell" else by_attribute
    compiled = Compiled(lambda q, k, v: attend(q, k, v, score_mod, None))
    for value in values:
        holder.value = cell = value
        torch.testing.assert_close(compiled(*tensors()), attend(*tensors(), score_mod, None))


@pytest.mark.parametrize("value", [np.float32(2.0), Fraction(1, 2)])
def test_objects_that_nothing_compares_are_refused(value: Any) -> None:
    def score_mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * float(value)

    with pytest.raises(Exception, match=r"U418.*would not notice when it changes"):
        Compiled(lambda q, k, v: attend(q, k, v, score_mod, None))(*tensors())


# ---- export and checkpoints
@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_calls_the_operator(strict: bool) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = torch.nn.Parameter(torch.randn(2, N))

        def forward(self, x: torch.Tensor) -> Any:
            bias, n = self.bias, x.shape[2]
            mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, n, n, device="cpu")
            return flex_attention(x, x, x, lambda s, b, h, i, j: s + bias[h, j], mask, backend="interpret")

    model, (_, q, _) = Model(), tensors()
    program = torch.export.export(model, (q,), strict=strict, dynamic_shapes={"x": {2: torch.export.Dim("n", min=2, max=N)}})
    with torch.no_grad():
        torch.testing.assert_close(program.module()(q[:, :, :20]), model(q[:, :, :20]))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant: bool) -> None:
    """With the operator saved by its name, too."""
    results = []
    saved = functools.partial(
        create_selective_checkpoint_contexts,
        lambda ctx, op, *_, **__: CheckpointPolicy.MUST_SAVE if op is OPERATOR else CheckpointPolicy.PREFER_RECOMPUTE,
    )
    bias, q = torch.randn(2, N), tensors()[1].float()

    def attend(x: torch.Tensor) -> Any:
        return flex_attention(x, x, x, lambda s, b, h, i, j: s + bias[h, j], backend="interpret", verify="off")

    calls: list[Callable[[torch.Tensor], Any]] = [attend, lambda x: checkpoint(attend, x, use_reentrant=reentrant)]
    calls += [] if reentrant else [lambda x: checkpoint(attend, x, use_reentrant=False, context_fn=saved)]
    for call in (*calls, torch.compile(calls[1], backend="aot_eager")):
        x = q.clone().requires_grad_()
        call(x).square().sum().backward()
        results.append(x.grad)
    for second in results[1:]:
        torch.testing.assert_close(second, results[0])
