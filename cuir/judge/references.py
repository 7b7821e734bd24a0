"""The reference of a judgement: a PyTorch module or function with its inputs, in KernelBench's form, at several sizes."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType, ModuleType

import torch

from ..spec.loading import import_file
from ..spec.user_calls import user_call
from ..text.diagnostics import CuirError
from ..text.source import function_span, user_span

Size = int | tuple[int, ...]
Sizes = Mapping[str, Size]
SMALL = 16  # sizes up to here are kernel sizes, heads, groups: they stay
ODD = (37, 29, 41, 23, 31, 43)
EVEN = 32
LONG = 1088  # beyond the threads of a CTA
SPARE = 3  # elements along other dims of a long problem
RUN_ELEMENTS = 12_000  # of the inputs and outputs of a problem that runs whole
SAMPLED_ELEMENTS = 6_000_000  # of a problem of which some CTAs run
CAPS = (65536, 8192, 2048, 1024, 512, 256)  # of its sizes


@dataclass(frozen=True)
class SizedProblem:
    """The reference at one choice of sizes.

    Attributes:
        init: Arguments of the module.
        model: The module, or the function.
        name: What is special about the sizes.
        within: Context in which the numbers of the file are these sizes.
        draw: Returns inputs, by a seed.
    """

    name: str
    sizes: Sizes
    init: list[object]
    model: Callable[..., object]
    within: Callable[[], contextlib.AbstractContextManager[None]] = field(repr=False)
    draw: Callable[[int], list[object]] = field(repr=False)

    def __str__(self) -> str:
        told = ", ".join(f"{n}={v}" for n, v in self.sizes.items())
        return f"{self.name} sizes ({told})" if told else f"{self.name} sizes"

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """Return the parameters of the module."""
        return dict(self.model.state_dict()) if isinstance(self.model, torch.nn.Module) else {}

    def vary_parameters(self) -> SizedProblem:
        """Return the problem with other numbers in place of parameters that are all ones or all zeros."""
        if not isinstance(self.model, torch.nn.Module):
            return self
        model, generator = copy.deepcopy(self.model), torch.Generator().manual_seed(0)
        for x in model.parameters():
            if x.is_floating_point() and x.numel() > 1 and bool((x == x.reshape(-1)[0]).all()):
                x.data += 0.5 * torch.rand(x.shape, generator=generator).to(x.dtype)
        return replace(self, model=model)

    def evaluate(self, inputs: Sequence[object]) -> list[torch.Tensor]:
        """Return the outputs for copies of inputs; floats in float64 if an input of the first kind is."""
        copies = [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]
        return self.evaluate_in_place(copies)

    def evaluate_in_place(self, inputs: Sequence[object]) -> list[torch.Tensor]:
        """Return the outputs; the reference may write to the inputs. Raises CuirError X106, X113."""
        model = self.model
        if isinstance(model, torch.nn.Module):
            is_double = any(isinstance(x, torch.Tensor) and x.dtype == torch.float64 for x in inputs)
            model = copy.deepcopy(model)
            model = model.double() if is_double else model
        with self.within():
            results = call_reference(model, inputs)
        outputs = list(results) if isinstance(results, (tuple, list)) else [results]
        if not all(isinstance(x, torch.Tensor) for x in outputs):
            raise CuirError.of("X106", "the reference returns something else than tensors", None, "a tensor, or a tuple of them")
        return [x.detach() for x in outputs if isinstance(x, torch.Tensor)]


def call_reference(model: Callable[..., object], inputs: Sequence[object]) -> object:
    """Call the reference's code. Raises CuirError X113."""
    function = model.forward if isinstance(model, torch.nn.Module) else model
    try:
        with user_call("the reference", function), torch.no_grad():
            return model(*inputs)
    except CuirError:
        raise
    except Exception as error:  # a user's function may raise anything
        message = f"the reference fails: {type(error).__name__}: {error}"
        raise CuirError.of("X113", message, user_span(error) or function_span(function)) from error


