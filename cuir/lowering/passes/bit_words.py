"""Bits of words in memory, one an element: each word is read once a row, and an element is a test of a bit that is known when the loop is unrolled.

`bit(X[r, c // 32], c)` reads the same word for 32 columns. The words of a row become numbers a row, of which `tile.bits` takes an element's; a limit on columns that holds besides
is one on the bits of a word. The tensor is one that the kernel does not write. No result changes.
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from ...ops.traits import LESS
from ...syntax.types import BOOL, I32
from ..facts.uniformity import reads_constant
from ..ir import make, ops
from ..ir.bits import WORD, Bits, bits
from ..ir.types import TileT, dtype_of, element, is_scalar, tile
from ..ir.walk import every
from .affine_columns import is_limit
from .rewriting import insert, replace

MOST = 16  # words of a row: they are all in registers at once


def run(kernel: ops.Kernel) -> None:
    for op in every(kernel):
        if op.parent is not None and isinstance(op, ops.Apply) and op.kind.tests_bit:
            _tested(op)
    for op in every(kernel):
        if op.parent is not None and isinstance(op, ops.Apply) and op.kind.decided_by is False and dtype_of(op.result) == BOOL:
            _limited(op)


def _tested(op: ops.Apply) -> None:
    word, number = op.arguments
    read, t = word.owner, op.result.type
    if not isinstance(t, TileT) or t.layout.data != "full" or t.shape[1] > WORD * MOST or not _bit_of_column(number):
        return
    if not isinstance(read, ops.Perform) or not read.gathers or not reads_constant(read):
        return
    (place,) = (a.owner for a in read.arguments)
    assert isinstance(place, ops.At)
    along = [i for i, (start, _) in enumerate(place.parts) if start is not None and _word_of_column(start)]
    given = [(start if start is None or i in along else _number(start), size) for i, (start, size) in enumerate(place.parts)]
    others = [start for i, (start, _) in enumerate(given) if i not in along]
    if len(along) != 1 or not all(start is None or _alike_along_rows(start) for start in others):
        return
    one_a_row = tile(I32, t.shape[0], 1)
    words = []
    for w in range(-(-t.shape[1] // WORD)):
        index = insert(read, ops.constant(w, I32))
        if all(start is None or is_scalar(start) for start in others):  # of a word for all rows each has its own index
            index = insert(read, make.full(index, one_a_row))
        parts = [(index, size) if i == along[0] else (start, size) for i, (start, size) in enumerate(given)]
        at = insert(read, ops.at(place.array, parts, element(I32, t.shape[0], 1)))
        words.append(insert(read, ops.perform(read.op, {p.data: at for p in read.params.data}, [one_a_row])))
    replace(op, [insert(op, bits(words, t))])


def _limited(op: ops.Apply) -> None:
    """Bits and a limit on columns: what lies behind it is cleared in the words."""
    for x, y in (op.arguments, op.arguments[::-1]):
        tested, limit = x.owner, y.owner
        if (
            isinstance(tested, Bits)
            and tested.limit is None
            and isinstance(limit, ops.Apply)
            and limit.kind.compares == LESS
            and is_limit(limit)
        ):
            replace(op, [insert(op, bits(list(tested.words), op.result.type, limit.arguments[1]))])
            return


def _number(value: SSAValue) -> SSAValue:
    """The scalar that a tile repeats, else the value."""
    return value.owner.arguments[0] if isinstance(value.owner, ops.Apply) and value.owner.kind.repeats else value


def _alike_along_rows(value: SSAValue) -> bool:
    return is_scalar(value) or (isinstance(value.type, TileT) and value.type.layout.data in ("rows", "one"))


def _bit_of_column(value: SSAValue) -> bool:
    """The column, or what it leaves of a division by a number of whole words."""
    op = value.owner
    if isinstance(op, ops.Apply) and op.kind.remainder and isinstance(n := ops.known(op.arguments[1]), int) and n > 0 and n % WORD == 0:
        return _bit_of_column(op.arguments[0])
    return ops.kind_of(value).index_of == "column"


def _word_of_column(value: SSAValue) -> bool:
    """column // 32."""
    op = value.owner
    return (
        isinstance(op, ops.Apply)
        and op.kind.rounds == "down"
        and ops.known(op.arguments[1]) == WORD
        and ops.kind_of(op.arguments[0]).index_of == "column"
    )
