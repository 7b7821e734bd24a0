"""Names of splice points and of attention kernels' parameters, and names that a variant may add."""

from __future__ import annotations

from ...caching import memoize
from ...ops import TABLE
from ...spec.specification import LENGTHS
from ...syntax.nodes import Assign, AugAssign, Constant, For, Func, GlobalType, Kernel, Name, Param, Program, With
from ...syntax.types import DTYPES
from ...syntax.walk import IdentityKey, walk
from ..outputs.output_table import OUTPUT_NAMES
from .mod_evaluator import CONSTANTS

SPLICE_POINTS = {"score": 5, "keep": 4, "kv_count": 3, "kv_block": 4}  # with the number of parameters
OPTIONAL = {"kv_rows": 4, "tile": 1}  # splice points that a kernel may do without
VALUE_SCALE = "VSCALE"  # scales of V, by batch entry and key head, or one for all of either
GRADIENT_SCALE = "DOSCALE"  # scales of dO in 8 bits, by batch entry and key head
STANDARD = ("Q", "K", "V", VALUE_SCALE, "O", "LSE", "scale")  # parameters of attention kernels of the corpus
# parameters of every backward kernel; one without dK has the forward pass's splice points, and `dscore`
BACKWARD = ("Q", "K", "V", "dO", "L", "DL", "scale")
# with O and LSE of the forward pass, for kernels that compute L and DL themselves, queries and keys before they were
# rounded to 8 bits, scales, and all or some gradients of the inputs
GRADIENTS = (*BACKWARD, "FO", "FL", "QH", "KH", "QSCALE", "KSCALE", VALUE_SCALE, GRADIENT_SCALE, "dQ", "dK", "dV")
BACKWARD_POINTS = {
    "score": 5, "dscore": 5, "keep": 4, "captured_begin": 0, "captured_step": 8, "captured_end": 4, "q_count": 3, "q_block": 4,
}  # splice points of those, with the number of parameters  # fmt: skip
CACHE_LENGTHS = "LENGTHS"  # of the sequences in a cache, in kernels over one, in place of N
# functions of b that kernels of packed sequences have in place of the lengths
OF_SEQUENCE = {"M": "queries", "N": "keys"}
SELECTED = ("BLOCKS", "COUNTS")  # lists of selected blocks, in kernels whose callers name the blocks that a query attends to
SELECTED_TOKENS = "INDICES"  # lists of selected tokens, in kernels whose callers name the tokens that a query attends to
LISTS = ("block_count", "block_list", "tile_order")  # parameters of kernels whose blocks have no closed form
BITS = ("block_bits", "block_slot")  # parameters of kernels that read their mask
DROPOUT = ("dropout_seed", "dropout_threshold", "dropout_factor")  # parameters of kernels with dropout
# tables of score terms by distance, and their last dim; numbered from the second on
DISTANCES = ("by_distance", "distances")
_LOCALS = {"S", "b", "h", "m", "q", "k", "i", "j", "n", "full", "end", "partial", "lo", "hi", "flo", "fhi", "v1", "l2", "v2", "l3", "v3", "a1", "b1", "a2", "b2",
           "one", "two", "masked", "needed", "r", "spans", "rank", "t", "head", *LISTS, *BITS, *DISTANCES, *DROPOUT}  # fmt: skip
_WORDS = {"def", "return", "for", "in", "if", "else", "elif", "with", "as", "and", "or", "not", "True", "False", "func", "kernel", "range", "inf", "bar", "import", "lambda",
          "class", "while", "pass", "is", "None"}  # fmt: skip


def list_reserved() -> set[str]:
    """Return the names that a captured value may not have in a kernel."""
    return _LOCALS | _WORDS | {op.written for op in TABLE.values()} | set(DTYPES) | set(CONSTANTS)


def list_reserved_in_expressions() -> set[str]:
    """Return the names that a captured value may not have next to names that a mod's expression may read.

    These are indices, lengths, and the parameters of every kernel.
    """
    return list_reserved() | set(LENGTHS) | {*STANDARD, *OUTPUT_NAMES}


def names_of(program: Program) -> set[str]:
    """Return every name that a program defines, binds or reads."""
    return set(_names_of(IdentityKey(program)))


@memoize(16)
def _names_of(key: IdentityKey) -> frozenset[str]:
    names: set[str] = set()
    program = key.tree
    assert isinstance(program, Program)
    for item in program.items:
        for node in walk(item):
            if isinstance(node, Name):
                names.add(node.id)
            elif isinstance(node, Func):
                names.update((node.name, *node.params))
            elif isinstance(node, Assign):
                names.update(node.targets)
            elif isinstance(node, (For, AugAssign)):
                names.add(node.target)
            elif isinstance(node, (Constant, Kernel, Param, With)):
                names.add(node.name or "_")
            elif isinstance(node, GlobalType):
                names.update(d for d in node.dims if isinstance(d, str))
    return frozenset(names)


__all__ = [
    "BACKWARD",
    "BACKWARD_POINTS",
    "BITS",
    "CACHE_LENGTHS",
    "DISTANCES",
    "DROPOUT",
    "GRADIENTS",
    "GRADIENT_SCALE",
    "LISTS",
    "OF_SEQUENCE",
    "OPTIONAL",
    "SELECTED",
    "SELECTED_TOKENS",
    "SPLICE_POINTS",
    "STANDARD",
    "VALUE_SCALE",
    "list_reserved",
    "list_reserved_in_expressions",
    "names_of",
]
