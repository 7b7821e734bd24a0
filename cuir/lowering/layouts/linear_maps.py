"""Linear maps over GF(2) between the bits of named dims: composition, inversion, equality.

A layout maps the bits of a register's, a lane's and a warp's number to those of a row and a column. XOR adds, so a
basis vector for each input bit says all, and a swizzle is a linear map as well (as Triton's linear layouts are).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Dims = tuple[tuple[str, int], ...]  # names, and numbers of bits; the first dim has the lowest bits
# dims that the text of a map spells by their initials
OUTPUTS = {"r": "row", "c": "column", "p": "part", "m": "cell"}
ORDER = ("row", "column", "part", "cell")


@dataclass(frozen=True)
class LinearMap:
    """A linear map between numbers whose bits belong to named dims; `columns` has the image of each input bit."""

    inputs: Dims
    outputs: Dims
    columns: tuple[int, ...]

    def __post_init__(self) -> None:
        assert len(self.columns) == count_bits(self.inputs) and all(c < 1 << count_bits(self.outputs) for c in self.columns), self

    def apply(self, number: int) -> int:
        """Return the image of a number that has the bits of all inputs."""
        result, i = 0, 0
        while number:
            if number & 1:
                result ^= self.columns[i]
            number, i = number >> 1, i + 1
        return result

    def at(self, **inputs: int) -> dict[str, int]:
        """Return the coordinates of a point, which has 0 where none is given."""
        return split(self.outputs, self.apply(join(self.inputs, inputs)))

    def then(self, other: LinearMap) -> LinearMap:
        """Return the composition: this map, then the other one, a product of matrices."""
        assert self.outputs == other.inputs, (self.outputs, other.inputs)
        return LinearMap(self.inputs, other.outputs, tuple(map(other.apply, self.columns)))

    def columns_of(self, *names: str) -> list[int]:
        """Return the images of the bits of these inputs."""
        result, first = list[int](), 0
        for name, bits in self.inputs:
            result += self.columns[first : first + bits] if name in names else ()
            first += bits
        return result

    @functools.cached_property
    def rank(self) -> int:
        """Dimension of the image."""
        return Span(self.columns).rank

    @property
    def is_surjective(self) -> bool:
        """Every output has an input."""
        return self.rank == count_bits(self.outputs)

    @property
    def is_injective(self) -> bool:
        """No two inputs have the same output."""
        return self.rank == len(self.columns)

    def invert(self) -> LinearMap:
        """Return a map that leads from each output back to an input that has it, by Gaussian elimination.

        If several inputs have an output, it is one in which as few of the last bits as possible are set.

        Raises: ValueError if an output has no input.
        """
        span = Span(self.columns)
        columns = [span.solve(1 << i) for i in range(count_bits(self.outputs))]
        if not all(isinstance(c, int) for c in columns):
            raise ValueError(f"{self} is not surjective")
        return LinearMap(self.outputs, self.inputs, tuple(c for c in columns if c is not None))

    def extend(self, name: str, image: Mapping[str, int]) -> LinearMap:
        """Return the map with a further bit of an input, the highest one, and outputs wide enough for its image.

        An input that the map has not becomes its last one.
        """
        outputs = tuple((n, max(bits, image.get(n, 0).bit_length())) for n, bits in self.outputs)
        moved = [join(outputs, split(self.outputs, c)) for c in self.columns]
        old = self.inputs if name in dict(self.inputs) else (*self.inputs, (name, 0))
        inputs = tuple((n, bits + (n == name)) for n, bits in old)
        at = count_bits(inputs[: [n for n, _ in inputs].index(name) + 1]) - 1
        return LinearMap(inputs, outputs, (*moved[:at], join(outputs, image), *moved[at:]))

    def with_outputs(self, *names: str) -> LinearMap:
        """Return the map with these outputs as well, of no bits where it has them not, in the usual order."""
        sizes = dict.fromkeys(names, 0) | dict(self.outputs)
        outputs = tuple((name, sizes[name]) for name in ORDER if name in sizes)
        return LinearMap(self.inputs, outputs, tuple(join(outputs, split(self.outputs, c)) for c in self.columns))


class Span:
    """The space that vectors span, with the sum of vectors that makes each of its members."""

    def __init__(self, vectors: Iterable[int]):
        self._reduced: dict[int, tuple[int, int]] = {}  # highest bit -> a vector, and the vectors whose sum it is
        for i, vector in enumerate(vectors):
            rest, made_of = self._reduce(vector, 1 << i)
            if rest:
                self._reduced[rest.bit_length()] = (rest, made_of)

    @property
    def rank(self) -> int:
        """Dimension of the space."""
        return len(self._reduced)

    def solve(self, vector: int) -> int | None:
        """Return the set of vectors, as bits, whose sum is this one; None if it is outside of the space."""
        rest, made_of = self._reduce(vector, 0)
        return None if rest else made_of

    def _reduce(self, vector: int, made_of: int) -> tuple[int, int]:
        while vector and (found := self._reduced.get(vector.bit_length())):
            vector, made_of = vector ^ found[0], made_of ^ found[1]
        return vector, made_of


def count_bits(dims: Dims) -> int:
    """Return the number of bits of dims."""
    return sum(bits for _, bits in dims)


def join(dims: Dims, coordinates: Mapping[str, int]) -> int:
    """Return the number that has the bits of coordinates."""
    result, shift = 0, 0
    for name, bits in dims:
        value = coordinates.get(name, 0)
        assert value < 1 << bits, (name, value, bits)
        result |= value << shift
        shift += bits
    return result


def split(dims: Dims, number: int) -> dict[str, int]:
    """Return the coordinates whose bits a number has."""
    result = {}
    for name, bits in dims:
        result[name] = number & (1 << bits) - 1
        number >>= bits
    return result


def identity(dims: Dims) -> LinearMap:
    """Return the map of each number to itself."""
    return LinearMap(dims, dims, tuple(1 << i for i in range(count_bits(dims))))


@functools.cache
def read_map(text: str) -> LinearMap:
    """Read a map: `register: c0 r3 | lane: c1 c2 r0 r1 r2` says which bit of row or column each input bit is.

    `.` is no bit, and `r0+r2` several. Outputs: r row, c column, p part of a sum, m cell of memory.
    """
    inputs, images = list[tuple[str, int]](), list[dict[str, int]]()
    for part in text.split("|"):
        name, _, words = part.partition(":")
        inputs.append((name.strip(), len(words.split())))
        for word in words.split():
            image = dict[str, int]()
            for bit in [] if word == "." else word.split("+"):
                output = OUTPUTS[bit[0]]
                image[output] = image.get(output, 0) ^ 1 << int(bit[1:])
            images.append(image)
    outputs = tuple((n, max((i.get(n, 0).bit_length() for i in images), default=0)) for n in ORDER if any(n in i for i in images))
    return LinearMap(tuple(inputs), outputs, tuple(join(outputs, i) for i in images))


def show_map(linear: LinearMap) -> str:
    """Return the text that `read_map` reads."""
    letters = {name: letter for letter, name in OUTPUTS.items()}
    parts, first = list[str](), 0
    for name, bits in linear.inputs:
        words = []
        for column in linear.columns[first : first + bits]:
            coordinates = split(linear.outputs, column)
            spelled = [f"{letters[n]}{i}" for n, value in coordinates.items() for i in range(value.bit_length()) if value >> i & 1]
            words.append("+".join(spelled) or ".")
        parts.append(f"{name}: {' '.join(words)}".rstrip())
        first += bits
    return " | ".join(parts)
