"""Results about a checked kernel that other modules compute once and keep with it.

`keep_with_kernel` keeps the results of a function of the kernel; a `ResultKey` is for results that are made elsewhere.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True)
class ResultKey(Generic[T]):
    """Key of results of one type; `name` is unique."""

    name: str


class SameObject:
    """An object as a part of a key, which is equal to no other object. It is kept alive."""

    __slots__ = ("of",)

    def __init__(self, of: object):
        self.of = of

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameObject) and self.of is other.of

    def __hash__(self) -> int:
        return id(self.of)


class KernelResults:
    """Table of the results about one kernel.

    It lives as long as the kernel, and is neither copied nor stored.
    """

    def __init__(self) -> None:
        self.by_name: dict[tuple[object, ...], Any] = {}

    def find(self, key: ResultKey[T], *of: Hashable) -> T | None:
        """Return the cached result for a key and its further dependencies; None if there is none yet."""
        result: T | None = self.by_name.get((key, *of))
        return result

    def store(self, key: ResultKey[T], result: T, *of: Hashable) -> T:
        """Keep a result, and return it."""
        self.by_name[key, *of] = result
        return result

    def values(self, key: ResultKey[T]) -> list[T]:
        """Return all cached results of a key, for whatever further dependencies."""
        return [result for name, result in self.by_name.items() if name[0] == key]

    def __reduce__(self) -> tuple[type[KernelResults], tuple[()]]:
        return KernelResults, ()


class HasResults(Protocol):
    """A checked kernel, as far as its results go."""

    @property
    def results(self) -> KernelResults: ...


K = TypeVar("K", bound=HasResults)


def keep_with_kernel(function: Callable[Concatenate[K, P], T]) -> Callable[Concatenate[K, P], T]:
    """Keep the results of a function of a kernel, and of hashable arguments, with the kernel."""

    @functools.wraps(function)
    def compute_once(checked: K, /, *args: P.args, **kwargs: P.kwargs) -> T:
        results, name = checked.results.by_name, (function, *args, *kwargs.items())
        if name not in results:
            results[name] = function(checked, *args, **kwargs)
        result: T = results[name]
        return result

    return compute_once


__all__ = ["KernelResults", "ResultKey", "SameObject", "keep_with_kernel"]
