"""Mods that are made inside of a compiled function.

torch.compile reads such a mod into a graph of its own, and lifts what it closes over to inputs; here that graph becomes
a mod under a handle of the operator. Mods from outside enter as usual (operator.py). This works with the versions of
PyTorch whose tracer has what FlexAttention's own operator uses; with others a call of such mods runs outside of the
graph, and is refused where no call may (`fullgraph=True`).
"""

from __future__ import annotations

import re
import types
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch._ops import HigherOrderOperator
from torch._subclasses import FakeTensor

from ...spec.specification import LENGTHS, Normalize
from ...text.diagnostics import CuirError
from ...text.source import Span
from ..capture import graph_errors
from ..capture.attention_request import Mod, Weighting
from ..capture.call_inputs import check_wrapped
from ..capture.capture_keys import make_capture_key
from ..capture.dispatcher_calls import has_no_numbers, is_traced
from ..capture.graph_errors import at_tracing, has_tried_tracer, name_in_code, remember_places, span_of_error
from .operator import UNKNOWN, GraphMods, ReadMod, collect_captured, handle_of, register_mods

if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch._dynamo.variables.base import VariableTracker
    from torch._dynamo.variables.functions import BaseUserFunctionVariable
    from torch.fx import GraphModule

_NAME = "cuir_flex_attention_mods"


class _Reader(HigherOrderOperator):
    """Mods as a graph meets them, before their origin is known.

    Mods that torch.compile leaves to Python are mods from outside.
    """

    def __init__(self) -> None:
        super().__init__(_NAME)

    @torch._disable_dynamo  # after a graph break, torch.compile would trace the call on its own
    def __call__(self, *args: Any) -> tuple[list[torch.Tensor], str]:
        return _from_outside(*args)


_READ = _Reader()


def read_mods(
    query: torch.Tensor, mask_mod: Mod | None, score_mod: Mod | None, weighting: Weighting, dropout_p: float = 0.0
) -> GraphMods | None:
    """Return the tensors that mods capture, as arguments of an operator, and the handle of the mods.

    No `Variant` has the mods before they are read: torch.compile asks each item of a new tuple whether it is a
    constant, which fixes the numbers that a mod closes over.

    Returns None for mods that an operator cannot hold, in a call that no graph takes. Raises CuirError U418 in code
    that becomes a graph.
    """
    rest = weighting.normalize, weighting.sink is not None, weighting.outputs, dropout_p
    if torch.compiler.is_compiling():
        read = _READ if torch.compiler.is_dynamo_compiling() and enter_tracer() else _from_outside
        captured, handle = read(query, mask_mod, score_mod, *rest)
        return GraphMods(list(captured), handle)
    traced = is_traced()
    for x in (query, *make_capture_key(mask_mod, score_mod).tensors):
        check_wrapped("what a mod captures" if x is not query else "`query`", x)
    try:
        captured, handle = _from_outside(query, mask_mod, score_mod, *rest)
    except CuirError:
        if traced:
            raise
        if not has_no_numbers(query):
            return None
        captured, handle = list(make_capture_key(mask_mod, score_mod).tensors), UNKNOWN
    if isinstance(query, FakeTensor) and not traced:
        captured = [x if isinstance(x, FakeTensor) else query.fake_mode.from_tensor(x) for x in captured]
    return GraphMods(captured, handle)


def _from_outside(
    query: torch.Tensor,
    mask_mod: Mod | None,
    score_mod: Mod | None,
    normalize: Normalize,
    sink: bool,
    outputs: tuple[str, ...],
    dropout_p: float,
) -> tuple[list[torch.Tensor], str]:
    handle = register_mods(mask_mod, score_mod, normalize, sink, outputs, dropout_p)
    return collect_captured(handle, (mask_mod, score_mod)), handle


@at_tracing
def enter_tracer() -> bool:
    """Have torch.compile's tracer ask us about mods; return False where it cannot.

    It runs when a graph is traced.
    """
    try:
        from torch._dynamo.variables.higher_order_ops import FlexAttentionHigherOrderVariable, _hop_name_to_variable_class

        if _NAME not in _hop_name_to_variable_class:
            _hop_name_to_variable_class[_NAME] = _variable(FlexAttentionHigherOrderVariable)
    except ImportError:
        return False
    return True


