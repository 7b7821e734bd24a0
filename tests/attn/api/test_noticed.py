"""Whatever a mod reads, in whatever way: once that is exchanged, nobody takes the mods for the same, and what is traced anew is not taken for what was.

Properties that mods read, in a graph of torch.compile: one that is replaced in its class is noticed, and nothing else makes another graph.
"""

from __future__ import annotations

import builtins
import dataclasses
import enum
import functools
import math
import operator
import os
import sys
import types
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from cuir import flex_attention
from cuir.attn.capture.capture_keys import MutationGuard, make_capture_key
from cuir.attn.capture.capture_walk import attributes_read, reads_elsewhere
from cuir.attn.splicing.captured_arguments import Cache
from cuir.attn.tracing.user_objects import globals_read

Reads = Callable[[], Any]
CASES: dict[str, Callable[[], tuple[Any, Callable[[], Any]]]] = {}
FACTOR = 3


def case(make: Callable[[], tuple[Any, Callable[[], Any]]]) -> Callable[[], tuple[Any, Callable[[], Any]]]:
    """Return a case of a mod's callee, and how the callee's result is exchanged."""
    CASES[make.__name__] = make
    return make


def factor(value: int) -> None:
    globals()["FACTOR"] = value


@pytest.fixture
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch, "size_of_a_user", 3, raising=False)
    monkeypatch.setenv("SIZE_OF_A_USER", "3")
    monkeypatch.setitem(sys.modules, "module_of_a_user", types.ModuleType("module_of_a_user"))
    monkeypatch.setattr(builtins, "size_of_a_user", 3, raising=False)
    factor(3)
    yield
    globals().pop("min", None)


@case
def an_entry_that_is_gone() -> Any:
    sizes = [3, 4]
    return lambda: sum(sizes), sizes.pop


@case
def an_attribute_that_is_gone() -> Any:
    instance = types.SimpleNamespace(size=3)
    return lambda: getattr(instance, "size", 4), lambda: delattr(instance, "size")


@case
def a_slot_that_is_filled() -> Any:
    class Slots:
        __slots__ = ("size",)

    instance = Slots()
    return lambda: instance.size if hasattr(instance, "size") else 3, lambda: setattr(instance, "size", 4)


@case
def the_order_of_a_dictionary() -> Any:
    sizes = OrderedDict(a=3, b=4)
    return lambda: next(iter(sizes.values())), lambda: sizes.move_to_end("a")


@case
def kinds_of_keys() -> Any:
    cell = [{1: 3, "1": 4}]
    return lambda: cell[0][1], lambda: cell.__setitem__(0, {"1": 3, 1: 4})


@case
def functions_as_keys() -> Any:
    size = 3

    def read() -> int:
        return size

    def change() -> None:
        nonlocal size
        size = 4

    weights = {read: 1}
    return lambda: sum(f() for f in weights), change


@case
def the_order_of_a_set() -> Any:
    cell = [{0, 8}]
    return lambda: next(iter(cell[0])), lambda: cell.__setitem__(0, {8, 0})


@case
def a_factory_of_entries() -> Any:
    sizes = defaultdict(lambda: 3)
    return lambda: sizes.copy()["size"], lambda: setattr(sizes, "default_factory", lambda: 4)


class Config:
    size = 3


@case
def attributes_by_another_name_of_getattr() -> Any:
    read = getattr
    return lambda: read(Config, "size"), lambda: setattr(Config, "size", Config.size + 1)


@case
def attributes_by_a_partial() -> Any:
    read = functools.partial(getattr, Config, "size")
    return lambda: read(), lambda: setattr(Config, "size", Config.size + 1)


@case
def attributes_by_a_getter() -> Any:
    get = operator.attrgetter
    return lambda: get("size")(Config), lambda: setattr(Config, "size", Config.size + 1)


@case
def attributes_by_the_type() -> Any:
    return lambda: type.__getattribute__(Config, "size"), lambda: setattr(Config, "size", Config.size + 1)


@case
def the_modules_of_the_process() -> Any:
    return lambda: sys.modules["module_of_a_user"].__name__, lambda: setattr(sys.modules["module_of_a_user"], "__name__", "other")


@case
def the_environment() -> Any:
    return lambda: int(os.environ["SIZE_OF_A_USER"]), lambda: os.environ.update(SIZE_OF_A_USER="4")


@case
def a_library() -> Any:
    return lambda: torch.size_of_a_user, lambda: setattr(torch, "size_of_a_user", 4)  # type: ignore[attr-defined]


@case
def a_builtin() -> Any:
    return lambda: size_of_a_user, lambda: setattr(builtins, "size_of_a_user", 4)  # type: ignore[name-defined]  # noqa: F821


@case
def a_global_that_hides_a_builtin() -> Any:
    return lambda: min(3, 4), lambda: globals().update(min=max)


