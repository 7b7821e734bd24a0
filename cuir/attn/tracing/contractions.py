"""Sums of products of rows: linear layers, outer products and einsum."""

from __future__ import annotations

import itertools
import math

from .captured_rows import MOST, Array, array, fold_in_pairs, make_shaped
from .element_indices import Index
from .operation_table import function
from .proxy import Scalar, TracedValue, apply, compute
from .refusal import refuse


@function("linear")
def linear(input: object, weight: object, bias: object = None) -> TracedValue:
    x, rows = array(input), array(weight)
    if not 1 <= rows.ndim <= 2 or not x.ndim or x.shape[-1] != rows.shape[-1]:
        refuse(f"a linear layer [{', '.join(map(str, rows.shape))}] of {list(x.shape)}", "the last dims are alike")
    product = _contract([x, rows], [_LETTERS[: x.ndim], ("y" if rows.ndim == 2 else "") + _LETTERS[x.ndim - 1]])
    return product if bias is None else apply("add", product, bias)


@function("outer", "ger")
def outer(input: object, vec2: object) -> TracedValue:
    x, y = array(input), array(vec2)
    if (x.ndim, y.ndim) != (1, 1):
        refuse(f"an outer product of {list(x.shape)} and {list(y.shape)}", "it is of two rows")
    return _contract([x, y], ["a", "b"])


@function("einsum")
def einsum(equation: object, *operands: object) -> TracedValue:
    if not isinstance(equation, str):
        refuse("einsum with lists of dims", 'an equation: torch.einsum("d,d->", x, y)')
    inputs = operands[0] if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands
    operand_labels, arrow, result_labels = equation.replace(" ", "").partition("->")
    labels = operand_labels.split(",")
    arrays = [array(x) for x in inputs]
    if "." in equation or len(labels) != len(arrays) or any(len(letters) != x.ndim for letters, x in zip(labels, arrays)):
        refuse(f'einsum "{equation}" of {" and ".join(str(list(x.shape)) for x in arrays)}', "one letter for each dim of each operand")
    joined = "".join(labels)
    result = result_labels if arrow else "".join(sorted(label for label in set(joined) if joined.count(label) == 1))
    if len(set(result)) != len(result) or not set(result) <= set(joined):
        refuse(f'einsum "{equation}"', "each dim of the result is one of an operand")
    return _contract(arrays, labels, result)


_LETTERS = "abcdefghijklmnopqrstuvw"


def _contract(arrays: list[Array], labels: list[str], result: str | None = None) -> TracedValue:
    """Sum products of elements over the labels that are missing in the result, as einsum does.

    Args:
        labels: a letter for each dim of each array.
        result: labels of the result; by default those that a single operand has.
    """
    sizes: dict[str, int] = {}
    for x, letters in zip(arrays, labels, strict=True):
        for label, n in zip(letters, x.shape, strict=True):
            size = sizes.setdefault(label, n)
            if 1 in (size, n):
                sizes[label] = max(size, n)
            elif size != n:
                refuse(f"a product over dims of {size} and {n} elements", "a label has one size")
    if result is None:
        joined = "".join(labels)
        result = "".join(label for label in sizes if joined.count(label) == 1)
    summed = [label for label in sizes if label not in result]
    if any(x.follows for x in arrays) or (count := math.prod(sizes[label] for label in summed)) > MOST:
        refuse(
            f"{'as many elements as the lengths say' if any(x.follows for x in arrays) else count} are summed for each pair of query and key",
            f"{MOST} are the most: compute it before the mod, and index the result in the mod",
        )

    def element(index: Index) -> Scalar:
        places = dict(zip(result, index, strict=True))
        terms = []
        for inner in itertools.product(*(range(sizes[label]) for label in summed)):
            at = {**places, **dict(zip(summed, inner, strict=True))}
            read = [
                x.element(tuple(0 if n == 1 else at[label] for label, n in zip(letters, x.shape))) for x, letters in zip(arrays, labels)
            ]
            terms.append(fold_in_pairs(read, lambda x, y: compute("mul", x, y)))
        return fold_in_pairs(terms, lambda x, y: compute("add", x, y))

    return make_shaped([sizes[label] for label in result], element)


__all__ = ["einsum", "linear", "outer"]
