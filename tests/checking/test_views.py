"""Views: slices' lengths, composition of subscripts compared with NumPy's."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cuir.checking.views import Drop, Range, compose, compute_slice_size, make_view
from cuir.syntax.nodes import Assign, Expr, Literal, Slice, Subscript
from cuir.syntax.parser import parse

SHAPE = (3, 16, 8)


def expression(text: str) -> Expr:
    (item,) = parse(f"@func\ndef f(x):\n    y = {text}\n    return y\n").items
    assert isinstance(item.body[0], Assign)  # type: ignore[union-attr]
    return item.body[0].value  # type: ignore[union-attr]


def slice_size(text: str) -> int | None:
    e = expression(f"a[{text}]")
    assert isinstance(e, Subscript) and isinstance(e.indices[0], Slice)
    return compute_slice_size(e.indices[0])


def test_length_of_a_slice() -> None:
    assert slice_size("i * 64 + j : i * 64 + j + 16") == 16
    assert slice_size("4 : 12") == 8
    assert slice_size("i : j + 16") is None and slice_size("i : i + n") is None and slice_size("i : 16 + i") is None


def test_view_of() -> None:
    view = make_view(expression("a[i, j : j + 8].T"), 3)
    assert view is not None and view.root == "a" and view.transposed
    assert isinstance(view.parts[0], Drop) and view.parts[1] == Range(expression("j"), 8) and view.parts[2] == Range(None, None)
    assert make_view(expression("a[1, 2, 3, 4]"), 3) is None


@st.composite
def indices(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[int | slice, ...]:
    results: list[int | slice] = []
    for n in shape[: draw(st.integers(0, len(shape)))]:
        start = draw(st.integers(0, n - 1))
        results.append(draw(st.sampled_from([start, slice(start, start + draw(st.integers(1, n - start))), slice(None)])))
    return tuple(results)


def tree(index: int | slice) -> Expr | Slice:
    if isinstance(index, int):
        return Literal(index)
    return Slice() if index.start is None else Slice(Literal(index.start), Literal(index.stop))


def number(e: Expr) -> int:
    return e.value if isinstance(e, Literal) else number(e.left) + number(e.right)  # type: ignore[union-attr, return-value]


@given(st.data())
def test_composition_picks_what_numpy_picks(data: st.DataObject) -> None:
    array = np.arange(np.prod(SHAPE)).reshape(SHAPE)
    inner = data.draw(indices(SHAPE))
    view = array[inner]
    outer = data.draw(indices(view.shape)) if view.shape else ()
    merged = compose(tuple(map(tree, inner)), tuple(map(tree, outer)), len(SHAPE))
    assert merged is not None
    picked = tuple(
        (slice(None) if i.start is None else slice(number(i.start), number(i.stop))) if isinstance(i, Slice) else number(i)  # type: ignore[arg-type]
        for i in merged
    )
    assert np.array_equal(array[picked], view[outer])


def test_too_many_indices() -> None:
    assert compose((Literal(0), Literal(1)), (Slice(), Literal(0)), 3) is None