class Reference:
    """A reference file: `Model` with `get_inputs` and `get_init_inputs`, or a function with `get_inputs`.

    Raises CuirError X111 to X113.
    """

    def __init__(self, path: Path):
        if not path.is_file():
            raise CuirError.of("X111", f"no file `{path}`", hint="the path is relative to the current folder")
        self.path, self.module = path, import_file(path, "the reference")
        self.get_inputs = self._find("get_inputs", "inputs")
        self.get_init: Callable[[], Iterable[object]] = getattr(self.module, "get_init_inputs", list)
        self.target = self._find("Model", "reference", path.stem)
        self.given = find_sizes(self.module, self.get_inputs, self.get_init)

    def _find(self, *names: str) -> Callable[..., object]:
        """Return what the file has under the first of some names. Raises CuirError X112."""
        found = next((getattr(self.module, n) for n in names if callable(getattr(self.module, n, None))), None)
        if found is None:
            raise CuirError.of(
                *("X112", f"`{self.path}` has no `{names[0]}`", None),
                "a reference has a module `Model` or a function `reference`, and a function `get_inputs`",
            )
        return found

    @contextlib.contextmanager
    def _use_sizes(self, sizes: Sizes) -> Iterator[None]:
        """Give the file other sizes within a block. Raises CuirError X113 for what the file raises."""
        vars(self.module).update(sizes)
        try:
            with user_call("the reference", self.get_inputs):
                yield
        except CuirError:
            raise
        except Exception as error:  # a user's file may raise anything
            message = f"the reference fails at {dict(sizes)}: {type(error).__name__}: {error}"
            raise CuirError.of("X113", message, user_span(error)) from error
        finally:
            vars(self.module).update(self.given)

    def make_problem(self, name: str, sizes: Sizes) -> SizedProblem:
        """Return the reference at some sizes. Raises CuirError X113 if it does not take them."""
        with self._use_sizes(sizes):
            init = list(self.get_init())
            model: Callable[..., object] = self.target
            if isinstance(self.target, type):
                torch.manual_seed(0)
                model = self.target(*init)

        def draw(seed: int) -> list[object]:
            with self._use_sizes(sizes):
                torch.manual_seed(seed)
                drawn = self.get_inputs()
            return list(drawn) if isinstance(drawn, (list, tuple)) else [drawn]

        return SizedProblem(name, dict(sizes), init, model, functools.partial(self._use_sizes, sizes), draw)

    def list_problems(self) -> tuple[list[SizedProblem], SizedProblem | None, list[str]]:
        """Return problems that run whole, a large one of which CTAs are sampled, and what is not tried.

        Raises CuirError X113 if the reference fails at the sizes that its file has.
        """
        taken, skipped = list[SizedProblem](), list[str]()
        large: SizedProblem | None = None
        whole = self._fit("given", self.given, SAMPLED_ELEMENTS)
        if whole is not None and (self.count_elements(self.given) or 0) <= RUN_ELEMENTS:
            taken.append(whole)
        elif whole is not None:
            large = whole
        else:
            told = ", ".join(f"{n}={v}" for n, v in self.given.items())
            skipped.append(f"the given sizes ({told})")
            tried = (self._fit("large", scale_sizes(self.given, cap), SAMPLED_ELEMENTS) for cap in CAPS if self.given)
            large = next((p for p in tried if p is not None), None)
        for name, choices in self._list_choices():
            fitting = next((p for sizes in choices if (p := self._fit(name, sizes, RUN_ELEMENTS)) is not None), None)
            if fitting is None:
                skipped.append(f"{name} sizes: the reference does not take them, or they are too large")
            elif all(fitting.sizes != p.sizes for p in taken):
                taken.append(fitting)
        return taken, large, skipped

    def _list_choices(self) -> Iterator[tuple[str, Iterator[Sizes]]]:
        """Yield names of sizes, and choices of which the first is taken that fits."""
        given = self.given
        names = [n for n in given if largest(given[n]) > SMALL]
        if not names:
            return
        yield "small", (scale_sizes(given, cap) for cap in (EVEN, 16, 8))
        yield "odd", itertools.chain((make_odd(given, names, cap) for cap in (EVEN, 16, 8)), (make_odd(given, [n], 32) for n in names))
        for n in names:
            if largest(given[n]) > EVEN:
                choices = ((length, spare) for length in (LONG + 1, LONG) for spare in (SPARE, 8, 16))
                yield f"long {n}", (self._make_long(n, *choice) for choice in choices)
        yield "least", iter([{n: (1 if n in names and isinstance(v, int) else v) for n, v in given.items()}])

    def _make_long(self, name: str, length: int, spare: int) -> Sizes:
        """Return sizes with one that is longer than a CTA, as far as the given one is."""
        sizes = dict(scale_sizes(self.given, spare, all_of=True))
        value = self.given[name]
        sizes[name] = min(value, length) if isinstance(value, int) else (*value[:-1], min(value[-1], length))
        return sizes

    def _fit(self, name: str, sizes: Sizes, most: int) -> SizedProblem | None:
        """Return the reference at some sizes, if it takes them and its tensors are small enough."""
        count = self.count_elements(sizes)
        if count is None or count > most:
            return None
        try:
            problem = self.make_problem(name, sizes)
            outputs = problem.evaluate(problem.draw(0))
        except CuirError:
            return None
        return problem if count + sum(x.numel() for x in outputs) <= most else None

    def count_elements(self, sizes: Sizes) -> int | None:
        """Return the elements of inputs and parameters; None if the reference does not take the sizes.

        Nothing is computed: inputs of a benchmark may fill a GPU.
        """
        try:
            with torch.device("meta"):
                problem = self.make_problem("", sizes)
                tensors = [*problem.draw(0), *problem.state.values()]
        except CuirError:
            return None
        return sum(x.numel() for x in tensors if isinstance(x, torch.Tensor))


