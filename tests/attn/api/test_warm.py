"""Warm calls: nothing is walked, checked or prepared again, and whatever changes is noticed; calls inside of the capture of a CUDA graph."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as torch_flex
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

import cuir
from cuir import CuirError, attention, create_block_mask, flex_attention
from cuir.attn.api import prepared_calls
from cuir.attn.capture import attention_request
from cuir.attn.capture import call_inputs as inputs
from cuir.attn.capture.capture_keys import MutationGuard, make_capture_key
from cuir.attn.kernels import attention_kernel
from tests.attn.launches import Launches
from tests.timing import idle_seconds

M, N, D = 40, 50, 64
Mod = Callable[..., Any]


Q, K, V = (torch.randn(1, 2, n, D).half() for n in (M, N, N))


def call(mask: Any = None, score: Mod | None = None, **options: Any) -> Any:
    return flex_attention(Q, K, V, score, mask, **{"verify": "off", **options})


def make_mask(mod: Mod) -> Any:
    return create_block_mask(mod, None, None, M, N)


def documents(ids: torch.Tensor) -> Mod:
    return lambda b, h, q, k: ids[q] == ids[k]


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Of identities that calls ask for."""
    calls: list[Any] = []

    def count_walk(*mods: Any) -> Any:
        calls.append(mods)
        return make_capture_key(*mods)

    monkeypatch.setattr(attention_request, "make_capture_key", count_walk)
    return calls


# ---- what changes
CHANGES: dict[str, Callable[[], tuple[Mod, Callable[[], Any]]]] = {}


def changes(make: Callable[[], tuple[Mod, Callable[[], Any]]]) -> Callable[[], tuple[Mod, Callable[[], Any]]]:
    CHANGES[make.__name__] = make
    return make


@changes
def a_cell() -> Any:
    size = 4

    def mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        return q - k <= size

    def change() -> None:
        nonlocal size
        size = 7

    return mod, change


@changes
def a_tensor_written_to() -> Any:
    ids = torch.arange(N) // 10
    return documents(ids), lambda: ids.add_(ids)


@changes
def another_memory_of_a_tensor() -> Any:
    ids = torch.arange(N) // 10

    def change() -> None:
        ids.data = torch.arange(N) // 20

    return documents(ids), change


@changes
def the_shape_of_a_tensor() -> Any:
    ids = torch.zeros(60, dtype=torch.int64)
    return documents(ids), lambda: ids.resize_(55)


@changes
def an_attribute() -> Any:
    class Window:
        size = 4

        def __init__(self) -> None:
            self.width = 3

        def __call__(self, b: Any, h: Any, q: Any, k: Any) -> Any:
            return q - k <= self.width

    window = Window()
    return window, lambda: setattr(window, "width", 9)


@changes
def an_entry_of_a_list() -> Any:
    sizes = [3, 4]

    def mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q - k <= sizes[0]) & (k - q <= sizes[1])

    return mod, lambda: sizes.__setitem__(1, 9)


@changes
def the_length_of_a_list() -> Any:
    sizes = [3, 4]

    def mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        retained = q >= 0
        for size in sizes:
            retained = retained & (q - k <= size)
        return retained

    return mod, lambda: sizes.append(1)


@changes
def an_entry_of_a_dict() -> Any:
    sizes = {"left": 3}
    return lambda b, h, q, k: q - k <= sizes["left"], lambda: sizes.update(left=4)


WIDTH = 5


@changes
def a_global() -> Any:
    def change() -> None:
        globals()["WIDTH"] += 1

    return lambda b, h, q, k: q - k <= WIDTH, change


@changes
def a_default() -> Any:
    def mod(b: Any, h: Any, q: Any, k: Any, *, size: int = 4) -> Any:
        return q - k <= size

    return mod, lambda: setattr(mod, "__kwdefaults__", {"size": 6})


@changes
def code() -> Any:
    def mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        return q >= k

    return mod, lambda: setattr(mod, "__code__", (lambda b, h, q, k: q <= k).__code__)


@changes
def a_cell_of_an_inner_mod() -> Any:
    inner, change = a_cell()
    return lambda b, h, q, k: inner(b, h, q, k) & (k >= 2), change


