"""Problems for an attention kernel: shapes, inputs and poisoned outputs."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import torch

from ...arguments.binding import TORCH
from ...arguments.requirements import copy_of, pad_arguments
from ...checking.checked import Checked
from ...ops.expressions import traits
from ...ops.meaning.tiles import cast as cast_tile
from ...spec.function_specification import AnySpecification
from ...spec.specification import Lengths, Specification
from ...syntax.nodes import Call, Expr, GlobalType, Kernel, Program
from ...syntax.nodes import Literal as Number
from ...syntax.types import F32, DType
from ...syntax.walk import walk
from ...text.diagnostics import CuirError
from ...verification.values.special_plan import SPECIAL
from ..outputs.output_table import OUTPUT_NAMES
from ..splicing.captured_arguments import compute_captured_arguments
from ..tracing.splice_names import VALUE_SCALE

Kind = Literal[
    "normal",
    "strided",
    "large",
    "tiny",
    "equal",
    "spikes",
    "zero",
    "growing",
    "huge",
    "offset",
    "constant",
    "wide",
    "scaled",
    "aligned",
    "largest",
    "ties",
    "onehot",
    "faint",
    "hidden",
    "bounds",
    "infinite",
    "nan",
    "steep",
    "vast",
    "near",
    "both",
    "edges",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
# near 8, below which kernels keep a row's maximum; query m has GROWTHS[m % 6]
GROWTHS = (9.5, 8.4, 7.7, 0.0, 16.5, 3.0)
FREE_HEAD_DIM = 64  # drawn for a kernel whose head dim is a runtime dim
SCALED = 24  # times the usual scale
_MANY = 8  # blocks of `growing`
_RANKS = {"Q": 4, "K": 4, "V": 4, "O": 4, "LSE": 3}


@dataclass(frozen=True)
class Case:
    """One numeric problem; `kind` selects its inputs.

    normal: N(0, 1). strided: the same, heads inside of positions in memory. large: logits of about +-100. tiny: 2^-12.
    equal: all keys are equal.
    spikes: single entries of 40 among small ones. zero: all zero. growing: the largest base-2 logit of a query changes
    from a block of keys to the next by one of GROWTHS, upwards in the even key heads, downwards in the odd ones, and
    small weights of the first blocks have large values. huge: products that overflow f16 before they are scaled, logits
    of some thousands. offset: all logits near +-160, where exp overflows or gives 0 unless the maximum is subtracted.
    constant: all queries, keys and values of a head are equal. wide: queries from 2^-12 to 2^5. scaled: as normal, the
    scale 24 / sqrt(head dim) instead of 1 / sqrt(head dim). largest: values up to half of the largest of f16, for
    bfloat16 up to 1e30. ties: each key twice. onehot: queries, keys and values of a single 1. seed: of the numbers.
    For functions other than attention, one tensor, chosen by the seed, is large (x 30), wide (rows from 2^-14 to 2^13),
    zero, constant (equal rows), equal (each row of one value), growing (along a row), offset (a mean a thousand times
    the deviation), aligned (rows of almost one direction), largest (up to the largest number of f16, or beyond f16's
    range up to 1e38), ties (small integers), onehot, or faint (rows as small as the scalar that is added below a root);
    the others are N(0, 1). huge: all x 64. tiny, spikes, strided: all.
    """

    name: str
    lengths: Lengths
    kind: Kind = "normal"
    seed: int = 0
    # fixed queries, keys and scale
    fixed: tuple[torch.Tensor, torch.Tensor, float] | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        lengths = self.lengths
        seed = f", seed {self.seed}" if self.seed else ""
        return f"{self.name}: B={lengths.B}, H={lengths.H}, HK={lengths.HK}, M={lengths.M}, N={lengths.N}, {self.kind} inputs{seed}"


@dataclass
class Launch:
    """Arguments of a run: inputs, outputs full of NaN, the scale, captured values."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    o: torch.Tensor
    lse: torch.Tensor
    scale: float
    captured: Mapping[str, Any] = field(default_factory=dict)
    extra_outputs: Mapping[str, torch.Tensor] = field(default_factory=dict)  # outputs beside O and LSE, by name
    parts: int = 0  # the least number of TF32 parts of f32 operands in the kernel's products; 0: no such products
    value_scale: torch.Tensor | None = None  # by batch entry and key head, or one for all of either

    @property
    def outputs(self) -> dict[str, torch.Tensor]:
        """Output tensors by name."""
        return {"O": self.o, "LSE": self.lse, **self.extra_outputs}

    @property
    def undefined(self) -> tuple[str, ...]:
        """Empty: an attention kernel reads no tensor that it writes, except for its scratch."""
        return ()

    def with_outputs(self, outputs: Mapping[str, torch.Tensor]) -> Launch:
        """Return a launch with the same inputs, and other outputs."""
        return replace(self, o=outputs["O"], lse=outputs["LSE"], extra_outputs={n: outputs[n] for n in self.extra_outputs})

    @property
    def value_factor(self) -> torch.Tensor | float:
        """Scale of the values of each query head, in float64: a factor of O."""
        if self.value_scale is None:
            return 1.0
        of_heads = self.value_scale.double().expand(self.q.shape[0], self.k.shape[1])
        return of_heads.repeat_interleave(self.q.shape[1] // self.k.shape[1], 1)[..., None, None]

    def fresh(self) -> Launch:
        """Return a launch with the same inputs, outputs full of NaN."""
        return self.with_outputs({name: copy_of(x).fill_(math.nan) for name, x in self.outputs.items()})

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of a run by name."""
        of_values = {} if self.value_scale is None else {VALUE_SCALE: self.value_scale}
        return {"Q": self.q, "K": self.k, "V": self.v, **self.outputs, "scale": self.scale, **of_values, **self.captured}


def _list_missing_parameters(kernel: Kernel) -> list[str]:
    ranks = {p.name: len(p.type.dims) for p in kernel.params if isinstance(p.type, GlobalType)}
    wrong = [n for n, rank in _RANKS.items() if ranks.get(n) != rank]
    return wrong if any(p.name == "scale" for p in kernel.params) else [*wrong, "scale"]


def is_attention(kernel: Kernel) -> bool:
    """Return whether the kernel takes Q, K, V, O [B, H, M, D], LSE [B, H, M] and scale."""
    return not _list_missing_parameters(kernel)


def require_attention(kernel: Kernel) -> None:
    """Raise CuirError V300 unless the kernel is an attention kernel."""
    missing = _list_missing_parameters(kernel)
    if missing:
        raise CuirError.of(
            "V300",
            f"a mask or score specifies attention kernels: Q, K, V, O [B, H, M, D], LSE [B, H, M], scale; `{kernel.name}` lacks {', '.join(missing)}",
            kernel.span,
            "specify it by a PyTorch function: --against FILE.py with `def reference(...)`",
        )


def require_inputs_kept(checked: Checked) -> None:
    """Raise CuirError V306 if an attention kernel writes to its inputs."""
    written = [t.name for t in checked.outputs if t.name not in ("O", "LSE", *OUTPUT_NAMES)]
    if written:
        raise CuirError.of(
            "V306",
            f"`{checked.name}` writes {', '.join(written)}, which its caller gives it to read",
            checked.origin.span,
            "an attention kernel writes O and LSE",
        )


def make_attention_launch(program: Program, checked: Checked, spec: Specification, case: Case) -> Launch:
    """Make the arguments of an attention kernel for a case."""
    dtype, dims = TORCH[get_dtype(checked)], get_head_dims(checked)
    lengths, scale = case.lengths, dims[0] ** -0.5 * (SCALED if case.kind == "scaled" else 1)
    drawn = draw_attention_inputs(case, dims, int(checked.consts.get("BN", 128)), scale, dtype)  # type: ignore[arg-type]
    q, k, v = (cast_tile(x, F32, get_dtype(checked)).to(dtype) for x in drawn)
    if case.fixed is not None:
        q, k, scale = case.fixed
    if case.kind == "largest" and spec.normalize != "softmax":  # O is a sum of values, not a mean
        v = v / max(1, lengths.N)
    if case.kind == "strided":
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    captured = pad_arguments(checked, compute_captured_arguments(program, checked.origin, spec, lengths, consts=checked.consts))
    poisoned, inputs = make_outputs(checked, q), pad_arguments(checked, {"Q": q, "K": k, "V": v})
    o, lse = poisoned.pop("O"), poisoned.pop("LSE")
    scales = make_value_scales(checked, lengths, case.seed).get(VALUE_SCALE)
    return Launch(inputs["Q"], inputs["K"], inputs["V"], o, lse, scale, captured, poisoned, get_parts(checked), scales)


def make_value_scales(checked: Checked, lengths: Lengths, seed: int | None = None) -> dict[str, torch.Tensor]:
    """Return scales of values by parameter, nothing for a kernel without any; without a seed they are 1.

    The seed also decides whether batch entries, and key heads, have their own.
    """
    if not any(t.name == VALUE_SCALE for t in checked.tensors):
        return {}
    if seed is None:
        return {VALUE_SCALE: torch.ones(1, 1)}
    generator = torch.Generator().manual_seed(seed)
    shape = (lengths.B if seed % 2 == 0 else 1, lengths.HK if seed % 3 < 2 else 1)
    return {VALUE_SCALE: torch.exp2(torch.randn(shape, generator=generator) * 2)}


def get_parts(checked: Checked) -> int:
    """Return the least number of TF32 parts into which products split f32 operands; 0 for no such product."""
    parts = (bound.args["parts"] for bound in checked.calls() if bound.op.traits.product and "parts" in bound.args)
    return min((int(e.value) for e in parts if isinstance(e, Number)), default=0)


def make_outputs(checked: Checked, q: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return O, LSE and further outputs that the kernel computes, full of NaN to show unwritten elements."""
    rows = ["LSE", *(n for n in OUTPUT_NAMES if any(t.name == n for t in checked.tensors))]
    dtype = next((TORCH[t.dtype] for t in checked.tensors if t.name == "O"), q.dtype)
    o = torch.full((*q.shape[:-1], get_head_dims(checked)[1]), math.nan, dtype=dtype)
    return pad_arguments(checked, {"O": o, **{n: torch.full(q.shape[:-1], math.nan) for n in rows}})


def draw_attention_inputs(
    case: Case, dims: tuple[int, int], BN: int, scale: float, dtype: torch.dtype = torch.float16
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return Q [B, H, M, D], K [B, HK, N, D] and V [B, HK, N, DV] in f32, by the case's kind.

    dims: D and DV. dtype: that of the kernel.
    """
    lengths, kind, rng = case.lengths, case.kind, torch.Generator().manual_seed(case.seed)
    shapes = ((lengths.H, lengths.M, dims[0]), (lengths.HK, lengths.N, dims[0]), (lengths.HK, lengths.N, dims[1]))
    q, k, v = (torch.randn(lengths.B, *shape, generator=rng) for shape in shapes)
    if kind == "large":
        return q * 30, k, v
    if kind == "wide":
        return q * 2.0 ** torch.randint(-12, 6, (*q.shape[:-1], 1), generator=rng), k, v
    if kind == "tiny":
        return q * 2.0**-12, k * 2.0**-12, v * 2.0**-12
    if kind == "zero":
        return torch.zeros_like(q), torch.zeros_like(k), v
    if kind == "equal":
        return q, _repeat_first(k), v
    if kind == "constant":
        return _repeat_first(q), _repeat_first(k), _repeat_first(v)
    if kind == "huge":
        return q * 64, k * 64, v
    if kind == "largest":  # the dtype holds a weighted mean of such values, also with rounded weights
        top = {torch.float16: 2.0**15, torch.float8_e4m3fn: 2.0**7, torch.float8_e5m2: 2.0**14}.get(dtype, 2.0**100)
        return q, k, torch.where(torch.rand(v.shape, generator=rng) < 1 / 64, torch.sign(v) * top, v * top / 64)
    if kind == "ties":
        return q, _repeat_pairs(k), v
    if kind == "onehot":
        return _make_onehot(q), _make_onehot(k), _make_onehot(v)
    if kind == "spikes":
        q, k, v = (torch.where(torch.rand(x.shape, generator=rng) < 1 / 256, torch.sign(x) * 40, x * 0.1) for x in (q, k, v))
    elif kind == "offset":
        side = 160 / scale
        q[..., 0] = torch.where(torch.arange(lengths.M) % 2 == 0, 1.0, -1.0) * side**0.5
        k[..., 0] = side**0.5
    elif kind == "growing":
        return _make_growing(q, k, v, BN, scale)
    return q, k, v


def _repeat_first(x: torch.Tensor) -> torch.Tensor:
    """Repeat the first position."""
    return x[:, :, :1].expand(x.shape).clone() if x.shape[2] else x


def _repeat_pairs(x: torch.Tensor) -> torch.Tensor:
    """Repeat every second position once."""
    return x[:, :, torch.arange(x.shape[2]) // 2 * 2]


def _make_onehot(x: torch.Tensor) -> torch.Tensor:
    """Return rows with a 1 at their largest element."""
    return torch.zeros_like(x).scatter(-1, x.argmax(-1, keepdim=True), 1.0) if x.numel() else x


def _make_growing(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, BN: int, scale: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Add GROWTHS[m % 6] times the number of the key's block to a base-2 logit, by the first column."""
    level = torch.arange(k.shape[2]) // BN
    rising = torch.stack([level if head % 2 == 0 else level.max() - level for head in range(k.shape[1])]) if k.shape[2] else level[None]
    levels = rising.clamp(max=2).float()  # two steps suffice, without an overflow of V
    q, k = q * 0.5, k * 0.5
    q[..., 0] = torch.tensor(GROWTHS)[torch.arange(q.shape[2]) % len(GROWTHS)] / (4 * scale * math.log2(math.e))
    k[..., 0] = 4 * levels
    if level.numel() and level.max() > _MANY:  # with many blocks each has another maximum, within the range of so many
        k[..., 0] = 4 * rising * (_MANY / level.max())
    return q, k, v * 2.0 ** (5 * (2 - levels))[..., None]


def get_head_dims(checked: Checked) -> tuple[int, int]:
    """Return the head dims of queries and keys, and of values, which the signature of an attention kernel gives."""
    widths = {t.name: t.dims[-1] for t in checked.tensors if t.dims}
    query, value = (int(w) if isinstance(w := widths[name], int) else FREE_HEAD_DIM for name in ("Q", "V"))
    return query, value


def get_dtype(checked: Checked) -> DType:
    """Return the dtype of Q, K and V."""
    return next(t.dtype for t in checked.tensors if t.name == "Q")


def make_cases(spec: AnySpecification, BM: int, BN: int, marks: list[int], level: str) -> list[Case]:
    """Return cases for the numbers.

    Ragged ends, GQA and MQA, M != N, lengths below a tile, N = 0, extreme values, random ones. marks: captured
    integers, where masks have edges.
    """
    near = min((m for m in marks if m > 0), default=BN)
    near = near if near <= 8 * BN else BN
    problems = [
        Case("grouped heads, ragged", Lengths(1, 4, 2, BM + 17, near + BN + 9)),
        Case("one key head, more keys than queries", Lengths(1, 3, 1, 37, 3 * BN + 1), "strided"),
        Case("more queries than keys", Lengths(2, 2, 2, 2 * BM + 5, BN // 2 + 3)),
        Case("fewer keys than a block", Lengths(1, 2, 1, BM, 7)),
        Case("one query", Lengths(1, 2, 2, 1, near + 3)),
        Case("whole tiles", Lengths(1, 2, 1, 2 * BM, 2 * BN), "large"),
        Case("another scale", Lengths(1, 2, 1, 40, BN + 9), "scaled"),
        Case("small and large queries", Lengths(1, 2, 2, BM - 3, BN + 1), "wide"),
        Case(
            "five of all", Lengths(5, 10, 5, 9, 40)
        ),  # more than four batch entries and key heads, and eight heads: bits of their numbers may be masked
        Case("nine blocks of keys", Lengths(1, 1, 1, max(1, BM // 2), 8 * BN + 3)),
        Case("nine tiles of queries", Lengths(1, 1, 1, 8 * BM + 1, BN)),
        Case("one key", Lengths(2, 32, 16, 1, 1), "huge"),  # no other case has a logit near 0
        Case("alike keys", Lengths(1, 2, 2, BM, BN + 40), "equal"),
        Case("no keys", Lengths(1, 2, 1, 40, 0)),
        Case("growing maxima", Lengths(1, 4, 2, BM + 9, 4 * BN), "growing"),
        Case("spikes", Lengths(1, 4, 1, BM + 9, 2 * BN + 9), "spikes"),
        Case("products that overflow f16", Lengths(1, 2, 1, BM + 3, 2 * BN - 1), "huge"),
        Case("far from 0", Lengths(1, 2, 1, BM - 1, 2 * BN), "offset"),
        Case("the largest values", Lengths(1, 2, 1, 9, BN + 5), "largest"),
        Case("one-hot rows", Lengths(1, 2, 2, 10, BN + 3), "onehot"),
    ]
    count = 3
    if level == "full":
        edges: tuple[tuple[int, Kind], ...] = ((-1, "normal"), (0, "spikes"), (1, "tiny"))
        problems += [Case(f"around the captured number, {d:+d}", Lengths(1, 1, 1, near + d, near - d), kind) for d, kind in edges]
        problems += [
            Case("zeros", Lengths(1, 2, 1, BM + 1, BN + 1), "zero"),
            Case("single", Lengths(1, 1, 1, 1, 1)),
            Case("constant rows", Lengths(1, 2, 2, BM + 1, 2 * BN + 1), "constant"),
            Case("8k keys", Lengths(1, 1, 1, BM // 2, 8192)),
            Case("8k queries", Lengths(1, 1, 1, 8192, BN + 3)),
        ]
        count = 24
    rng = random.Random(0)
    problems += [draw(rng, f"drawn {i}", BM, BN) for i in range(count)]
    return [c for c in problems if min(c.lengths.M, c.lengths.H) > 0 and c.lengths.N >= 0]


def draw(rng: random.Random, name: str, BM: int, BN: int) -> Case:
    """Draw a case with lengths up to a few tiles, more often near their edges; any kind of inputs."""
    group, hk = rng.choice([1, 1, 2, 3, 4]), rng.choice([1, 2])
    M, N = (
        max(1, rng.choice([rng.randint(1, most * size), rng.randint(1, most) * size + rng.randint(-2, 2)]))
        for size, most in ((BM, 3), (BN, 4))
    )
    kind: Kind = rng.choice([k for k in KINDS if k not in ("zero", "tiny", "wide", "scaled", "aligned", "faint", *SPECIAL)])
    return Case(name, Lengths(rng.choice([1, 1, 2]), group * hk, hk, M, N), kind, rng.randrange(1, 2**31))


def list_simpler_cases(case: Case) -> Iterator[Case]:
    """Yield cases a little smaller or simpler than one, the largest reductions first.

    Used to find the smallest that still fails.
    """
    current = case.lengths
    for lengths in (
        replace(current, B=1),
        replace(current, H=1, HK=1),
        replace(current, H=current.H // current.HK, HK=1),
        replace(current, H=current.HK),
        *(replace(current, M=m) for m in list_smaller_lengths(current.M)),
        *(replace(current, N=n) for n in list_smaller_lengths(current.N)),
    ):
        if lengths != current:
            yield replace(case, lengths=lengths)
    if case.kind != "normal":
        yield replace(case, kind="normal")
    if case.seed:
        yield replace(case, seed=0)


def list_smaller_lengths(n: int) -> list[int]:
    """Return smaller lengths: 1, half, round ones, one less."""
    return sorted({m for m in (1, n // 2, (n - 1) // 64 * 64, (n - 1) // 8 * 8, n - 1) if 0 < m < n})


def get_units(kernel: Kernel) -> Expr | None:
    """Return the number of units of work in the kernel's `tiles(...)`."""
    calls = (n for n in walk(kernel) if isinstance(n, Call) and traits(n).makes == "units")
    return next((c.args[0] for c in calls if c.args), None)


def make_small_attention_launches(BM: int, BN: int, tiles: int, blocks: int, ring: int) -> list[tuple[Case, int]]:
    """Return problems and grids for tiles of BM queries and blocks of BN keys.

    They are persistent CTAs with `tiles` tiles of up to `blocks` blocks each, as many queries as keys (masks that count
    from the first key leave some tiles few blocks), loops of one iteration, tiles without a key (under a causal mask),
    ragged ends on several CTAs. There are more blocks and tiles if a ring of so many stages would not go round twice.
    """
    blocks = max(blocks, -(-(2 * ring + 1) // tiles))
    return [
        (Case(f"{tiles} tiles of {blocks} blocks", Lengths(1, tiles, 1, BM, blocks * BN)), 1),
        (Case("one tile a CTA", Lengths(1, tiles, 1, BM, blocks * BN)), tiles),
        (Case("square", Lengths(1, 1, 1, blocks * BN, blocks * BN)), max(1, -(-blocks * BN // (BM * tiles)))),
        (Case("one block", Lengths(1, max(3, 2 * ring + 1), 1, BM, max(1, BN // 2))), 1),
        (Case("tiles without keys", Lengths(1, 1, 1, 3 * BM, BN)), 1),
        (
            Case("ragged, several CTAs", Lengths(1, 2, 1, BM + 9, BM + 9 + BN + max(1, 2 * BN // 5))),
            2,
        ),  # the diagonal splits blocks between warpgroups
    ]