def _variable(base: Any) -> type[VariableTracker]:
    from torch._dynamo import exc
    from torch._dynamo.variables import functions as dynamo_functions
    from torch._dynamo.variables.base import VariableTracker
    from torch._dynamo.variables.constant import ConstantVariable
    from torch._dynamo.variables.lists import TupleVariable
    from torch._dynamo.variables.misc import CellVariable
    from torch._dynamo.variables.tensor import SymNodeVariable, TensorVariable

    functions: Any = dynamo_functions

    def inside(tx: InstructionTranslatorBase, mod: VariableTracker) -> bool:
        """Return True if the graph makes this mod.

        It does if it makes it from its own values, the mod closes over a variable of the compiled function, or it is a
        method of an object that the graph tracks.
        """
        side_effects, cells = tx.output.side_effects, getattr(getattr(mod, "fn", mod), "__closure__", None) or ()
        if isinstance(mod, functions.UserFunctionVariable) and any(
            c in side_effects and isinstance(side_effects[c], CellVariable) for c in cells
        ):
            return True  # a cell that an earlier call has read is an object of the graph, and no variable
        if isinstance(mod, functions.NestedUserFunctionVariable):
            return mod.has_closure() or mod.defaults is not None or mod.kwdefaults is not None or _leads_on(mod)
        return isinstance(mod, (functions.FunctoolsPartialVariable, functions.UserMethodVariable))

    def is_known(mod: VariableTracker) -> bool:
        """Return True if the tracer knows all of a mod, so that it can be called outside of the graph."""
        try:
            mod.as_python_constant()
        except (NotImplementedError, exc.Unsupported):
            return False
        return True

    def scalar(tx: InstructionTranslatorBase) -> tuple[list[VariableTracker], dict[str, VariableTracker]]:
        """Return the arguments of `new_empty` for an integer of a mod."""
        return [VariableTracker.build(tx, [])], {"dtype": VariableTracker.build(tx, torch.int32)}

    def code_of(mod: VariableTracker) -> types.CodeType | None:
        if isinstance(mod, functions.FunctoolsPartialVariable):
            return code_of(mod.func)
        return mod.get_code() if isinstance(mod, functions.BaseUserFunctionVariable) else None

    def list_missing_lengths(mod: VariableTracker) -> list[str]:
        """Return the names of the lengths that a mod takes by keyword and has no values for."""
        if isinstance(mod, functions.FunctoolsPartialVariable):
            return [n for n in list_missing_lengths(mod.func) if n not in mod.keywords]
        if not isinstance(mod, functions.BaseUserFunctionVariable):
            return []
        code = mod.get_code()
        names = code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount]
        if isinstance(mod, functions.NestedUserFunctionVariable):
            defaults = () if mod.kwdefaults is None else [key.vt.as_python_constant() for key in mod.kwdefaults.items]
        else:
            defaults = mod.get_function().__kwdefaults__ or ()
        return [n for n in names if n in LENGTHS and n not in defaults]

    class Variable(base):
        _HOP_NAME = _NAME

        def _call_function(
            self, tx: InstructionTranslatorBase, args: list[VariableTracker], kwargs: dict[str, VariableTracker]
        ) -> VariableTracker:
            # a number that torch.compile takes for dynamic, such as a probability of dropout: each value has a graph
            args = [ConstantVariable.create(x.evaluate_expr(tx.output)) if isinstance(x, SymNodeVariable) else x for x in args]
            query, mask_mod, score_mod, *rest = args
            if not inside(tx, mask_mod) and not inside(tx, score_mod):
                return functions.UserFunctionVariable(_from_outside).call_function(tx, args, kwargs)
            if not has_tried_tracer():
                unread = next((n for n, mod in (("mask_mod", mask_mod), ("score_mod", score_mod)) if not is_known(mod)), None)
                if unread is None:  # made of constants
                    return functions.UserFunctionVariable(_from_outside).call_function(tx, args, kwargs)
                if tx.output.root_tx.one_graph:
                    refuse_old_version(unread)
                return VariableTracker.build(tx, torch._dynamo.graph_break).call_function(tx, [], {})
            mods: list[tuple[GraphModule, list[Value], types.CodeType | None] | None] = []
            captured: list[VariableTracker] = []
            for mod, kind in ((mask_mod, "mask_fn"), (score_mod, "score_mod")):
                if isinstance(mod, ConstantVariable):
                    mods.append(None)
                    continue
                lengths = {n: query.call_method(tx, "new_empty", *scalar(tx)) for n in list_missing_lengths(mod)}
                names = {x.as_proxy(): n for n, x in lengths.items()}
                bound_mod = functions.FunctoolsPartialVariable(mod, [], lengths) if lengths else mod
                try:
                    read, lifted = self.create_wrapped_node(tx, query, bound_mod, kind)
                except (exc.Unsupported, exc.TorchRuntimeError, exc.UserError) as error:
                    if not tx.output.root_tx.one_graph:
                        raise  # torch.compile falls back to running without a graph
                    refuse_unread(kind, str(error), span_of_error(error))
                graph = tx.output.nn_modules.pop(read.node.target)
                tx.output.graph.erase_node(read.node)
                values: list[Value] = []
                inputs = [n for n in graph.graph.nodes if n.op == "placeholder"]
                for proxy, placeholder in zip(lifted, inputs[len(inputs) - len(lifted) :], strict=True):
                    example = proxy.node.meta["example_value"]
                    if proxy in names:
                        values.append(Length(names[proxy]))
                    elif isinstance(example, torch.Tensor):
                        captured.append(TensorVariable(proxy, **TensorVariable.specialize(example)))
                        values.append(example)
                    elif placeholder.users:
                        values.append(_fix_number(example, kind))
                    else:
                        values.append(0)  # the length of a captured tensor, which the mod does not read
                mods.append((graph, values, code_of(mod)))
                for proxy in names:
                    tx.output.graph.erase_node(proxy.node)
            mask, score = (None if m is None else as_mod(*m) for m in mods)
            handle = handle_of(mask, score, *(x.as_python_constant() for x in rest))
            return TupleVariable([TupleVariable(captured), ConstantVariable.create(handle)])

    return Variable