@changes
def a_keyword_of_a_partial() -> Any:
    def mod(b: Any, h: Any, q: Any, k: Any, *, size: int) -> Any:
        return q - k <= size

    partial = functools.partial(mod, size=4)
    return partial, lambda: partial.keywords.update(size=8)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_noticed(name: str, launches: Launches, walks: list[Any]) -> None:
    mod, change = CHANGES[name]()
    mask = make_mask(mod)
    call(mask)
    call(mask)
    assert len(walks) == 1, "the second call is warm"
    first = launches.arguments[-1]
    change()
    call(mask)
    assert len(walks) == 2, "the change was not noticed"
    extra = {n for n in first if n not in ("Q", "K", "V", "O", "scale")}
    program = prepared_calls._TRACED
    assert (
        len(program) > 1
        or any(not torch.equal(torch.as_tensor(first[n]), torch.as_tensor(launches.arguments[-1][n])) for n in extra)
        or name == "the_shape_of_a_tensor"
    )
    call(mask)
    assert len(walks) == 2


def test_other_calls_with_the_same_mods(launches: Launches, walks: list[Any]) -> None:
    mask = make_mask(documents(torch.arange(N)))
    call(mask)
    o, lse = call(mask, return_lse=True)
    assert o.shape == Q.shape and lse.shape == (1, 2, M) and len(walks) == 1
    call(mask, scale=0.3)
    assert launches.arguments[-1]["scale"] == 0.3 and len(walks) == 2
    call(mask, scale=1)
    with pytest.raises(CuirError, match="U413"):
        call(mask, scale=True)
    learned = flex_attention(Q.clone().requires_grad_(), K, V, None, mask, verify="off")
    assert learned.requires_grad and not call(mask).requires_grad  # type: ignore[union-attr]
    with pytest.raises(CuirError, match="U412"):
        flex_attention(Q[:, :, :-1], K, V, None, mask, verify="off")
    with pytest.raises(CuirError, match="U403"):
        flex_attention(Q, K, "v", None, mask, verify="off")  # type: ignore[arg-type]
    q = Q.transpose(1, 2).contiguous().transpose(1, 2)
    assert flex_attention(q, K, V, None, mask, verify="off").stride() == q.stride()  # type: ignore[union-attr]


