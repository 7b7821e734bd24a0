"""Whatever holds what a mod reads, and however that changes: each call computes with what is there now, and a warm one is given only while nothing changed."""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import flex_attention as torch_flex

from cuir import create_block_mask, flex_attention
from cuir.attn.api import prepared_calls
from cuir.attn.capture import attention_request
from cuir.attn.capture.capture_keys import make_capture_key
from cuir.attn.capture.capture_walk import FUNCTIONS, Walk
from cuir.attn.kernels.attention_kernel import make_attention
from cuir.syntax.printer import show
from cuir.text.diagnostics import CuirError
from tests.attn.tracing.test_concrete_answers import Store, keeping

M = N = 24
Mod = Callable[..., Any]
Q, K, V = (torch.randn(1, 1, n, 64, generator=torch.Generator().manual_seed(n)).half() for n in (M, N, N + 1))
V = V[:, :, :N]
IDS = [torch.arange(N) // 5, torch.arange(N) % 3, torch.zeros(N, dtype=torch.int64)]


class Holder:
    """A mod, and how to exchange the tensor and the number that it reads. warm: whether a call may be remembered."""

    warm = True

    def __init__(self, mod: Mod, ids: Callable[[torch.Tensor], object], size: Callable[[int], object]):
        self.mod, self.ids, self.size = mod, ids, size


HOLDERS: dict[str, Callable[[], Holder]] = {}


def holder(make: Callable[[], Holder]) -> Callable[[], Holder]:
    HOLDERS[make.__name__] = make
    return make


def on(target: Any, mod: Mod) -> Holder:
    """Held as attributes of one thing."""
    return Holder(mod, lambda x: setattr(target, "ids", x), lambda n: setattr(target, "size", n))


class Instance:
    def __init__(self) -> None:
        self.ids, self.size = IDS[0], 3

    def __call__(self, b: Any, h: Any, q: Any, k: Any) -> Any:
        return (self.ids[q] == self.ids[k]) & (q - k <= self.size)

    def mod(self, b: Any, h: Any, q: Any, k: Any) -> Any:
        return self(b, h, q, k)

    @property
    def documents(self) -> torch.Tensor:
        return self.ids

    def read(self, b: Any, h: Any, q: Any, k: Any) -> Any:
        return (self.documents[q] == self.documents[k]) & (q - k <= getattr(self, "si" + "ze"))


@holder
def an_object() -> Holder:
    return on(result := Instance(), result)


@holder
def a_bound_method() -> Holder:
    return on(result := Instance(), result.mod)


@holder
def a_property() -> Holder:
    return on(result := Instance(), result.read)


@holder
def a_partial_of_an_object() -> Holder:
    result = Instance()
    return on(result, functools.partial(lambda holder, b, h, q, k: holder(b, h, q, k), result))


class Base:
    ids, size = IDS[0], 3

    def __call__(self, b: Any, h: Any, q: Any, k: Any) -> Any:
        return (self.ids[q] == type(self).ids[k]) & self.near(q, k)

    def near(self, q: Any, k: Any) -> Any:
        return q - k <= self.size


class Derived(Base):
    def __call__(self, b: Any, h: Any, q: Any, k: Any) -> Any:
        return super().__call__(b, h, q, k)

    @classmethod
    def of_class(cls, b: Any, h: Any, q: Any, k: Any) -> Any:
        return (cls.ids[q] == cls.ids[k]) & (q - k <= cls.size)

    @staticmethod
    def of_none(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (Derived.ids[q] == Base.ids[k]) & (q - k <= Derived.size)


def on_base(mod: Mod) -> Holder:
    for name in ("ids", "size"):
        if name in vars(Derived):
            delattr(Derived, name)
    return on(Base, mod)


@holder
def a_base_class() -> Holder:
    return on_base(Derived())


@holder
def a_class_that_hides_its_base() -> Holder:
    on_base(Derived())
    return on(Derived, Derived())


@holder
def a_class_method() -> Holder:
    return on_base(Derived.of_class)


@holder
def a_static_method() -> Holder:
    return on_base(Derived.of_none)


@holder
def methods_that_are_exchanged() -> Holder:
    def size(n: int) -> None:
        if n % 2:
            Base.near = lambda self, q, k: q - k <= n  # type: ignore[method-assign]
        else:
            Base.near = lambda self, q, k, s=n: q - k <= s  # type: ignore[misc]

    result = on_base(Derived())
    return Holder(result.mod, result.ids, size)


@dataclasses.dataclass(slots=True)
class Slots:
    ids: torch.Tensor
    size: int

    def __call__(self, b: Any, h: Any, q: Any, k: Any) -> Any:
        return (self.ids[q] == self.ids[k]) & (q - k <= self.size)


@holder
def slots() -> Holder:
    result = on(created := Slots(IDS[0], 3), created)
    result.warm = False  # no one can refer to it weakly
    return result


@holder
def slots_in_a_cell() -> Holder:
    slots = Slots(IDS[0], 3)
    return on(slots, lambda b, h, q, k: slots(b, h, q, k))


MODULE = types.ModuleType("of_a_user")
SOURCE = "def mod(b, h, q, k): return (ids[q] == ids[k]) & (q - k <= size)\ndef at(i): return ids[i]"
exec(SOURCE, MODULE.__dict__)


@holder
def a_module() -> Holder:
    return on(MODULE, lambda b, h, q, k: (MODULE.ids[q] == MODULE.at(k)) & (q - k <= MODULE.size))


@holder
def a_function_of_a_module() -> Holder:
    return on(MODULE, MODULE.mod)


@holder
def a_module_that_the_mod_imports() -> Holder:
    def mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        import of_a_user

        return (of_a_user.ids[q] == of_a_user.ids[k]) & (q - k <= of_a_user.size)

    result = on(MODULE, mod)
    result.warm = False
    return result


class Pair(NamedTuple):
    ids: torch.Tensor
    size: int


@holder
def a_named_tuple() -> Holder:
    pair = Pair(IDS[0], 3)

    def exchange(**values: Any) -> None:
        nonlocal pair
        pair = pair._replace(**values)

    return Holder(
        lambda b, h, q, k: (pair.ids[q] == pair.ids[k]) & (q - k <= pair.size), lambda x: exchange(ids=x), lambda n: exchange(size=n)
    )


class Open(dict[str, Any]):
    __getattr__ = dict.__getitem__


@holder
def a_dictionary_of_a_class() -> Holder:
    instance = Open(ids=IDS[0], size=3)
    return Holder(
        lambda b, h, q, k: (instance.ids[q] == instance["ids"][k]) & (q - k <= instance.size),
        lambda x: instance.update(ids=x),
        lambda n: instance.update(size=n),
    )


@holder
def containers() -> Holder:
    cell = {"tables": deque([IDS[0]]), "sizes": [3]}
    return Holder(
        lambda b, h, q, k: (cell["tables"][0][q] == cell["tables"][0][k]) & (q - k <= cell["sizes"][0]),
        lambda x: cell["tables"].__setitem__(0, x),
        lambda n: cell["sizes"].__setitem__(0, n),
    )


@holder
def a_torch_module() -> Holder:
    module = torch.nn.Linear(2, 2)
    module.requires_grad_(False).register_buffer("ids", IDS[0], persistent=False)
    return on(module, lambda b, h, q, k: (module.ids[q] == module.ids[k]) & (q - k <= module.size))


@holder
def attributes_of_a_function() -> Holder:
    def mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (mod.ids[q] == mod.ids[k]) & (q - k <= mod.size)  # type: ignore[attr-defined]

    return on(mod, mod)


@holder
def what_cannot_be_known() -> Holder:
    created = Instance()
    ref = weakref.ref(created)
    result = on(created, lambda b, h, q, k: (ref().ids[q] == ref().ids[k]) & (q - k <= ref().size))  # type: ignore[union-attr]
    result.size(3)
    result.warm, result.instance = False, created  # type: ignore[attr-defined]
    return result


IN_CONTEXT: ContextVar[Any] = ContextVar("IN_CONTEXT")


@holder
def a_context_variable() -> Holder:
    IN_CONTEXT.set(created := Instance())
    result = on(created, lambda b, h, q, k: (IN_CONTEXT.get().ids[q] == IN_CONTEXT.get().ids[k]) & (q - k <= IN_CONTEXT.get().size))
    result.warm = False
    return result


@holder
def a_cache() -> Holder:
    """Of which nothing is known but the function that filled it."""
    new = [IDS[0]]
    table = functools.lru_cache(new.pop)
    sizes = {"size": 3}

    def exchange(x: torch.Tensor) -> None:
        table.cache_clear()
        new[:] = [x]
        table()

    result = Holder(lambda b, h, q, k: (table()[q] == table()[k]) & (q - k <= sizes["size"]), exchange, lambda n: sizes.update(size=n))
    result.warm = False
    return result


def close(result: torch.Tensor, ids: torch.Tensor, size: int) -> None:
    q, k = torch.arange(M)[:, None], torch.arange(N)
    s = (Q.float() @ K.float().mT * 0.125).masked_fill(~((ids[q] == ids[k]) & (q - k <= size)), -torch.inf)
    torch.testing.assert_close(result.float(), s.softmax(-1).nan_to_num() @ V.float(), atol=3e-3, rtol=1e-2)


PROGRAMS: dict[Any, Any] = {}


def make_once(spec: Any, owner: Any, form: Any, level: Any, traced: Any) -> Any:
    """Programs are the same for all holders, and cost most of the time."""
    key = show(traced.keep), tuple((p.name, p.dtype, p.rank) for p in traced.parameters)
    if key not in PROGRAMS:
        PROGRAMS[key] = make_attention(spec, owner, form, level, traced)
    return PROGRAMS[key]


STEPS = st.one_of(
    st.tuples(st.sampled_from(["tensor", "written", "memory"]), st.integers(0, len(IDS) - 1)),
    st.tuples(st.just("size"), st.sampled_from([2, 3])),
    st.tuples(st.just("nothing"), st.just(0)),
)


@pytest.mark.sweep
@pytest.mark.parametrize("name", HOLDERS)
@settings(max_examples=1)
@example([("written", 1), ("tensor", 2), ("size", 2), ("memory", 1)])
@given(st.lists(STEPS, min_size=2, max_size=4))
def test_each_call_computes_with_what_is_there(name: str, steps: list[tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "of_a_user", MODULE)
        patch.setattr(Base, "near", Base.near)
        for attribute in ("ids", "size"):
            patch.setattr(Base, attribute, getattr(Base, attribute))
        patch.setattr(prepared_calls, "make_attention", make_once)
        walks: list[Any] = []
        patch.setattr(attention_request, "make_capture_key", lambda *mods: walks.append(mods) or make_capture_key(*mods))
        contents = HOLDERS[name]()
        ids, size = IDS[0].clone(), 3
        contents.ids(ids)
        contents.size(size)
        mask = create_block_mask(contents.mod, None, None, M, N)

        def call() -> torch.Tensor:
            return flex_attention(Q, K, V, None, mask, backend="interpret", verify="off")  # type: ignore[no-any-return]

        close(call(), ids, size)
        for kind, value in steps:
            if kind == "size":
                size = value
                contents.size(size)
            elif kind == "tensor":
                ids = IDS[value].clone()
                contents.ids(ids)
            elif kind == "written":
                ids.copy_(IDS[value])
            elif kind == "memory":
                ids.data = IDS[value].clone()
            close(call(), ids, size)
        count = len(walks)
        close(call(), ids, size)
        assert len(walks) == count or not contents.warm or isinstance(contents.mod, types.MethodType)


def test_a_value_that_a_mod_kept_is_refused_in_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "slope", None)
    q = torch.randn(1, 1, 16, 64, dtype=torch.float16)
    for gain in (2.0, 3.0):
        with pytest.raises(CuirError) as raised:
            flex_attention(q, q, q, score_mod=keeping(gain), backend="interpret")
        assert raised.value.diagnostics[0].code == "X122" and "earlier call" in raised.value.diagnostics[0].message


# ---- modules
class Calling(torch.nn.Module):
    """A module as they are written: its forward calls flex_attention, with a mod that holds the module."""

    def __init__(self) -> None:
        super().__init__()
        self.bias, self.inner = torch.nn.Parameter(torch.randn(N), requires_grad=False), torch.nn.Linear(4, 4)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + self.bias[j], backend="interpret")  # type: ignore[no-any-return]


def test_the_walk_does_not_go_through_this_package() -> None:
    """Which a module's forward reads."""
    module, visits = Calling(), []
    walked = Walk.visit_function
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Walk, "visit_function", lambda self, value, path: (visits.append(value.__module__), walked(self, value, path))[1])
        for _ in range(3):
            module.bias.data.add_(torch.randn(N))
            expected = torch_flex(Q.double(), K.double(), V.double(), score_mod=lambda s, b, h, i, j: s + module.bias[j])
            torch.testing.assert_close(module(Q, K, V).double(), expected, rtol=6e-3, atol=6e-3)
    assert visits and set(visits) == {__name__}
    assert make_capture_key(lambda s, b, h, i, j: s + module.bias[j]).comparable


def far(n: int) -> types.SimpleNamespace:
    """An object from which n functions can be reached."""
    functions = [eval(f"lambda x: x + {i}") for i in range(n)]
    return types.SimpleNamespace(bias=torch.randn(N), functions=functions)


def test_what_leads_too_far_is_traced_in_each_call() -> None:
    function = far(FUNCTIONS + 1)
    mod = lambda s, b, h, i, j: s + function.bias[j]  # noqa: E731
    for _ in range(2):
        function.bias = torch.randn(N)
        with pytest.warns(UserWarning, match="test_capture_walk.py:[0-9]+: what this mod holds leads to more than"):
            actual = flex_attention(Q, K, V, score_mod=mod, backend="interpret")
        expected = torch_flex(Q.double(), K.double(), V.double(), score_mod=mod)
        torch.testing.assert_close(actual.double(), expected, rtol=6e-3, atol=6e-3)
