"""Problems for an attention kernel: shapes, inputs and poisoned outputs. Owns what is tried; not what is asked of the results."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import torch

from ..calls.binding import TORCH
from ..calls.requirements import copy_of, padded
from ..checking.checked import Checked, Const
from ..ops.expressions import traits
from ..spec.functions import AnySpecification
from ..spec.specification import Lengths, Specification
from ..syntax.nodes import Call, Expr, GlobalType, Kernel, Program
from ..syntax.nodes import Literal as Number
from ..syntax.types import DType
from ..syntax.walk import walk
from ..text.diagnostics import CuirError
from ..variants import MAX_SCORES, captured_arguments
from .special_plan import SPECIAL

Kind = Literal["normal", "strided", "large", "tiny", "equal", "spikes", "zero", "growing", "huge", "offset", "constant", "wide", "scaled",
               "largest", "ties", "onehot", "faint", "hidden", "bounds", "infinite", "steep", "vast", "near", "both", "edges"]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)
GROWTHS = (9.5, 8.4, 7.7, 0.0, 16.5, 3.0)  # around 8, the growth below which kernels keep a row's reference; query m has GROWTHS[m % 6]
SCALED = 24  # times the usual scale
_MANY = 8  # blocks of `growing`
_RANKS = {"Q": 4, "K": 4, "V": 4, "O": 4, "LSE": 3}


@dataclass(frozen=True)
class Case:
    """One numeric problem. `kind` says how inputs are drawn.

    normal: N(0, 1). strided: the same, heads inside of positions in memory. large: logits of about +-100. tiny: 2^-12. equal: all keys alike.
    spikes: single entries of 40 among small ones. zero: all zero. growing: the largest base-2 logit of a query changes from a block of keys to the next by
    one of GROWTHS, upwards in the even key heads, downwards in the odd ones, and what is small when seen first has large values. huge: products that
    overflow f16 before they are scaled, logits of some thousands. offset: all logits near +-160, where exp overflows or gives 0 unless the maximum is
    taken off. constant: all queries, keys and values of a head alike. wide: queries from
    2^-12 to 2^5. scaled: as normal, the scale 24 / sqrt(head dim) instead of 1 / sqrt(head dim). largest: values up to half of the largest that f16 has, for
    bfloat16 up to 1e30. ties: each key twice. onehot: queries, keys and values of a single 1. seed: of the numbers.

    Of functions that are no attention, one tensor, which the seed picks, is large (x 30), wide (rows from 2^-14 to 2^13), zero, constant (rows alike), equal (each
    row of one value), growing (along a row), offset (a mean a thousand times the deviation), largest (up to the largest number of f16, or beyond f16's range up to 1e38), ties (small
    integers), onehot, or faint (rows as small as the scalar that is added below a root); the others are N(0, 1). huge: all x 64. tiny, spikes, strided: all.
    """

    name: str
    lengths: Lengths
    kind: Kind = "normal"
    seed: int = 0
    given: tuple[torch.Tensor, torch.Tensor, float] | None = field(
        default=None, compare=False, repr=False
    )  # queries, keys and scale that are not drawn

    def __str__(self) -> str:
        at = self.lengths
        seed = f", seed {self.seed}" if self.seed else ""
        return f"{self.name}: B={at.B}, H={at.H}, HK={at.HK}, M={at.M}, N={at.N}, {self.kind} inputs{seed}"


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
    most: torch.Tensor | None = None  # MAX_SCORES of a kernel that gives it
    parts: int = 0  # in how many numbers of TF32 the kernel's products take operands of f32, at the least; 0: they have none

    @property
    def outputs(self) -> dict[str, torch.Tensor]:
        return {"O": self.o, "LSE": self.lse, **({} if self.most is None else {MAX_SCORES: self.most})}

    @property
    def undefined(self) -> tuple[str, ...]:
        """No tensor: an attention kernel reads none that it writes, but for its scratch."""
        return ()

    def given(self, outputs: Mapping[str, torch.Tensor]) -> Launch:
        """The same inputs, with other outputs."""
        return replace(self, o=outputs["O"], lse=outputs["LSE"], most=outputs.get(MAX_SCORES))

    def fresh(self) -> Launch:
        """The same inputs, outputs full of NaN."""
        return self.given({name: copy_of(x).fill_(math.nan) for name, x in self.outputs.items()})

    def arguments(self) -> dict[str, Any]:
        return {"Q": self.q, "K": self.k, "V": self.v, **self.outputs, "scale": self.scale, **self.captured}


def _lacks(kernel: Kernel) -> list[str]:
    ranks = {p.name: len(p.type.dims) for p in kernel.params if isinstance(p.type, GlobalType)}
    wrong = [n for n, rank in _RANKS.items() if ranks.get(n) != rank]
    return wrong if any(p.name == "scale" for p in kernel.params) else [*wrong, "scale"]


def is_attention(kernel: Kernel) -> bool:
    """Whether the kernel takes Q, K, V, O [B, H, M, D], LSE [B, H, M] and scale."""
    return not _lacks(kernel)


def require_attention(kernel: Kernel) -> None:
    """Raises CuirError V300 unless the kernel is an attention kernel."""
    lacks = _lacks(kernel)
    if lacks:
        raise CuirError.of("V300", f"a mask or score specifies attention kernels: Q, K, V, O [B, H, M, D], LSE [B, H, M], scale; `{kernel.name}` lacks {', '.join(lacks)}",
                           kernel.span, "specify it by a PyTorch function: --against FILE.py with `def reference(...)`")  # fmt: skip


def require_inputs_kept(checked: Checked) -> None:
    """Raises CuirError V306 if an attention kernel writes what it is given."""
    written = [t.name for t in checked.outputs if t.name not in ("O", "LSE", MAX_SCORES)]
    if written:
        raise CuirError.of("V306", f"`{checked.name}` writes {', '.join(written)}, which its caller gives it to read", checked.origin.span,
                           "an attention kernel writes O and LSE")  # fmt: skip


def launch(program: Program, checked: Checked, spec: Specification, case: Case) -> Launch:
    dtype, dims = TORCH[dtype_of(checked.consts)], head_dims(checked.consts)
    at, scale = case.lengths, dims[0] ** -0.5 * (SCALED if case.kind == "scaled" else 1)
    q, k, v = (x.to(dtype) for x in attention_inputs(case, dims, int(checked.consts.get("BN", 128)), scale, dtype))  # type: ignore[arg-type]
    if case.given is not None:
        q, k, scale = case.given
    if case.kind == "largest" and spec.normalize != "softmax":  # a sum of values, not a mean
        v = v / max(1, at.N)
    if case.kind == "strided":
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    captured = padded(checked, captured_arguments(program, checked.origin, spec, at, consts=checked.consts))
    poisoned, made = outputs(checked, q), padded(checked, {"Q": q, "K": k, "V": v})
    return Launch(
        made["Q"], made["K"], made["V"], poisoned["O"], poisoned["LSE"], scale, captured, poisoned.get(MAX_SCORES), parts_of(checked)
    )


def parts_of(checked: Checked) -> int:
    """In how many numbers of TF32 products take operands of f32, at the least; 0 if no product does."""
    given = (bound.args["parts"] for bound in checked.calls() if bound.op.traits.product and "parts" in bound.args)
    return min((int(e.value) for e in given if isinstance(e, Number)), default=0)


def outputs(checked: Checked, q: torch.Tensor) -> dict[str, torch.Tensor]:
    """O, LSE and, of a kernel that gives it, MAX_SCORES, poisoned: what a kernel does not write stays NaN."""
    rows = [n for n in ("LSE", MAX_SCORES) if n == "LSE" or any(t.name == n for t in checked.tensors)]
    o = torch.full((*q.shape[:-1], head_dims(checked.consts)[1]), math.nan, dtype=q.dtype)
    return padded(checked, {"O": o, **{n: torch.full(q.shape[:-1], math.nan) for n in rows}})


def attention_inputs(
    case: Case, dims: tuple[int, int], BN: int, scale: float, dtype: torch.dtype = torch.float16
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Q [B, H, M, D], K [B, HK, N, D] and V [B, HK, N, DV] in f32, as the case's kind says, for a kernel of that dtype. dims: D and DV."""
    at, kind, rng = case.lengths, case.kind, torch.Generator().manual_seed(case.seed)
    shapes = ((at.H, at.M, dims[0]), (at.HK, at.N, dims[0]), (at.HK, at.N, dims[1]))
    q, k, v = (torch.randn(at.B, *shape, generator=rng) for shape in shapes)
    if kind == "large":
        return q * 30, k, v
    if kind == "wide":
        return q * 2.0 ** torch.randint(-12, 6, (*q.shape[:-1], 1), generator=rng), k, v
    if kind == "tiny":
        return q * 2.0**-12, k * 2.0**-12, v * 2.0**-12
    if kind == "zero":
        return torch.zeros_like(q), torch.zeros_like(k), v
    if kind == "equal":
        return q, _alike(k), v
    if kind == "constant":
        return _alike(q), _alike(k), _alike(v)
    if kind == "huge":
        return q * 64, k * 64, v
    if kind == "largest":  # a weighted mean of such values is one that the dtype holds, also where weights are rounded
        top = 2.0**15 if dtype == torch.float16 else 2.0**100
        return q, k, torch.where(torch.rand(v.shape, generator=rng) < 1 / 64, torch.sign(v) * top, v * top / 64)
    if kind == "ties":
        return q, _twice(k), v
    if kind == "onehot":
        return _onehot(q), _onehot(k), _onehot(v)
    if kind == "spikes":
        q, k, v = (torch.where(torch.rand(x.shape, generator=rng) < 1 / 256, torch.sign(x) * 40, x * 0.1) for x in (q, k, v))
    elif kind == "offset":
        side = 160 / scale
        q[..., 0] = torch.where(torch.arange(at.M) % 2 == 0, 1.0, -1.0) * side**0.5
        k[..., 0] = side**0.5
    elif kind == "growing":
        return _growing(q, k, v, BN, scale)
    return q, k, v


