"""assert_attention_matches: a rule of attention, forward and gradients, against PyTorch in float64."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from ..attn.verification.numeric import RATIO_ROW, compute_share, get_ratio
from ..attn.verification.problems import Case, draw_attention_inputs
from ..flex import create_block_mask, flex_attention
from ..spec.gradients import Arithmetic, forward
from ..spec.specification import Lengths, Specification
from ..text.diagnostics import CuirError, Diagnostic
from .captured_gradients import DRAWS, SubstituteTensors, list_learned, measure_gradient
from .session_settings import MismatchError, identify, make_failure, run_once, session

Mod = Callable[..., torch.Tensor]
_INPUTS = ("query", "key", "value")
_HINT = "cuir.verify of the rule names the place in the kernel (docs/verification.md)"
REORDERED = 7  # further evaluations by PyTorch, where one does not allow a result
_ROW_FLOAT32 = 2.5  # allowed multiple of the error of the worst row in float32: kernels make a product of three in TF32
_LSE_ROUNDING = 2.0**-12  # relative: half of what one bit of float16 is


def assert_attention_matches(
    score_mod: Mod | None = None,
    mask_mod: Mod | None = None,
    *,
    M: int,
    N: int,
    B: int = 1,
    H: int = 2,
    HK: int | None = None,
    D: int = 64,
    DV: int | None = None,
    scale: float | None = None,
    dtype: torch.dtype = torch.float16,
    kind: str = "normal",
    seed: int = 0,
    gradients: bool = True,
    gpu: bool | None = None,
) -> None:
    """Assert that `cuir.flex_attention` computes a rule as PyTorch's does, with its gradients.

    The kernels run in the interpreter, with `--cuir-gpu` on the GPU. Output, LSE and gradients are compared with
    PyTorch's operators in float64. Allowed are 1.2 times the error that these make in `dtype`, twice in float32, and
    the rounding of the result; in a row twice PyTorch's error, in float32 2.5 times,
    and twice the rounding. PyTorch's error is the largest of
    several orders of the head dim. LSE is compared with operators in float32, beside a rounding of 2^-12. Gradients are those of query, key, value, and of captured tensors that require
    one; a captured tensor of few elements is allowed three deviations of PyTorch's error more.

    Args:
        score_mod: score_mod(score, b, h, q_idx, kv_idx).
        mask_mod: mask_mod(b, h, q_idx, kv_idx).
        M: number of queries.
        N: number of keys.
        HK: number of key heads; H by default.
        DV: head dim of value; D by default.
        scale: of the scores; `1 / sqrt(D)` by default.
        kind: how query, key and value are drawn (docs/testing.md).
        seed: of what is drawn.
        gradients: also compare gradients.
        gpu: run on the GPU instead of the interpreter; as `--cuir-gpu` says by default.

    Raises:
        MismatchError: (an AssertionError) a result differs.
        CuirError: the call or the rule is wrong.
    """
    __tracebackhide__ = True
    description = f"M={M}, N={N}, B={B}, H={H}, HK={HK or H}, D={D}, DV={DV or D}, dtype={dtype}, kind={kind!r}, seed={seed}"
    if scale is not None:
        description += f", scale={scale}"
    call = f"assert_attention_matches(score_mod, mask_mod, {description})"

    def check() -> MismatchError | None:
        case = Case("one problem", Lengths(B, H, HK or H, M, N), kind, seed)  # type: ignore[arg-type]
        factor = D**-0.5 if scale is None else scale
        inputs = [x.to(dtype) for x in draw_attention_inputs(case, (D, DV or D), 128, factor, dtype)]
        rule = _Rule(score_mod, mask_mod, factor, gradients, seed)
        device = "cuda" if (session.gpu if gpu is None else gpu) else "cpu"
        exact, ours = rule.compute_pytorch([x.double() for x in inputs]), rule.compute_ours(inputs, device)
        return _compare(ours, exact, rule.iterate_pytorch(inputs), dtype, call) or _compare_captured(rule, inputs, call)

    failure = run_once((identify(score_mod), identify(mask_mod), call, gradients, gpu), check)
    if failure is not None:
        raise failure from None


class _Rule:
    """A rule of attention: its results with these kernels, and by PyTorch's operators."""

    def __init__(self, score_mod: Mod | None, mask_mod: Mod | None, scale: float, gradients: bool, seed: int):
        self.score_mod, self.mask_mod, self.scale, self.gradients, self.seed = score_mod, mask_mod, scale, gradients, seed
        self.learned = list_learned(score_mod, mask_mod) if gradients else []
        self.ours: list[torch.Tensor] = []  # gradients of the learned tensors

    def compute_ours(self, inputs: Sequence[torch.Tensor], device: str) -> dict[str, torch.Tensor]:
        """Compute output, LSE and gradients by the kernels, in the interpreter or on the GPU.

        They are returned on the CPU.
        """
        backend = "auto" if device == "cuda" else "interpret"

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            mask = (
                None if self.mask_mod is None else create_block_mask(self.mask_mod, q.shape[0], q.shape[1], q.shape[2], k.shape[2], device)
            )
            is_grouped = q.shape[1] != k.shape[1]
            results: tuple[torch.Tensor, torch.Tensor] = flex_attention(
                q, k, v, self.score_mod, mask, self.scale, is_grouped, return_lse=True, backend=backend, verify="off"
            )
            return results

        results, [self.ours, *_] = self._compute(attend, [x.to(device) for x in inputs], [c.tensor for c in self.learned], 1)
        return results

    def compute_pytorch(self, inputs: Sequence[torch.Tensor], order: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """Compute output, LSE and gradients by PyTorch's operators, in the dtype of the inputs.

        order: of the elements of a value in `inputs`, by which the gradient of the output is reordered.
        """
        return self._compute(lambda q, k, v: forward(self.specification, q, k, v, self.scale), inputs, [], 1, order)[0]

    def iterate_pytorch(self, inputs: Sequence[torch.Tensor]) -> Iterator[dict[str, torch.Tensor]]:
        """Compute results by PyTorch's operators, of the inputs and of `REORDERED` orders of the head dims.

        The exact results do not depend on that order, and rounding does: one evaluation may have a small error by chance.
        """
        generator = torch.Generator().manual_seed(self.seed)
        for i in range(1 + REORDERED):
            orders = [torch.arange(x.shape[-1]) if i == 0 else torch.randperm(x.shape[-1], generator=generator) for x in inputs[1:]]
            order, values_order = orders
            query, key, value = inputs
            reordered = [query[..., order], key[..., order], value[..., values_order]]
            places = {"gradient of query": order, "gradient of key": order, "gradient of value": values_order, "output": values_order}
            results = self.compute_pytorch(reordered, values_order)
            results["LSE"] = self.compute_lse([x.float() for x in reordered])
            yield {name: x[..., places[name].argsort()] if name in places else x for name, x in results.items()}

    def compute_captured(self, inputs: Sequence[torch.Tensor], dtype: torch.dtype | None = None) -> list[list[torch.Tensor]]:
        """Compute gradients of captured tensors by PyTorch's operators, for each of `DRAWS` gradients of O.

        As every kernel does, these take row_sum(O * dO) of the rounded O.

        Args:
            dtype: of the captured tensors; None for their own.
        """
        arithmetic = Arithmetic(separate_row_sum=True)
        with SubstituteTensors(self.learned, dtype) as substitutes:
            attend = functools.partial(forward, self.specification, scale=self.scale, arithmetic=arithmetic)
            return self._compute(attend, inputs, substitutes.leaves, DRAWS)[1]

    def compute_lse(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """Compute LSE by PyTorch's operators, in the dtype of the inputs."""
        query, key, value = inputs
        return forward(self.specification, query, key, value, self.scale)[1]

    @functools.cached_property
    def specification(self) -> Specification:
        """The rule, whose mods see one pair at a time, as in PyTorch."""
        mask_mod = None if self.mask_mod is None else _map_pairs(self.mask_mod, ())
        score_mod = None if self.score_mod is None else _map_pairs(self.score_mod, (0,))
        return Specification("the rule", mask_mod, score_mod)

    def _compute(
        self,
        attend: Callable[..., tuple[torch.Tensor, torch.Tensor]],
        inputs: Sequence[torch.Tensor],
        learned: Sequence[torch.Tensor],
        draws: int,
        order: torch.Tensor | None = None,
    ) -> tuple[dict[str, torch.Tensor], list[list[torch.Tensor]]]:
        """Return the results by name, and gradients of captured tensors for each of `draws` gradients of O."""
        leaves = [x.detach().requires_grad_(self.gradients) for x in inputs]
        output, lse = attend(*leaves)
        results, of_captured = {"output": output.detach().cpu(), "LSE": lse.detach().cpu()}, []
        for i in range(draws if learned else int(self.gradients)):
            upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(self.seed + 1 + i)).to(output)
            upstream = upstream if order is None else upstream[..., order]
            sources = [*leaves, *learned] if i == 0 else list(learned)
            gradients = torch.autograd.grad(output, sources, upstream, draws > 1, allow_unused=True, materialize_grads=True)
            if i == 0:
                results |= {f"gradient of {name}": g.cpu() for name, g in zip(_INPUTS, gradients)}
            of_captured.append([g.cpu() for g in gradients[len(sources) - len(learned) :]])
        return results, of_captured or [[]]


def _map_pairs(mod: Mod, scores: tuple[int, ...]) -> Mod:
    """Return a mod for tensors of scores and indices that calls one for single pairs.

    scores: (0,) if the mod takes a score.
    """

    @functools.wraps(mod)
    def map_arguments(*arguments: torch.Tensor, **named: object) -> torch.Tensor:
        def pair(*values: torch.Tensor) -> torch.Tensor:
            return torch.as_tensor(mod(*values, **named))

        function = pair
        for place in (3, 2, 1, 0):
            function = torch.vmap(function, (*scores, *(0 if i == place else None for i in range(4))))
        indices = [x.flatten() for x in arguments[len(scores) :]]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")
            result: torch.Tensor = function(*arguments[: len(scores)], *indices)
        return result

    return map_arguments


def _compare(
    ours: Mapping[str, torch.Tensor],
    exact: Mapping[str, torch.Tensor],
    pytorch: Iterator[Mapping[str, torch.Tensor]],
    dtype: torch.dtype,
    call: str,
) -> MismatchError | None:
    """Return a failure for the first result that differs by more than is allowed.

    pytorch: evaluations by PyTorch's operators, whose largest errors are the yardstick. Further ones are made only
    for a result that the first does not allow.
    """
    evaluations = [next(pytorch)]
    for name, expected in exact.items():
        error = _measure(ours[name].double(), expected)
        limits = _compute_limits(evaluations, name, expected, dtype)
        if max(map(compute_share, error[:2], limits)) > 1:
            evaluations += pytorch
            limits = _compute_limits(evaluations, name, expected, dtype)
        if max(map(compute_share, error[:2], limits)) > 1:
            text = (
                f"{name} differs from float64 by {error[0]:.2e}, allowed {limits[0]:.2e}; "
                f"its worst row {error[2]} by {error[1]:.2e}, allowed {limits[1]:.2e}"
            )
            return make_failure("`flex_attention` differs from PyTorch's", CuirError([Diagnostic("V301", text, None, (), _HINT)]), call)
    return None


def _compute_limits(
    evaluations: Sequence[Mapping[str, torch.Tensor]], name: str, expected: torch.Tensor, dtype: torch.dtype
) -> tuple[float, float]:
    """Return the allowed relative errors of a result, in the norm and of the worst row."""
    norms, rows, _ = zip(*(_measure(x[name].double(), expected) for x in evaluations))
    rounding = _LSE_ROUNDING if name == "LSE" else torch.finfo(dtype).eps / 2
    row_ratio = _ROW_FLOAT32 if dtype == torch.float32 else RATIO_ROW
    return get_ratio(dtype) * max(norms) + rounding, row_ratio * max(rows) + 2 * rounding


def _compare_captured(rule: _Rule, inputs: Sequence[torch.Tensor], call: str) -> MismatchError | None:
    """Return a failure for the first captured tensor whose gradient differs by more than is allowed."""
    if not rule.learned:
        return None
    exact, pytorch = rule.compute_captured([x.double() for x in inputs], torch.float64), rule.compute_captured(inputs)
    for i, (captured, ours) in enumerate(zip(rule.learned, rule.ours)):
        rounding = torch.finfo(captured.tensor.dtype).eps / 2
        measured = measure_gradient(ours, [d[i] for d in exact], [d[i] for d in pytorch], get_ratio(inputs[0].dtype), rounding)
        if compute_share(measured.error, measured.allowed) > 1:
            text = (
                f"gradient of {captured.name} differs from float64 by {measured.error:.2e}, "
                f"allowed {measured.allowed:.2e} (PyTorch's own {measured.pytorch:.2e})"
            )
            return make_failure("`flex_attention` differs from PyTorch's", CuirError([Diagnostic("V301", text, None, (), _HINT)]), call)
    return None


def _measure(x: torch.Tensor, exact: torch.Tensor) -> tuple[float, float, list[int]]:
    """Return the relative error in the norm, that of the worst row, and the row.

    The worst row's error is relative to the largest row.
    """
    difference = torch.where((x == exact) | (x.isnan() & exact.isnan()), 0.0, x - exact)  # infinities of one sign are equal
    if not difference.numel():
        return 0.0, 0.0, []
    rows, norms = difference.norm(dim=-1), exact.nan_to_num(0.0, 0.0, 0.0).norm(dim=-1)
    scale = norms.norm().item() or 1.0
    row = int(rows.nan_to_num(torch.inf).argmax())
    place = [int(i) for i in torch.unravel_index(torch.tensor(row), rows.shape)]
    return difference.norm().item() / scale, rows.flatten()[row].item() / (norms.max().item() or 1.0), place