@case
def make_evaluated_text() -> Any:
    return lambda: eval("FACTOR"), lambda: factor(4)


@case
def the_body_of_a_class() -> Any:
    def read() -> int:
        class Sized:
            size = FACTOR

        return Sized.size

    return read, lambda: factor(4)


@case
def a_cache() -> Any:
    sizes = {"size": 3}
    read = functools.lru_cache(lambda: sizes["size"])
    read()
    sizes["size"] = 4
    return lambda: read(), read.cache_clear


@case
def attributes_of_a_text() -> Any:
    class Text(str):
        def read(self) -> int:
            return self.size  # type: ignore[attr-defined, no-any-return]

    text = Text("a")
    text.size = 3  # type: ignore[attr-defined]
    return lambda: text.read(), lambda: setattr(text, "size", 4)


@case
def members_of_an_enumeration() -> Any:
    class Mode(enum.Enum):
        WIDE = 1

        def __init__(self, value: int) -> None:
            self.size = value

    return lambda: Mode["WIDE"].size, lambda: setattr(Mode.WIDE, "size", 4)


@case
def what_a_module_makes_up() -> Any:
    module = types.ModuleType("lazy")
    exec("sizes = {'size': 3}\ndef __getattr__(name): return sizes[name]", module.__dict__)
    return lambda: module.size, lambda: module.sizes.update(size=4)


@case
def a_property_of_a_class_of_its_own() -> Any:
    class CustomProperty(property):
        def __get__(self, owner: Any, of: Any = None) -> Any:
            return FACTOR

    class Sized:
        size = CustomProperty()

    instance = Sized()
    return lambda: instance.size, lambda: factor(4)


@case
def an_operator_that_is_added() -> Any:
    class Sized:
        pass

    instance = Sized()
    return lambda: 3 if instance else 4, lambda: setattr(Sized, "__bool__", lambda self: False)


@case
def other_bases() -> Any:
    class Base:
        size = 3

    class Two:
        size = 4

    class Derived(Base):
        pass

    return lambda: Derived.size, lambda: setattr(Derived, "__bases__", (Two,))


@case
def a_class_that_says_it_is_of_python() -> Any:
    cls = dataclasses.make_dataclass("Made", [("size", int, 3)])
    cls.__module__ = "types"
    return lambda: cls.size, lambda: setattr(cls, "size", 4)


@case
def the_forward_of_a_module() -> Any:
    class Net(torch.nn.Module):
        def forward(self) -> int:
            return FACTOR

    net = Net()
    return lambda: net(), lambda: factor(4)


@case
def items_of_a_class() -> Any:
    class Sized:
        def __class_getitem__(cls, name: str) -> int:
            return FACTOR

    return lambda: Sized["size"], lambda: factor(4)


@case
def an_object_made_of_another() -> Any:
    @dataclasses.dataclass
    class Sized:
        size: int

        def __post_init__(self) -> None:
            self.more = self.size + FACTOR

    instance = Sized(1)
    return lambda: dataclasses.replace(instance, size=2).more, lambda: factor(4)


@case
def an_object_as_text() -> Any:
    class Sized:
        def __str__(self) -> str:
            return str(FACTOR)

    instance = Sized()
    return lambda: int(f"{instance}"), lambda: factor(4)


@case
def another_dictionary_of_a_function() -> Any:
    def read() -> int:
        return read.size  # type: ignore[attr-defined, no-any-return]

    read.size = 3  # type: ignore[attr-defined]
    return read, lambda: setattr(read, "__dict__", {"size": 4})


@case
def another_function_of_a_partial() -> Any:
    read = functools.partial(lambda size: size, 3)
    return lambda: read(), lambda: read.__setstate__((read.func, (4,), {}, None))  # type: ignore[attr-defined]


@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize("name", CASES)
def test_what_is_exchanged_is_noticed(name: str) -> None:
    read, change = CASES[name]()
    mod = lambda b, h, q, k: q - k <= read()  # noqa: E731
    first, before = read(), make_capture_key(mod, None)
    same = MutationGuard(before, (mod, None), lambda dead: None)
    assert not before.comparable or same.holds(mod, None)
    change()
    assert read() != first
    assert not before.comparable or not same.holds(mod, None)
    after = make_capture_key(mod, None)
    assert not after.comparable or (after.structure, after.values) != (before.structure, before.values)


@pytest.mark.usefixtures("as_before")
def test_functions_of_libraries_can_be_known() -> None:
    functional = torch.nn.functional
    for mod in (
        lambda s, b, h, q, k: torch.where(q >= k, s.to(torch.float32), -torch.inf),
        lambda s, b, h, q, k: functional.softplus(s) * np.pi + math.log2(np.max([8])),
        lambda s, b, h, q, k: s * len(str(3)) * max(3, abs(-2)) + sum(range(3)),
    ):
        assert make_capture_key(None, mod).comparable
    assert not make_capture_key(None, lambda s, b, h, q, k: torch.ops.aten.tanh(s)).comparable


