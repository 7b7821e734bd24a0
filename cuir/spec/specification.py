"""Specifications of attention by mods with the signature of FlexAttention, in float64.

They also compute the error of half precision. `cuir.transfer` converts a specification to splice points.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeGuard, get_args

import torch

from ..attn.outputs.output_table import OUTPUT_NAMES, OUTPUTS, find_outputs
from ..ops.meaning.tiles import split_operands
from ..syntax.caller_values import plain_number
from ..text.diagnostics import CuirError
from ..text.notebook import ShownInNotebooks
from ..text.source import function_span
from .dropout_hash import Dropout
from .function_results import equal_bits
from .global_state import seed_generators
from .user_calls import refuse_function, user_call

Captured = int | float | torch.Tensor | Callable[["Lengths"], int | float | torch.Tensor]
Normalize = Literal["softmax", "sigmoid", "relu"]
# (0 for the mask, 1 for the score; the lengths; the device; the scores) -> of all pairs
Evaluated = Callable[..., torch.Tensor | None]
LENGTHS = ("B", "H", "HK", "M", "N")
OTHER_SEED = 0x5EED  # of global generators, for the second call of a function that draws from them
SINK = "sink"  # the name under which the sink is captured
_PRODUCTS = (0.0, 1.0, -1.0, 64.0, -64.0, 4096.0, -4096.0)  # scaled; at least one has a finite score if the pair counts

Mod = Callable[..., torch.Tensor]  # a mask_mod (b, h, q_idx, kv_idx) or score_mod (score, b, h, q_idx, kv_idx)


@dataclass(frozen=True)
class Lengths:
    """The sizes of one problem: batch, query heads, key heads, queries, keys."""

    B: int
    H: int
    HK: int
    M: int
    N: int


@dataclass(frozen=True)
class Specification(ShownInNotebooks):
    """An attention variant, as users of FlexAttention write it.

    `mask_mod(b, h, q_idx, kv_idx)` is true where the query may attend to the key; `score_mod(score, b, h, q_idx,
    kv_idx)` returns the new score from `score = scale * <q, k>`. Either may be omitted. After `*` a mod may take by
    name the lengths `B, H, HK, M, N` and the entries of `captured`: numbers, tensors, or functions `Lengths -> tensor`
    for data that follow the problem's size. Numbers and tensors that a mod closes over, and keyword parameters with a
    default, are captured as well. Captured values become parameters of the kernel, so another prefix, another window or
    other documents need no new kernel; so do `M` and `N`.

    normalize: the weight of a key's value from its score s, after both mods. A pair that the mask drops has weight 0.
    "softmax": exp(s) over the sum of all keys. "sigmoid": 1 / (1 + exp(-s)). "relu": max(s, 0) / N. The last two do not
    depend on other keys.
    sink: a learned logit of each head, f32 [H] (or a number for all, or a function `Lengths -> tensor`), that enters
    the softmax's sum and has no value.
    max_scores: the kernel also returns MAX_SCORES [B, H, M], f32: the largest score of each query after both mods, -inf
    for a query without keys.
    outputs: names of further outputs of the kernel, f32 [B, H, M]; "MAX_SCORES" is the same as `max_scores`.
    dropout: weights become 0 with a probability, and the others are rescaled, after the normalisation: LSE is that of
    all weights.

    Order: scale, score_mod, mask_mod, normalize. A query without keys has O = 0. LSE is the natural logarithm of the
    softmax's sum, sink included: -inf for a query without keys and sink. Without a softmax there is no sum, and LSE is
    0.
    """

    html_renderer = "pages.notebook_forms:render_specification"

    name: str
    mask_mod: Mod | None = None
    score_mod: Mod | None = None
    captured: Mapping[str, Captured] = field(default_factory=dict)
    doc: str = ""
    normalize: Normalize = "softmax"
    sink: Captured | None = None
    max_scores: bool = False
    dropout: Dropout | None = None
    evaluated: Evaluated | None = None  # evaluates many pairs at once, for mods of a single pair
    outputs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "sink", plain_number(self.sink))
        if any(plain_number(value) is not value for value in self.captured.values()):
            object.__setattr__(self, "captured", {name: plain_number(value) for name, value in self.captured.items()})
        self._check_normaliser()
        for name in self.outputs:
            if name not in OUTPUT_NAMES:
                raise CuirError.of("X101", f"`outputs` of `{self.name}` are among {', '.join(OUTPUT_NAMES)}, found {name!r}")
        for mod, kind, count in ((self.mask_mod, "mask_mod", 4), (self.score_mod, "score_mod", 5)):
            if mod is None:
                continue
            if not callable(mod):
                raise CuirError.of("X101", f"{kind} of `{self.name}` must be a function, found {type(mod).__name__}")
            try:
                positional, variadic = _positional(mod)
            except ValueError:  # a builtin, such as torch.add, does not say what it takes
                hint = "lambda score, b, h, q_idx, kv_idx: ..." if count == 5 else "lambda b, h, q_idx, kv_idx: ..."
                raise CuirError.of(
                    "X101", f"{kind} of `{self.name}` must be a Python function, found {mod!r}, which does not say what it takes", hint=hint
                ) from None
            if positional != count and not (variadic and positional < count):
                expected = "(b, h, q_idx, kv_idx)" if count == 4 else "(score, b, h, q_idx, kv_idx)"
                raise CuirError.of(
                    "X101",
                    f"{kind} of `{self.name}` takes {expected}, found {positional} positional parameters",
                    function_span(function_of(mod)),
                    "other values: close over them, or take them by keyword after `*`",
                )
            for p in keyword_parameters(mod):
                if p.name not in LENGTHS and p.name not in self.captured and p.default is p.empty:
                    raise CuirError.of(
                        "X102",
                        f"{kind} of `{self.name}` asks for `{p.name}`, which is no length ({', '.join(LENGTHS)}) and is not captured",
                        function_span(function_of(mod)),
                        f'give it a default, or pass captured={{"{p.name}": ...}}',
                    )

    def _check_normaliser(self) -> None:
        if self.normalize not in get_args(Normalize):
            raise CuirError.of("X103", f"normalize of `{self.name}` is one of {', '.join(get_args(Normalize))}, found {self.normalize!r}")
        if self.sink is None:
            return
        if self.normalize != "softmax":
            raise CuirError.of(
                "X103",
                f"a sink is a logit of a softmax, and `{self.name}` has normalize={self.normalize!r}",
                hint="leave the sink out: these weights have no sum that it could enter",
            )
        if SINK in self.captured:
            raise CuirError.of(
                "X103", f"`{SINK}` is the sink of `{self.name}`, found another value of this name", hint="give that another name"
            )
        tensor = isinstance(self.sink, torch.Tensor)
        if not tensor and (isinstance(self.sink, bool) or not (isinstance(self.sink, (int, float)) or callable(self.sink))):
            raise CuirError.of(
                "X103",
                f"the sink of `{self.name}` is a number, a tensor [H] or a function of the lengths, found {type(self.sink).__name__}",
            )
        if isinstance(self.sink, (int, float)) and not self.sink < math.inf:
            raise CuirError.of("X103", f"the sink of `{self.name}` is a finite number, or -inf for none, found {self.sink}")
        if isinstance(self.sink, torch.Tensor) and (self.sink.ndim > 1 or not self.sink.dtype.is_floating_point):
            raise CuirError.of(
                "X103", f"the sink of `{self.name}` is a floating-point tensor [H], found {self.sink.dtype} {list(self.sink.shape)}"
            )

    @property
    def weighting(self) -> tuple[object, ...]:
        """Key of the weights besides the mods.

        It includes whether there is dropout, not its probability or seed.
        """
        return self.normalize, self.sink, *self.output_names, *(() if self.dropout is None else (True,))

    @property
    def output_names(self) -> tuple[str, ...]:
        """The further outputs that it asks for, in the order of their table."""
        by_option = (o.name for o in OUTPUTS if o.request_field is not None and getattr(self, o.request_field, False))
        return tuple(o.name for o in find_outputs({*self.outputs, *by_option}))

    @property
    def data(self) -> Mapping[str, Captured]:
        """All captured values by name, the sink included."""
        return self.captured if self.sink is None else {**self.captured, SINK: self.sink}

    def values(self, lengths: Lengths) -> dict[str, int | float | torch.Tensor]:
        """Compute the captured values by name, for a problem of these lengths."""
        captured: dict[str, int | float | torch.Tensor] = {}
        for name, value in self.data.items():
            result: int | float | torch.Tensor = (
                value if isinstance(value, (int, float, torch.Tensor)) else self._call(f"`{name}` of", value, lengths)
            )
            # a function of the lengths is data of a launch, as a tensor is
            if result is not value and isinstance(result, (int, float)):
                result = torch.tensor(result, dtype=torch.float32 if isinstance(result, float) else torch.int32)
            captured[name] = result
        return captured

    def mods(self, lengths: Lengths, device: torch.device | str = "cpu", as_tensors: bool = False) -> tuple[Mod | None, Mod | None]:
        """Return (mask_mod, score_mod) with FlexAttention's signature; named parameters are bound.

        Lengths are numbers, or tensors without dims if `as_tensors`.
        """
        available: dict[str, int | float | torch.Tensor] = {name: getattr(lengths, name) for name in LENGTHS}
        if as_tensors:
            available = {name: torch.tensor(n) for name, n in available.items()}
        available |= {n: v for n, v in self.values(lengths).items() if n in self.captured}
        available = {n: v.to(device) if isinstance(v, torch.Tensor) else v for n, v in available.items()}

        def bind(mod: Mod | None) -> Mod | None:
            if mod is None:
                return None
            bound = {
                p.name: available[p.name]
                for p in keyword_parameters(mod)
                if p.name in self.captured or p.name in list_requested_lengths(mod)
            }
            if mod is self.mask_mod:  # FlexAttention counts positional parameters
                return lambda b, h, q_idx, kv_idx: mod(b, h, q_idx, kv_idx, **bound)
            return lambda score, b, h, q_idx, kv_idx: mod(score, b, h, q_idx, kv_idx, **bound)

        return bind(self.mask_mod), bind(self.score_mod)

    def mask(self, lengths: Lengths, device: torch.device | str = "cpu") -> torch.Tensor:
        """Compute the pairs that are kept: bool [B, H, M, N]."""
        shape = (lengths.B, lengths.H, lengths.M, lengths.N)
        if self.mask_mod is None:
            return torch.ones(shape, dtype=torch.bool, device=device)
        return self._apply(0, lengths, device).to(torch.bool).expand(shape)

    def _apply(self, index: int, lengths: Lengths, device: torch.device | str, *scores: torch.Tensor) -> torch.Tensor:
        """Evaluate a mod for all pairs; which: 0 for the mask, 1 for the score.

        Lengths are numbers, but tensors for a mod that passes them to functions of tensors, such as torch.log.
        """
        if self.evaluated is not None and (values := self.evaluated(index, lengths, device, *scores)) is not None:
            return values
        for as_tensors in (False, True):
            mod = self.mods(lengths, device, as_tensors)[index]
            assert mod is not None
            try:
                user_mod = (self.mask_mod, self.score_mod)[index]
                kind = ("mask_mod", "score_mod")[index]
                return torch.as_tensor(
                    self._call(f"{kind} of", mod, *scores, *indices(lengths, device), user_function=user_mod), device=device
                )
            except TypeError:
                if as_tensors:
                    raise
        raise AssertionError

    def _call(
        self, role: str, function: Callable[..., object], *arguments: object, user_function: Callable[..., object] | None = None
    ) -> Any:
        """Call a user's function and return its result.

        user_function: the function that `function` calls, as the user wrote it. Raises CuirError X118, X119, X125,
        X126.
        """
        subject = f"{role} the specification `{self.name}`"
        tensors = [(x, x._version) for x in arguments if isinstance(x, torch.Tensor) and not x.is_inference()]
        with user_call(subject, user_function or function) as call:
            result = function(*arguments)
        if any(x._version != version for x, version in tensors):
            error = CuirError.of(
                "X126",
                f"{subject} writes to its argument",
                function_span(user_function or function),
                "return the new value: score * 2 instead of score.mul_(2)",
            )
            raise refuse_function(user_function or function, error)
        if call.drawn:
            with user_call(subject, user_function or function):
                seed_generators(OTHER_SEED)
                second = function(*arguments)
            if not equal_bits(torch.as_tensor(result), torch.as_tensor(second)):
                error = CuirError.of(
                    "X118",
                    f"{subject} draws from {' and '.join(call.drawn)}: it gives something else at each call",
                    function_span(user_function or function),
                    "capture a tensor that is drawn once, or take Dropout(p, seed) for dropout of weights",
                )
                raise refuse_function(user_function or function, error)
        return result

    def compute_kept(self, lengths: Lengths) -> torch.Tensor:
        """Compute the pairs that count, bool [B, H, M, N].

        Those of the mask, without those whose score is -inf whatever their product is (a score_mod that masks).
        """
        mask = self.mask(lengths)
        if self.score_mod is None:
            return mask
        result = torch.zeros_like(mask)
        for product in _PRODUCTS:
            result |= self.scores(torch.full(mask.shape, product), lengths) > -torch.inf
            if bool((result == mask).all()):
                break
        return result

    def scores(self, s: torch.Tensor, lengths: Lengths) -> torch.Tensor:
        """Compute natural logits from scaled products [B, H, M, N]; -inf where the mask drops a pair."""
        if self.score_mod is not None:
            with default_dtype(s.dtype):
                s = self._apply(1, lengths, s.device, s).to(s.dtype).expand(s.shape)
        return s.masked_fill(~self.mask(lengths, s.device), -torch.inf)

    def weights(self, s: torch.Tensor, lengths: Lengths) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the weights of the values, and LSE [B, H, M], from logits [B, H, M, N], in the same dtype.

        Pairs that are dropped have logit -inf and weight 0.
        """
        p, lse = self._normalize_scores(s, lengths)
        return p if self.dropout is None else self.dropout.apply(p, lengths), lse

    def _normalize_scores(self, s: torch.Tensor, lengths: Lengths) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute weights before dropout, and LSE."""
        if self.normalize == "sigmoid":
            return torch.sigmoid(s), s.new_zeros(s.shape[:-1])
        if self.normalize == "relu":
            return s.clamp(min=0) / max(1, lengths.N), s.new_zeros(s.shape[:-1])
        lse = s.logsumexp(-1)
        if self.sink is not None:
            lse = torch.logaddexp(lse, self.sinks(lengths).to(s)[:, None])
        return torch.exp(s - lse.masked_fill(lse == -torch.inf, 0.0)[..., None]), lse

    def sinks(self, lengths: Lengths) -> torch.Tensor:
        """Return the sink of each head, [H]. Raises CuirError X104 if there are fewer than heads."""
        value = self.values(lengths)[SINK]
        if not isinstance(value, torch.Tensor) or value.ndim == 0:
            return torch.full((lengths.H,), float(value), dtype=torch.float64)
        if type(value) in (torch.Tensor, torch.nn.Parameter) and value.shape[0] < lengths.H:
            raise CuirError.of("X104", f"the sink of `{self.name}` has a logit for each head, found {value.shape[0]} for {lengths.H} heads")
        sinks: torch.Tensor = value.detach()[torch.arange(lengths.H, device=value.device)]
        return sinks

    def reference(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the variant in float64: q [B, H, M, D], k and v [B or 1, HK, N, D] -> O, LSE.

        O is [B, H, M, D], LSE [B, H, M] (natural logarithm).
        """
        lengths = lengths_of(q, k)
        p, lse = self.weights(self.scores(products(q, k, scale), lengths), lengths)
        return p @ _per_head(v, lengths).double(), lse

    def most(self, q: torch.Tensor, k: torch.Tensor, scale: float) -> torch.Tensor:
        """Compute the largest score of each query in float64, [B, H, M]; -inf for a query without keys."""
        return self.compute_output("MAX_SCORES", q, k, scale)

    def compute_output(self, name: str, q: torch.Tensor, k: torch.Tensor, scale: float) -> torch.Tensor:
        """Compute a further output in float64, [B, H, M]."""
        (output,) = find_outputs((name,))
        lengths = lengths_of(q, k)
        scores = self.scores(products(q, k, scale), lengths)
        return output.compute_expected(scores, self._normalize_scores(scores, lengths)[0])

    def half(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        scale: float,
        parts: int = 0,
        portion: float = 1.0,
        exact_scores: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the same as `reference` in the dtype of q, as eager FlexAttention does.

        Products and weights are in half precision, the rest in float32; of 8-bit floats only weights are rounded.

        parts: 1 for products of float32 whose operands are TF32.
        portion: the factor of each weight in the product with v, which is divided by it afterwards, as kernels divide
        by the sum: weights round otherwise then.
        exact_scores: the mods see products that are not rounded.
        """
        lengths = lengths_of(q, k)
        k, v = _per_head(k, lengths), _per_head(v, lengths)
        narrow = q.dtype.itemsize == 1
        products = q.float() @ k.float().mT if exact_scores or narrow else _half_product(q, k.mT, parts).float()
        p, lse = self.weights(self.scores(products * scale, lengths), lengths)
        weights = (p * portion).to(q.dtype)
        return (weights.float() @ v.float() if narrow else _half_product(weights, v, parts)) / portion, lse


def _half_product(a: torch.Tensor, b: torch.Tensor, parts: int = 0) -> torch.Tensor:
    """Compute a @ b in half precision: accumulated in float32 and rounded once.

    On a CPU torch computes the same many times more slowly than in float32.
    """
    if parts == 1:
        a, b = split_operands(a, b, parts)
    return (a.float() @ b.float()).to(a.dtype) if a.device.type == "cpu" else a @ b


def products(q: torch.Tensor, k: torch.Tensor, scale: float, parts: int = 0) -> torch.Tensor:
    """Compute the scaled products of queries and keys in float64, [B, H, M, N].

    parts: 1 for operands rounded to TF32.
    """
    a, b = q, _per_head(k, lengths_of(q, k)).mT
    if parts == 1:
        a, b = split_operands(a, b, parts)
    return a.double() @ b.double() * scale


def lengths_of(q: torch.Tensor, k: torch.Tensor) -> Lengths:
    """Return the lengths of queries [B, H, M, D] and keys [B, HK, N, D]."""
    return Lengths(q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2])


def indices(lengths: Lengths, device: torch.device | str) -> tuple[torch.Tensor, ...]:
    """Return b, h, q_idx, kv_idx as broadcasting index tensors of shape [B, 1, 1, 1] ... [1, 1, 1, N]."""
    sizes = (lengths.B, lengths.H, lengths.M, lengths.N)
    return tuple(torch.arange(n, device=device).view([-1 if i == d else 1 for i in range(4)]) for d, n in enumerate(sizes))


def keyword_parameters(mod: Callable[..., object]) -> list[inspect.Parameter]:
    """List the keyword-only parameters of a mod."""
    if _plain(mod) and not mod.__code__.co_kwonlyargcount:
        return []
    return [p for p in signature_of(mod).parameters.values() if p.kind is p.KEYWORD_ONLY]


def signature_of(mod: Callable[..., object]) -> inspect.Signature:
    """Return the signature of a mod; of a torch.nn.Module that of its `forward`.

    Raises ValueError for a builtin.
    """
    return inspect.signature(function_of(mod))


def function_of(mod: Callable[..., object]) -> Callable[..., object]:
    """Return the function that a mod runs: a torch.nn.Module's `forward`."""
    return mod.forward if isinstance(mod, torch.nn.Module) else mod


def list_requested_lengths(mod: Callable[..., object]) -> tuple[str, ...]:
    """List the lengths that a mod takes by keyword.

    A parameter with a default keeps it, whatever its name: PyTorch passes nothing by keyword.
    """
    return tuple(p.name for p in keyword_parameters(mod) if p.name in LENGTHS and p.default is p.empty)


def _plain(function: Callable[..., object]) -> TypeGuard[types.FunctionType]:
    """Return whether a function's code lists its parameters.

    Signatures would dominate a step that makes its mods anew.
    """
    return isinstance(function, types.FunctionType) and not function.__dict__


def _positional(function: Callable[..., object]) -> tuple[int, bool]:
    """Count the required positional parameters; also return whether there are more (`*args`)."""
    if _plain(function):
        return function.__code__.co_argcount - len(function.__defaults__ or ()), bool(function.__code__.co_flags & inspect.CO_VARARGS)
    parameters = signature_of(function).parameters.values()
    kinds = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return sum(p.default is p.empty for p in kinds), any(p.kind is p.VAR_POSITIONAL for p in parameters)


def _per_head(x: torch.Tensor, lengths: Lengths) -> torch.Tensor:
    return x.repeat_interleave(lengths.H // lengths.HK, dim=1)


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set torch's default dtype, which integers times Python floats become, within the block.

    A float64 reference is float64 throughout.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