class Operators(TorchDispatchMode):
    """Collects the operators of attention that a mode meets."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names += [str(func)] if str(func).startswith("cuir") else []
        return func(*args, **(kwargs or {}))


def test_a_warm_call_is_dispatched_where_pytorch_looks_on(launches: Launches) -> None:
    """In a mode, and with one tensor that wraps others, be it key or value alone."""
    mask, explicit = make_mask(documents(torch.arange(N))), attention(documents(torch.arange(N)), head_dim=64, verify="off")
    for once in (lambda *x: flex_attention(*x, None, mask, verify="off"), explicit):
        for _ in range(2):
            once(Q, K, V)
        for place in range(3):
            tensors = [TwoTensor(x, x) if i == place else x for i, x in enumerate((Q, K, V))]
            assert isinstance(once(*tensors), TwoTensor)
        with Operators() as mode:
            once(Q, K, V)
        assert mode.names == ["cuir.flex_attention.default"]


def test_masks_of_pytorch_are_warm_too(launches: Launches, walks: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    mod = documents(torch.arange(N) // 10)
    item, two = (torch_flex.create_block_mask(mod, None, None, M, N, device="cpu") for _ in range(2))
    for _ in range(2):
        call(item)
    assert len(walks) == 1
    call(two)
    assert len(walks) == 2
    two.mask_mod = documents(torch.arange(N) // 20)
    call(two)
    assert len(walks) == 3
    with pytest.raises(CuirError, match="U412"):
        call(torch_flex.create_block_mask(mod, None, None, M, M, device="cpu"))


def test_other_weights_and_sinks_are_warm_too(launches: Launches, walks: list[Any]) -> None:
    mask, sink = make_mask(lambda b, h, q, k: q >= k), torch.rand(2)
    for options in ({"normalize": "relu"}, {"sink": 1.5}, {"sink": sink}, {"sink": 1}, {}):
        before = len(walks)
        call(mask, **options)
        call(mask, **options)
        assert len(walks) == before + 1
    sink.add_(1)
    call(mask, sink=sink)
    assert len(walks) == 6 and torch.equal(next(v for n, v in launches.arguments[-1].items() if n.rstrip("_") == "sink"), sink)
    reference, _ = weakref.ref(sink), launches.arguments.clear()
    for expected_values in prepared_calls._TRACED.values():
        expected_values._checked.entries.clear()
        expected_values.transferred._cache.entries.clear()
    assert reference() is sink and len(prepared_calls._WARM) == 2


def test_a_tensor_that_begins_to_learn(launches: Launches) -> None:
    bias = torch.rand(N)

    def score(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s + bias[k]

    assert not call(None, score).requires_grad
    bias.requires_grad_()
    assert call(None, score).requires_grad and call(None, score).requires_grad
    bias.requires_grad_(False)
    assert not call(None, score).requires_grad


def test_nothing_outlives_the_mods(launches: Launches, collect: Callable[[], int]) -> None:
    call(make_mask(documents(torch.arange(N))))  # the first of its kind is kept, with the program that it traced to
    ids = torch.arange(N) // 2
    reference, mask = weakref.ref(ids), make_mask(documents(ids))
    call(mask)
    assert len(prepared_calls._WARM) == 2
    launches.arguments.clear()
    for expected_values in prepared_calls._TRACED.values():
        expected_values._checked.entries.clear()  # of the last few problems
        expected_values.transferred._cache.entries.clear()
    del mask, ids
    collect()
    assert reference() is None and len(prepared_calls._WARM) == 1


def test_mods_that_no_one_can_hold(launches: Launches, walks: list[Any]) -> None:
    class Windows:
        def __init__(self) -> None:
            self.size = 3

        def mod(self, b: Any, h: Any, q: Any, k: Any) -> Any:
            return q - k <= self.size

    windows = Windows()
    for size in (3, 5):
        windows.size = size
        call(make_mask(windows.mod))
        assert next(v for n, v in launches.arguments[-1].items() if n.rstrip("_") == "size") == size, launches.arguments[-1].keys()
    with torch.inference_mode():
        ids = torch.arange(N)
    for _ in range(2):
        call(make_mask(documents(ids)))
    assert len(walks) == 4


def test_the_explicit_form_notices_what_is_written(launches: Launches) -> None:
    ids = torch.arange(N) // 10
    attend = attention(documents(ids), head_dim=64, verify="off")

    def read_ids() -> torch.Tensor:
        attend(Q, K, V)
        return next(v for n, v in launches.arguments[-1].items() if n.rstrip("_") == "ids")

    first = read_ids()
    assert read_ids() is first
    ids.add_(ids)
    assert torch.equal(read_ids(), ids.int())
    ids.data = torch.arange(N) // 20
    assert torch.equal(read_ids(), ids.int())


def test_same_needs_no_walk() -> None:
    mod = documents(torch.arange(N))
    same = MutationGuard(make_capture_key(mod, None), (mod, None), lambda dead: None)
    assert same.holds(mod, None) and not same.holds(documents(torch.arange(N)), None) and not same.holds(mod, mod)


def test_a_warm_call_is_cheap(launches: Launches) -> None:
    """Beyond the kernel's own call, on the host, as an idle core would take it."""
    slopes, mask = torch.rand(2), make_mask(documents(torch.arange(N)))

    def score(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s + slopes[h] * (k - q)

    explicit = attention(documents(torch.arange(N)), head_dim=64, verify="off")
    for once in (lambda: call(mask, score), lambda: call(mask), lambda: explicit(Q, K, V)):

        def many(turn: int, once: Callable[[], object] = once) -> None:
            for _ in range(400):
                once()
                launches.arguments.clear()

        many(0)  # the first is no warm one
        seconds = idle_seconds(many) / 400
        assert seconds < 40e-6, f"{seconds * 1e6:.0f} us"


class Replays:
    """A call that is made with other tensors, if `like` says so: what it was made with."""

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[torch.Tensor, ...], bool | None]] = []
        self.like = True

    def of(self, tensors: tuple[torch.Tensor, ...], captured: bool | None = None) -> tuple[torch.Tensor, ...] | None:
        self.calls.append((tensors, captured))
        return (tensors[0], torch.zeros(1, 2, M)) if self.like else None


