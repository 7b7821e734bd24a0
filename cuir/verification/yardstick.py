"""PyTorch's own error in a function's outputs, which bounds what a kernel's may be."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import torch

from ..arguments.binding import TORCH
from ..attn.verification.problems import get_parts
from ..checking.checked import Checked
from ..spec.function_specification import FunctionSpecification
from ..text.diagnostics import CuirError
from .error_bounds import SingleError
from .inputs import choose_half_dtype
from .rounding import collect_right_integers, find_out_of_range, rounds_between, rounds_for_products
from .values.step_inputs import find_undecided

# of the largest input: the remainder of a row whose terms cancel, as in a gradient of 0, in a kernel with 16-bit
# intermediates
_CANCELLED = 2.0**-20
_MASK = 1e30  # larger numbers absorb what is added to them


class Yardstick:
    """PyTorch's own error.

    In float32 where the kernel computes in f32 from its inputs, with products of TF32 where the kernel's are; in the
    kernel's dtype where it rounds to it in between, or float32 is undefined.
    """

    def __init__(
        self,
        checked: Checked,
        spec: FunctionSpecification,
        inputs: Mapping[str, object],
        names: Sequence[str],
        exact: Mapping[str, torch.Tensor],
        steps: bool = False,
        special: bool = False,
    ):
        self.spec, self.inputs, self.names, self.steps, self.special = spec, inputs, names, steps, special
        self.dtype = TORCH[choose_half_dtype(checked)]
        self.coarse = rounds_between(checked)
        self.single: SingleError | None = None
        self.spread = False  # NaN enters, and may reach more elements than those that must be NaN
        if not self.coarse:
            try:
                self.get_single()
            except CuirError:
                self.coarse = True
        parts = 0 if self.coarse else get_parts(checked)
        self.tf32, self.two_parts = parts == 1, parts == 2
        if self.coarse:
            self.first = spec.yardstick(inputs, names, exact, self.dtype)  # type: ignore[arg-type]
        else:
            self.first = self.get_single().tensor_core() if self.tf32 else self.get_single().plain
        self.products = self.coarse and rounds_for_products(checked)
        self.floor = _CANCELLED * _find_largest_input(self.list_floats(), _MASK if special else torch.inf) if self.coarse else 0.0

    def list_floats(self) -> list[torch.Tensor]:
        """Return the float inputs in a dtype that PyTorch computes with, which 8-bit floats are not."""
        floats = (x for x in self.inputs.values() if isinstance(x, torch.Tensor) and x.is_floating_point())
        return [x.float() if x.dtype.itemsize < 4 else x for x in floats]

    @cached_property
    def endless(self) -> bool:
        """Return whether an input is infinite."""
        return any(bool(x.isinf().any()) for x in self.list_floats())

    @cached_property
    def below(self) -> bool:
        """Return whether no input is inf: -inf is then a mask, or the logarithm of 0, and is compared."""
        return not any(bool((x == torch.inf).any()) for x in self.list_floats())

    @property
    def open(self) -> bool:
        """Return whether verification added infinities; the function's own are then not examined."""
        return self.special and self.endless

    @property
    def words(self) -> str:
        return "TF32" if self.tf32 else str(self.dtype if self.coarse else torch.float32).removeprefix("torch.")

    def get_single(self) -> SingleError:
        if self.single is None:
            self.single = SingleError(self.spec, self.inputs, self.names, steps=self.steps)  # type: ignore[arg-type]
        return self.single

    def find_undecided(self, name: str, expected: torch.Tensor) -> torch.Tensor:
        """Return elements of inputs at steps that are not compared.

        PyTorch's float32 lies on another side of the step than float64.
        """
        try:
            return find_undecided(self.get_single().plain[name], expected)
        except CuirError:
            return torch.ones_like(expected, dtype=torch.bool)

    def off(self, name: str, decided: bool = False) -> Iterator[torch.Tensor]:
        """Yield other right values: of float32, and with the errors that the language's operations may have.

        Each is computed when it is asked for; the likeliest to explain an output's error come first.
        decided: results of step functions keep their float32 values. Raises CuirError if float32 cannot be evaluated.
        """
        single = self.get_single()
        if decided:
            coarser = single.tf32_between_steps() if self.tf32 else single.two_parts() if self.two_parts else []
        elif self.tf32 or self.two_parts:
            coarser = single.tf32() if self.tf32 else single.two_parts()
        else:
            coarser = single.evaluate_rounded(self.dtype) if self.coarse and self.dtype != torch.float32 else []
        yield from (x[name] for x in coarser)
        yield single.plain[name]
        yield from (x[name] for x in (single.off_between_steps() if decided else single.off()))

    def list_off(self, name: str) -> list[torch.Tensor]:
        """Return all values of `off`; none if float32 cannot be evaluated."""
        try:
            return list(self.off(name))
        except CuirError:
            return []

    def overflows(self, name: str) -> torch.Tensor:
        """Return elements that PyTorch gives as not finite in the kernel's dtype.

        Only for kernels whose products must be in that dtype.
        """
        if not self.products:
            return torch.zeros((), dtype=torch.bool)
        return ~self.spec.half(self.inputs, self.names, self.dtype)[name].isfinite()  # type: ignore[arg-type]

    def find_turned(self, name: str) -> torch.Tensor:
        """Return elements that depend on decisions which rounding changes; none where float32 cannot tell."""
        try:
            return self.get_single().find_turned()[name]
        except CuirError:
            return torch.zeros((), dtype=torch.bool)

    def list_right_integers(self, name: str, output: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield masks of right elements of an integer output.

        Right is what float arithmetic of the kernel's precision gives, and what is not compared.
        """
        if self.coarse:
            yield output == self.first[name]
        with contextlib.suppress(CuirError):
            for right in collect_right_integers(self.get_single(), name, self.tf32):
                yield output == right
            yield find_out_of_range(self.get_single(), name)

    def find_undefined(self, name: str) -> torch.Tensor:
        """Return elements that depend on integers made of NaN or infinities; none where float32 cannot tell."""
        try:
            return find_out_of_range(self.get_single(), name)
        except CuirError:
            return torch.zeros((), dtype=torch.bool)

    def find_ordered(self, name: str) -> torch.Tensor | None:
        """Return elements that depend on the order of a sum; None where float32 cannot be evaluated."""
        try:
            return self.get_single().find_ordered()[name]
        except CuirError:
            return None


def _find_largest_input(floats: Sequence[torch.Tensor], bound: float) -> float:
    """Return the largest magnitude below the bound; 1 if there is none."""
    largest = -1.0
    for x in floats:
        magnitudes = x.abs()
        if x.numel():
            largest = max(largest, torch.where(magnitudes < bound, magnitudes, -1.0).amax().item())
    return 1.0 if largest < 0 else largest
