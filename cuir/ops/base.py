"""Entries of the table of primitives, and the registry.

An entry describes all of a primitive: name, parameters, typing rule, effects on memory and barriers and traits as
data, features that it needs, documentation, and for an operation on numbers its function (`evaluate`, see
cuir/ops/meaning). `cuir/interp/ops` and the printers of the lowering register how an entry runs by its name; all other
code uses effects and traits (traits.py), never a name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypedDict, Unpack

from ..syntax.types import Type
from .limits import Target, list_architectures
from .meaning import Meaning
from .traits import Traits

Group = str  # of asynchronous operations of a worker that its waits or commits finish together
MemoryEffect = Literal["none", "read", "write"]
PRODUCTS: Group = "wgmma"  # group of asynchronous products, which finish in the order of their issue


@dataclass(frozen=True)
class Access:
    """One access to memory by a call.

    `late`: done by an engine at any time from issue until retired, not by the worker now.
    """

    arg: str
    mode: Literal["read", "write", "add"]
    proxy: str  # one of PROXIES of sync/accesses.py
    late: bool = False


@dataclass(frozen=True)
class Effects:
    """Effects of a call on memory and synchronisation; arguments are named, never positions.

    completes: the barrier argument through which late accesses are retired: those of the call, or, of a call that
        commits a group, of all earlier operations of the group. The barrier counts an arrival when these are over.
    """

    accesses: tuple[Access, ...] = ()
    completes: str | None = None  # a barrier argument: the landing subtracts its bytes there, or arrives
    group: Group | None = None  # late accesses belong to this group of the issuing worker
    drains: Group | None = None  # waits for groups
    commits: Group | None = None
    arrives: str | None = None  # a barrier argument
    expects: str | None = None  # the argument with the bytes that the phase then waits for too
    waits: str | None = None  # a barrier argument
    fences: bool = False  # makes the worker's ordinary writes visible to the async proxy
    joins: bool = False  # every worker of the CTA

    @property
    def releases(self) -> bool:
        """True if it arrives at once, and neither waits nor announces bytes."""
        return self.arrives is not None and self.waits is None and self.expects is None and self.completes is None

    @property
    def memory(self) -> MemoryEffect:
        """The effect on memory: "write" if others may observe it, by accesses or by synchronisation."""
        if any(a.mode != "read" or a.late for a in self.accesses) or self.fences or self.joins:
            return "write"
        if self.arrives or self.waits or self.drains or self.commits or self.group:
            return "write"
        return "read" if self.accesses else "none"

    def proxy(self, arg: str) -> str:
        """Return the proxy through which an argument is accessed."""
        return next(a.proxy for a in self.accesses if a.arg == arg)


@dataclass(frozen=True)
class Param:
    """A parameter of a primitive.

    `default` is the meaning of leaving it out, as text for the reference ("" : it is required).
    """

    name: str
    description: str  # for the reference and for errors: "tile", "Shared view", "const i32", ...
    default: str = ""
    keyword: bool = False  # only by name
    variadic: bool = False  # takes all remaining positional arguments, bound as name0, name1, ...


class CallContext(Protocol):
    """The view of a call that a typing rule has (implemented by the checker)."""

    @property
    def target(self) -> Target: ...  # of the kernel
    def has(self, arg: str) -> bool: ...
    def type(self, arg: str) -> Type: ...
    def const(self, arg: str) -> Any: ...  # the known value, or None after reporting that it must be known
    def is_subscript(self, arg: str) -> bool: ...
    def error(self, code: str, message: str, arg: str | None = None, hint: str | None = None) -> Type: ...
    def variadic(self, arg: str) -> list[str]: ...


Rule = Callable[[Any], Type]


@dataclass(frozen=True)
class Op:
    """An entry of the table."""

    name: str  # unique: "mma_async", "mbarrier.wait", "copy_async.bulk"
    family: str
    params: tuple[Param, ...]
    rule: Rule = field(repr=False, compare=False)
    doc: str = field(repr=False)
    effects: Effects = Effects()
    needs: tuple[str, ...] = ()  # features of the architectures that have it (limits.py)
    where: Literal["role", "declaration", "any"] = "role"
    spelling: str = ""  # the word in the text, if not its name ("copy_async")
    workers: tuple[int, ...] = (32, 128)  # threads of the workers that may call it
    evaluate: Meaning | None = None  # function of an operation on numbers; None: it depends on more than numbers
    smallest: float = 0.0  # results that are smaller in magnitude may be 0
    sums: bool = False  # adds many numbers, in no fixed order
    reduces: bool = False  # its result depends on more than the same element of its operands
    traits: Traits = Traits()

    @functools.cached_property
    def memory_effect(self) -> MemoryEffect:
        """Effect of a call on memory; "none": its result depends on the operands alone."""
        return self.effects.memory

    @property
    def speculatable(self) -> bool:
        """True if it may be computed where the program does not: no effect, and no divisor that may be 0."""
        return self.memory_effect == "none" and not self.traits.divides_integers

    @property
    def ulps(self) -> int:
        """Units in the last place of f32 by which a result may differ from the exact one; 0: rounded once."""
        return 0 if self.evaluate is None else self.evaluate.ulps

    @property
    def archs(self) -> tuple[str, ...]:
        """The architectures that have it."""
        return list_architectures(*self.needs)

    @property
    def written(self) -> str:
        return self.spelling or self.name

    def signature(self) -> str:
        parts, star = [], False
        for p in self.params:
            if p.keyword and not star:
                star = True
            parts.append(("..." if p.variadic else "") + p.name + (f"={p.default}" if p.default else ""))
        return f"{self.written}({', '.join(parts)})"


TABLE: dict[str, Op] = {}
OPERATORS: dict[str, Op] = {}
WRITTEN: dict[str, list[Op]] = {}  # primitives by their word in the text


class OpFields(TypedDict, total=False):
    """Fields of `Op` that have a default."""

    effects: Effects
    needs: tuple[str, ...]
    where: Literal["role", "declaration", "any"]
    spelling: str
    workers: tuple[int, ...]
    evaluate: Meaning | None
    smallest: float
    sums: bool
    reduces: bool
    traits: Traits


def op(
    name: str,
    family: str,
    *params: Param,
    doc: str,
    operator: bool = False,
    **fields: Unpack[OpFields],
) -> Callable[[Rule], Rule]:
    """Enter a primitive whose typing rule is the decorated function.

    `fields` are those of `Op`. A duplicate name is an internal error.
    """

    def enter(rule: Rule) -> Rule:
        table = OPERATORS if operator else TABLE
        if name in table:
            raise ValueError(f"primitive {name} is defined twice")
        entry = table[name] = Op(name, family, params, rule, doc, **fields)
        if not operator:
            WRITTEN.setdefault(entry.written.removeprefix("with "), []).append(entry)
        return rule

    return enter