def find_sizes(module: ModuleType, *functions: Callable[..., object]) -> dict[str, Size]:
    """Return the numbers of a module that functions read: lengths of their inputs."""
    names = dict.fromkeys(n for f in functions if inspect.isfunction(f) for n in list_names(f.__code__))
    found: dict[str, Size] = {}
    for n in names:
        value = vars(module).get(n)
        if type(value) is int and value > 0:
            found[n] = value
        elif isinstance(value, (tuple, list)) and value and all(type(v) is int and v > 0 for v in value):
            found[n] = tuple(value)
    return found


def list_names(code: CodeType) -> Iterator[str]:
    """Yield the global names that code reads."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from list_names(inner)


def largest(size: Size) -> int:
    """Return the largest number of a size."""
    return size if isinstance(size, int) else max(size)


def scale_sizes(given: Sizes, cap: int, all_of: bool = False) -> dict[str, Size]:
    """Return sizes with numbers above SMALL, or all of them, cut to a cap."""

    def cut(n: int) -> int:
        return min(n, cap) if n > SMALL or all_of else n

    return {name: cut(v) if isinstance(v, int) else tuple(cut(n) for n in v) for name, v in given.items()}


def make_odd(given: Sizes, names: Sequence[str], cap: int) -> dict[str, Size]:
    """Return sizes with different odd numbers below a cap for those that are named."""
    numbers = itertools.cycle([n for n in ODD if n < cap] or [7, 5, 3])
    sizes = scale_sizes(given, cap)

    def odd(n: int) -> int:
        return min(n - (n % 2 == 0), next(numbers)) if n > SMALL else n

    for name in names:
        value = given[name]
        sizes[name] = odd(value) if isinstance(value, int) else tuple(odd(n) for n in value)
    return sizes
