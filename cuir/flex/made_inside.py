"""Mods that are made inside of a compiled function: torch.compile reads such a mod into a graph of its own, and lifts what it closes over to inputs.

Owns how that graph becomes a mod that the operator knows. Mods from outside cross as before (operator.py). Works with the versions of PyTorch whose tracer has
what FlexAttention's own operator uses; with others such mods are refused.
"""

from __future__ import annotations

import types
from typing import Any

import torch
from torch._ops import HigherOrderOperator

from .graph_errors import at_tracing
from .mods import identity
from .operator import captured_now, entered, handle_of

_NAME = "cuir_flex_attention_mods"
TRIED = (2, 13)  # and later


class _Reader(HigherOrderOperator):
    """Mods as a graph meets them, before it is known where they come from. What torch.compile leaves to Python are mods from outside."""

    def __init__(self) -> None:
        super().__init__(_NAME)

    def __call__(self, *args: Any) -> Any:
        return _from_outside(*args)


_READ = _Reader()


def read_mods(
    query: torch.Tensor, mask_mod: Any, score_mod: Any, normalize: str, sink: bool, max_scores: bool = False, dropout_p: float = 0.0
) -> tuple[list[torch.Tensor], str]:
    """Return the tensors that mods capture, as inputs of a graph, and the handle of the mods. sink: there is one. Raises CuirError U418."""
    captured, handle = (_READ if readable() else _from_outside)(query, mask_mod, score_mod, normalize, sink, max_scores, dropout_p)
    return list(captured), handle


def _from_outside(
    query: torch.Tensor, mask_mod: Any, score_mod: Any, normalize: str, sink: bool, max_scores: bool, dropout_p: float
) -> tuple[list[torch.Tensor], str]:
    handle = entered(mask_mod, score_mod, normalize, sink, max_scores, dropout_p)
    return captured_now(handle, (mask_mod, score_mod)), handle


@at_tracing
def readable() -> bool:
    """Whether torch.compile can be asked to read mods: its tracer has no public way to ask, so of the versions that this was tried with. Run when a graph is traced."""
    if tuple(map(int, torch.__version__.split(".")[:2])) < TRIED:
        return False
    try:
        from torch._dynamo.variables.higher_order_ops import FlexAttentionHigherOrderVariable, _hop_name_to_variable_class
    except ImportError:
        return False
    if _NAME not in _hop_name_to_variable_class:
        _hop_name_to_variable_class[_NAME] = _variable(FlexAttentionHigherOrderVariable)
    return True


def _variable(base: Any) -> Any:
    from torch._dynamo.variables import functions as known
    from torch._dynamo.variables.constant import ConstantVariable
    from torch._dynamo.variables.lists import TupleVariable
    from torch._dynamo.variables.misc import CellVariable
    from torch._dynamo.variables.tensor import TensorVariable

    functions: Any = known

    def inside(tx: Any, mod: Any) -> bool:
        """Whether the graph makes this mod, from what it has, the mod closes over a variable of the function that is compiled, or it is a method of an object that the graph knows."""
        known, cells = tx.output.side_effects, getattr(getattr(mod, "fn", mod), "__closure__", None) or ()
        if isinstance(mod, functions.UserFunctionVariable) and any(c in known and isinstance(known[c], CellVariable) for c in cells):
            return True  # a cell that an earlier call has looked into is an object of the graph, and no variable
        if isinstance(mod, functions.NestedUserFunctionVariable):
            return mod.has_closure() or mod.defaults is not None or mod.kwdefaults is not None or _reads_tensors(mod)
        return isinstance(mod, (functions.FunctoolsPartialVariable, functions.UserMethodVariable))

    class Variable(base):
        _HOP_NAME = _NAME

        def _call_function(self, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
            query, mask_mod, score_mod, *rest = args
            if not inside(tx, mask_mod) and not inside(tx, score_mod):
                return functions.UserFunctionVariable(_from_outside).call_function(tx, args, kwargs)
            mods: list[Any] = []
            captured: list[Any] = []
            for mod, kind in ((mask_mod, "mask_fn"), (score_mod, "score_mod")):
                if isinstance(mod, ConstantVariable):
                    mods.append(None)
                    continue
                read, lifted = self.create_wrapped_node(tx, query, mod, kind)
                graph = tx.output.nn_modules.pop(read.node.target)
                tx.output.graph.erase_node(read.node)
                values: list[Any] = []
                inputs = [n for n in graph.graph.nodes if n.op == "placeholder"]
                for proxy, own in zip(lifted, inputs[len(inputs) - len(lifted) :], strict=True):
                    example = proxy.node.meta["example_value"]
                    if isinstance(example, torch.Tensor):
                        captured.append(TensorVariable(proxy, **TensorVariable.specialize(example)))
                        values.append(example)
                    elif own.users:
                        values.append(int(example))  # a number that torch.compile takes for dynamic: each value has a graph
                    else:
                        values.append(0)  # the length of a captured tensor, which the mod does not ask for
                mods.append((graph, values))
            mask, score = (None if m is None else as_mod(*m) for m in mods)
            handle = handle_of(mask, score, *(x.as_python_constant() for x in rest))
            return TupleVariable([TupleVariable(captured), ConstantVariable.create(handle)])

    return Variable


def _reads_tensors(mod: Any) -> bool:
    """Whether a function that the graph makes leads to tensors by way of the globals of its file."""
    made = types.FunctionType(mod.get_code(), mod.get_globals())
    return bool(identity(made).tensors)


def as_mod(graph: Any, values: list[Any]) -> tuple[Any, Any, tuple[torch.Tensor, ...]]:
    """(what it is told apart by, the mod, what stands for its tensors) of a graph whose last inputs are these."""
    stand_ins = [torch.empty((1,) * x.ndim, dtype=x.dtype, device="meta") if isinstance(x, torch.Tensor) else x for x in values]
    count = sum(n.op == "placeholder" for n in graph.graph.nodes) - len(values)
    forward = types.FunctionType(graph.forward.__func__.__code__, graph.forward.__func__.__globals__, "mod")
    own = graph if any(n.op == "get_attr" for n in graph.graph.nodes) else None
    if count == 4:

        def mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            result = forward(own, b, h, q_idx, kv_idx, *stand_ins)
            return result[0] if isinstance(result, tuple) else result
    else:

        def mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:  # type: ignore[misc]
            result = forward(own, score, b, h, q_idx, kv_idx, *stand_ins)
            return result[0] if isinstance(result, tuple) else result

    tensors = tuple(x for x in stand_ins if isinstance(x, torch.Tensor))
    who = graph.code, tuple((x.dtype, x.ndim) if isinstance(x, torch.Tensor) else x for x in stand_ins)
    return who, mod, tensors


__all__ = ["read_mods"]