def test_a_call_is_made_again_where_nothing_has_changed(launches: Launches) -> None:
    replays = launches.replays = Replays()
    ids, bias = torch.arange(N) // 10, torch.rand(N)
    mask = make_mask(documents(ids))

    def score(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s + bias[k]

    def count_launches() -> tuple[int, int]:
        call(mask, score)
        result = len(launches.arguments), len(replays.calls)
        launches.arguments.clear()
        replays.calls.clear()
        return result

    assert count_launches() == (1, 0) and count_launches() == (0, 1) and count_launches() == (0, 1)
    call(mask, score)
    ((tensors, captured),) = replays.calls
    assert tensors[0] is Q and tensors[1] is K and tensors[2] is V and captured is False
    replays.calls.clear()
    ids.add_(1)
    assert count_launches() == (1, 0) and count_launches() == (0, 1)
    mask.mask_mod = documents(ids)
    mask.mask_mod = mask._request.mask_mod
    assert count_launches() == (0, 1)
    bias.requires_grad_()
    assert all(call(mask, score).requires_grad for _ in range(3))  # the kernel's call may be made again, but not as all of a call
    launches.arguments.clear()
    replays.calls.clear()
    with torch.no_grad():
        assert count_launches() == (1, 0) and count_launches() == (0, 1)
        replays.like = False
        assert count_launches()[0] == 1


# ---- capture
@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    def set_to(on: bool) -> None:
        for module in (inputs, attention_kernel):
            monkeypatch.setattr(module, "capturing", lambda: on)

    monkeypatch.setattr(attention_kernel, "_PINNED", {})
    return set_to


def test_a_cold_call_inside_of_a_capture_is_refused(launches: Launches, capture: Callable[[bool], None]) -> None:
    ids = torch.arange(N) // 10
    mask = make_mask(documents(ids))
    capture(True)
    with pytest.raises(CuirError, match="U415"):
        call(mask)
    capture(False)
    call(mask)
    capture(True)
    call(mask)
    assert len(attention_kernel._PINNED) == 1 and len(launches.arguments) == 2
    call(mask)
    assert len(attention_kernel._PINNED) == 1
    for cold in (
        lambda: call(mask, lambda s, b, h, q, k: s * 0.5),
        lambda: call(make_mask(documents(ids.clone()))),
        lambda: call(scale=2.0),
    ):
        with pytest.raises(CuirError, match="U415"):
            cold()
    ids.add_(1)
    with pytest.raises(CuirError, match="U415"):
        call(mask)
    assert len(launches.arguments) == 3


def test_a_call_that_is_made_again_inside_of_a_capture(launches: Launches, capture: Callable[[bool], None]) -> None:
    repeated, mask = Replays(), make_mask(documents(torch.arange(N) // 10))
    launches.replays = repeated
    for on in (False, False, True):
        capture(on)
        call(mask)
    assert [captured for _, captured in repeated.calls] == [False, True] and len(attention_kernel._PINNED) == 1


def test_a_mod_that_is_made_again_inside_of_a_capture(launches: Launches, capture: Callable[[bool], None]) -> None:
    ids = torch.arange(N) // 10
    for on in (False, True):
        capture(on)
        call(make_mask(documents(ids)), lambda s, b, h, q, k: s * 0.5)
    assert len(attention_kernel._PINNED) == 1


def test_the_explicit_form_inside_of_a_capture(launches: Launches, capture: Callable[[bool], None]) -> None:
    result = attention(documents(torch.arange(N) // 10), head_dim=64, verify="off")
    capture(True)
    with pytest.raises(CuirError, match="U415"):
        result(Q, K, V)
    capture(False)
    result(Q, K, V)
    capture(True)
    result(Q, K, V)
    assert len(attention_kernel._PINNED) == 1 and cuir.flex_attention is flex_attention