def _alike(x: torch.Tensor) -> torch.Tensor:
    """The first position everywhere."""
    return x[:, :, :1].expand(x.shape).clone() if x.shape[2] else x


def _twice(x: torch.Tensor) -> torch.Tensor:
    """Each position twice in turn."""
    return x[:, :, torch.arange(x.shape[2]) // 2 * 2]


def _onehot(x: torch.Tensor) -> torch.Tensor:
    """A 1 where a row is largest."""
    return torch.zeros_like(x).scatter(-1, x.argmax(-1, keepdim=True), 1.0) if x.numel() else x


def _growing(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, BN: int, scale: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The first column of Q and K adds GROWTHS[m % 6] times the number of the key's block to a base-2 logit."""
    level = torch.arange(k.shape[2]) // BN
    rising = torch.stack([level if head % 2 == 0 else level.max() - level for head in range(k.shape[1])]) if k.shape[2] else level[None]
    levels = rising.clamp(max=2).float()  # two steps: enough, and far from an overflow of V
    q, k = q * 0.5, k * 0.5
    q[..., 0] = torch.tensor(GROWTHS)[torch.arange(q.shape[2]) % len(GROWTHS)] / (4 * scale * math.log2(math.e))
    k[..., 0] = 4 * levels
    if level.numel() and level.max() > _MANY:  # of many blocks each has a maximum of its own, up to as far as of so many
        k[..., 0] = 4 * rising * (_MANY / level.max())
    return q, k, v * 2.0 ** (5 * (2 - levels))[..., None]


def head_dims(consts: Mapping[str, Any]) -> tuple[int, int]:
    """Of queries and keys (D), and of values (DV, where a kernel has it)."""
    return int(consts["D"]), int(consts.get("DV", consts["D"]))


def dtype_of(consts: Mapping[str, Const]) -> DType:
    dtype = next((v for v in consts.values() if isinstance(v, DType)), None)
    if dtype is None:
        raise CuirError.of("V300", "verification needs the dtype of Q, K and V as a const parameter")
    return dtype


def cases(spec: AnySpecification, BM: int, BN: int, marks: list[int], level: str) -> list[Case]:
    """Ragged ends, GQA and MQA, M != N, lengths below a tile, N = 0, extreme values, drawn ones; `marks`: captured integers, where masks have edges."""
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
        ),  # more than four of a batch and of key heads, and than eight heads: bits of their numbers may be masked
        Case("nine blocks of keys", Lengths(1, 1, 1, max(1, BM // 2), 8 * BN + 3)),
        Case("nine tiles of queries", Lengths(1, 1, 1, 8 * BM + 1, BN)),
        Case("one key", Lengths(2, 32, 16, 1, 1), "huge"),  # no other one has a logit near 0
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
    """A case with lengths up to a few tiles, more often near their edges; any kind of inputs."""
    group, hk = rng.choice([1, 1, 2, 3, 4]), rng.choice([1, 2])
    M, N = (
        max(1, rng.choice([rng.randint(1, most * size), rng.randint(1, most) * size + rng.randint(-2, 2)]))
        for size, most in ((BM, 3), (BN, 4))
    )
    kind: Kind = rng.choice([k for k in KINDS if k not in ("zero", "tiny", "wide", "scaled", "faint", *SPECIAL)])
    return Case(name, Lengths(rng.choice([1, 1, 2]), group * hk, hk, M, N), kind, rng.randrange(1, 2**31))


def simpler(case: Case) -> Iterator[Case]:
    """Cases a little smaller or plainer than one, the boldest first: to look for the smallest that still fails."""
    at = case.lengths
    for lengths in (
        replace(at, B=1),
        replace(at, H=1, HK=1),
        replace(at, H=at.H // at.HK, HK=1),
        replace(at, H=at.HK),
        *(replace(at, M=m) for m in less_than(at.M)),
        *(replace(at, N=n) for n in less_than(at.N)),
    ):
        if lengths != at:
            yield replace(case, lengths=lengths)
    if case.kind != "normal":
        yield replace(case, kind="normal")
    if case.seed:
        yield replace(case, seed=0)


def less_than(n: int) -> list[int]:
    """Smaller lengths: 1, half, round ones, one less."""
    return sorted({m for m in (1, n // 2, (n - 1) // 64 * 64, (n - 1) // 8 * 8, n - 1) if 0 < m < n})


def units_of(kernel: Kernel) -> Expr | None:
    """How many units of work the kernel asks `tiles(...)` for."""
    calls = (n for n in walk(kernel) if isinstance(n, Call) and traits(n).makes == "units")
    return next((c.args[0] for c in calls if c.args), None)


def small_attention_launches(BM: int, BN: int, tiles: int, blocks: int, ring: int) -> list[tuple[Case, int]]:
    """Problems and grids for tiles of BM queries and blocks of BN keys: persistent CTAs with `tiles` tiles of up to `blocks` blocks each, as many queries as keys
    (masks that count from the first key leave some tiles few blocks), loops of one iteration, tiles without a key (under a causal mask), ragged ends on several CTAs.
    Blocks and tiles are more where a ring of so many stages would not go round twice."""
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
        ),  # the diagonal parts blocks between warpgroups
    ]