@pytest.mark.usefixtures("as_before")
def test_mods_that_are_containers() -> None:
    class Sizes(dict[str, int]):
        def __call__(self, b: Any, h: Any, q: Any, k: Any) -> Any:
            return q - k <= self["size"]

    mod = Sizes(size=3)
    same = MutationGuard(make_capture_key(mod, None), (mod, None), lambda dead: None)
    assert same.holds(mod, None)
    mod["size"] = 4
    assert not same.holds(mod, None)
    mod.clear()
    assert not same.holds(mod, None)


@pytest.mark.usefixtures("as_before")
def test_what_is_held_weakly_may_die(collect: Callable[[], int]) -> None:
    references: Any = weakref.WeakValueDictionary(size=(result := Config()))
    mod = lambda b, h, q, k: q - k <= (4 if references.get("size") is None else 3)  # noqa: E731
    owner = make_capture_key(mod, None)
    del result
    collect()
    assert not owner.comparable and "size" not in references


MEMORY: dict[str, Callable[[torch.Tensor], Any]] = {
    "written to": lambda t: t.add_(1),
    "given other memory": lambda t: setattr(t, "data", torch.arange(16).view(4, 4)),
    "turned": lambda t: setattr(t, "data", t.data.t()),
    "of another dtype": lambda t: setattr(t, "data", t.data.view(torch.float64)),
}


def free(t: torch.Tensor) -> None:
    """Given the same place again, if there is nobody who holds it."""
    place, shape = t.data_ptr(), t.shape
    t.data = torch.empty(0, dtype=t.dtype)
    tried = []
    while len(tried) < 100:
        tried.append(torch.zeros(shape, dtype=t.dtype))
        if tried[-1].data_ptr() == place:
            break
    t.data = tried[-1]


@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize("name", [*MEMORY, "given the same place"])
def test_other_memory_is_noticed(name: str) -> None:
    change = MEMORY.get(name, free)
    t = torch.arange(16).view(4, 4).clone()
    mod = lambda b, h, q, k: t[q, k] > 0  # noqa: E731
    same, cache = MutationGuard(make_capture_key(mod, None), (mod, None), lambda dead: None), Cache()
    calls: list[Any] = []
    cache.get("key", {"t": t}, lambda: calls.append(0) or {})
    assert same.holds(mod, None)
    change(t)
    cache.get("key", {"t": t}, lambda: calls.append(0) or {})
    assert not same.holds(mod, None) and len(calls) == 2


@pytest.mark.usefixtures("as_before")
def test_zeros_have_signs() -> None:
    cache = Cache()
    for value in (0.0, -0.0, torch.zeros(2), -torch.zeros(2)):
        entry = cache.get("key", {"t": value}, lambda value=value: {"t": value})  # type: ignore[misc]
        assert entry["t"] is value


@pytest.mark.usefixtures("as_before")
def test_code_that_is_made_anew_is_forgotten() -> None:
    for i in range(5000):
        expected_values: dict[str, Any] = {}
        exec(f"def mod(b, h, q, k): return q - k <= {i}", expected_values)
        if i % 100 == 0:
            make_capture_key(expected_values["mod"])
        else:
            globals_read(expected_values["mod"].__code__)
    for cached in (globals_read, attributes_read, reads_elsewhere):
        info = cached.cache_info()
        assert info.maxsize is not None and info.currsize <= info.maxsize


Q, K, V = (torch.randn(1, 1, 16, 16).half() for _ in range(3))


class Base:
    @property
    def size(self) -> float:
        return 3.0


class Custom:
    @property
    def size(self) -> float:
        return 3.0


class Inherited(Base):
    pass


class Nearer(Base):
    @property
    def size(self) -> float:
        return Base.size.__get__(self) + 1.0


def make_property(size: float) -> property:
    return property(lambda self: size)


@pytest.mark.sweep(4)
@pytest.mark.parametrize(("result", "changed"), [(Custom, Custom), (Inherited, Base), (Nearer, Nearer), (Nearer, Base)])
def test_a_property_that_is_replaced_is_noticed(result: type, changed: type, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    initial, graphs = result(), 0

    def backend(graph: Any, inputs: Any) -> Callable[..., Any]:
        nonlocal graphs
        graphs += 1
        return graph.forward  # type: ignore[no-any-return]

    def score(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * initial.size

    def call() -> torch.Tensor:
        return flex_attention(Q, K, V, score, backend="interpret", verify="off")  # type: ignore[no-any-return]

    compiled = torch.compile(call, backend=backend, fullgraph=True)
    before = compiled()
    assert torch.equal(compiled(), before) and graphs == 1
    monkeypatch.setattr(changed, "size", make_property(0.25))
    after = compiled()
    assert torch.equal(after, call()) and not torch.equal(after, before) and graphs == 2