def _fix_number(number: float | torch.SymFloat | torch.SymInt, kind: str) -> int | float:
    """Guard a number that torch.compile takes for dynamic: each value has a graph.

    Raises CuirError X122 for one that depends on data.
    """
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    try:
        return float(number) if isinstance(number, (float, torch.SymFloat)) else int(number)
    except GuardOnDataDependentSymNode:
        refuse_unread(
            kind, "it reads a number that data decide, such as .item() or the number of selected rows: capture it as a tensor", None
        )


def _leads_on(mod: BaseUserFunctionVariable) -> bool:
    """Return True if a function that the graph makes reads values through globals that no guard covers.

    Such values are tensors, and what functions and objects hold. No guard of ours would notice a change of them, since
    the function is dead when the graph runs.
    """
    capture_key = make_capture_key(types.FunctionType(mod.get_code(), mod.get_globals()))
    return bool(capture_key.tensors) or any(len(path) > 2 for _, path, _ in capture_key.places)


@at_tracing
def refuse_unread(kind: str, reason: str, span: Span | None) -> NoReturn:
    """Raise CuirError X122 for a mod that torch.compile cannot read.

    `reason` is its message.
    """
    first = re.search(r"Explanation: (.*)", reason)
    explanation = (first[1] if first else reason.split("\n")[0]).split(": got ")[-1]
    mod = "mask_mod" if kind == "mask_fn" else "score_mod"
    raise CuirError.of(
        "X122",
        f"torch.compile cannot read a {mod} that is made inside of a compiled function: {explanation}",
        span,
        "make it outside, where a call says what such a mod may not do",
    )


@at_tracing
def refuse_old_version(mod: str) -> NoReturn:
    """Raise CuirError X122 for a mod made inside of a graph that this version of PyTorch cannot expose."""
    needed = ".".join(map(str, graph_errors.TRACER_TRIED))
    raise CuirError.of(
        "X122",
        f"a {mod} that is made inside of a compiled function can be read from PyTorch {needed} on, and this is {torch.__version__}",
        None,
        "make it outside, pass the tensors that it reads as captured ones, or leave out fullgraph=True: the call then runs outside of the graph",
    )


class Length(str):
    """Placeholder of a captured value that is a length of the call, by the length's name."""


Value = torch.Tensor | int | float | Length  # that a mod closes over


def as_mod(graph: GraphModule, values: list[Value], code: types.CodeType | None) -> ReadMod:
    """Return the mod of a graph.

    The last inputs of the graph stand for `values`. `code` is that of the function that became the graph.
    """
    stand_ins = [torch.empty((1,) * x.ndim, dtype=x.dtype, device="meta") if isinstance(x, torch.Tensor) else x for x in values]
    inputs = [n.name for n in graph.graph.nodes if n.op == "placeholder"]
    count = len(inputs) - len(values)
    names = [name_in_code(n) for n in inputs[count:]]
    names = names if len(set(names)) == len(names) else inputs[count:]
    namespace = types.SimpleNamespace(**dict(zip(names, stand_ins, strict=True)))
    remember_places(graph)
    method = graph.forward.__func__  # type: ignore[attr-defined]
    forward = types.FunctionType(method.__code__, method.__globals__, "mod")
    module = graph if any(n.op == "get_attr" for n in graph.graph.nodes) else None

    def run(*indices: torch.Tensor, **lengths: torch.Tensor) -> torch.Tensor:
        result = forward(module, *indices, *(lengths[x] if isinstance(x, Length) else x for x in (getattr(namespace, n) for n in names)))
        return result[0] if isinstance(result, tuple) else result

    def mask_mod(b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor) -> torch.Tensor:
        return run(b, h, q_idx, kv_idx)

    def score_mod(score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor) -> torch.Tensor:
        return run(score, b, h, q_idx, kv_idx)

    def mod_of_lengths(
        *indices: torch.Tensor, B: torch.Tensor, H: torch.Tensor, HK: torch.Tensor, M: torch.Tensor, N: torch.Tensor
    ) -> torch.Tensor:
        return run(*indices, B=B, H=H, HK=HK, M=M, N=N)

    mod: Mod = mod_of_lengths if any(isinstance(x, Length) for x in stand_ins) else mask_mod if count == 4 else score_mod
    if code is not None:
        # where diagnostics find it
        mod.__code__ = mod.__code__.replace(co_filename=code.co_filename, co_firstlineno=code.co_firstlineno)
    tensors = tuple(x for x in stand_ins if isinstance(x, torch.Tensor))
    key = graph.code, tuple((x.dtype, x.ndim) if isinstance(x, torch.Tensor) else x for x in stand_ins)
    return ReadMod(key, mod, tensors)


__all__ = ["read_mods"]
