"""Load words of bits once per row, and test a bit that is known when the loop is unrolled.

The kernel loads a word of 32 mask bits once per row.

It must not write the tensor of these words. A limit on columns that is combined with the bit becomes a limit on the
bits of the word. `tile.bits` takes an element's bit from the words of its row. Exact.
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from ...ops.traits import LESS
from ...syntax.types import BOOL, I32
from ..analyses.memory import is_memory_effect_free
from ..ir import constructors, ops
from ..ir.ir_types import TileT, dtype_of, element, is_scalar, tile
from ..ir.ir_walk import every
from ..ir.row_parts import WORD, Bits, bits
from .affine_columns import is_limit
from .rewriting import insert, replace

MOST = 16  # words of a row, which are all in registers at once


def run(kernel: ops.Kernel) -> None:
    """Replace bit tests by `tile.bits`, then merge limits into them."""
    for op in every(kernel):
        if op.parent is not None and isinstance(op, ops.Apply) and op.kind.tests_bit:
            _replace_test(op)
    for op in every(kernel):
        if op.parent is not None and isinstance(op, ops.Apply) and op.kind.decided_by is False and dtype_of(op.result) == BOOL:
            _merge_limit(op)


def _replace_test(op: ops.Apply) -> None:
    """Replace one bit test, if its words lie along the row."""
    word, number = op.arguments
    gather, t = word.owner, op.result.type
    if not isinstance(t, TileT) or not t.layout.is_accumulator or t.shape[1] > WORD * MOST or not _is_bit_of_column(number):
        return
    if not isinstance(gather, ops.Perform) or not gather.gathers or not is_memory_effect_free(gather):
        return
    (place,) = (a.owner for a in gather.arguments)
    assert isinstance(place, ops.At)
    word_dims = [i for i, (start, _) in enumerate(place.parts) if start is not None and _is_word_of_column(start)]
    indices = [(start if start is None or i in word_dims else _unwrap_scalar(start), size) for i, (start, size) in enumerate(place.parts)]
    other_starts = [start for i, (start, _) in enumerate(indices) if i not in word_dims]
    if len(word_dims) != 1 or not all(start is None or _is_constant_along_rows(start) for start in other_starts):
        return
    one_a_row = tile(I32, t.shape[0], 1)
    words = []
    for w in range(-(-t.shape[1] // WORD)):
        index = insert(gather, ops.constant(w, I32))
        if all(start is None or is_scalar(start) for start in other_starts):  # a word for all rows: repeat its index
            index = insert(gather, constructors.full(index, one_a_row))
        parts = [(index, size) if i == word_dims[0] else (start, size) for i, (start, size) in enumerate(indices)]
        at = insert(gather, ops.at(place.array, parts, element(I32, t.shape[0], 1)))
        words.append(insert(gather, ops.perform(gather.op, {p.data: at for p in gather.params.data}, [one_a_row])))
    replace(op, [insert(op, bits(words, t))])


def _merge_limit(op: ops.Apply) -> None:
    """Merge bits and a limit on columns: the bits beyond it are cleared in the words."""
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


def _unwrap_scalar(value: SSAValue) -> SSAValue:
    """Return the scalar that a tile repeats, else the value."""
    return value.owner.arguments[0] if isinstance(value.owner, ops.Apply) and value.owner.kind.repeats else value


def _is_constant_along_rows(value: SSAValue) -> bool:
    return is_scalar(value) or (isinstance(value.type, TileT) and value.type.layout.is_constant_along_rows)


def _is_bit_of_column(value: SSAValue) -> bool:
    """Return whether a value is the column, or its remainder by a number of whole words."""
    op = value.owner
    if (
        isinstance(op, ops.Apply)
        and op.kind.remainder
        and isinstance(n := ops.constant_value(op.arguments[1]), int)
        and n > 0
        and n % WORD == 0
    ):
        return _is_bit_of_column(op.arguments[0])
    return ops.kind_of(value).index_of == "column"


def _is_word_of_column(value: SSAValue) -> bool:
    """Return whether a value is column // 32."""
    op = value.owner
    return (
        isinstance(op, ops.Apply)
        and op.kind.rounds == "down"
        and ops.constant_value(op.arguments[1]) == WORD
        and ops.kind_of(op.arguments[0]).index_of == "column"
    )
