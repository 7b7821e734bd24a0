"""Idioms that user code has inside of its mods: tensors made in place, rows, searches, modules, and how operations are spelt."""

from __future__ import annotations

import enum
import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from tests.peer.reports.scores import B, H, qkv
from tests.peer.reports.suite import Attempt, behaviour, report
from tests.peer.trial import Trial, attention

F = torch.nn.functional
S = 48
USER = "user code: "
Mod = Callable[..., Any]


def try_masks(t: Trial, *mods: Mod) -> list[Attempt]:
    """Try each as a mask of its own."""
    return [
        Attempt(attention(None, lambda api, mod=mod: api.create_block_mask(mod, B, H, S, S, device=t.device)), qkv(t, S)) for mod in mods
    ]


def try_scores(t: Trial, mods: list[Mod], *learned: torch.Tensor) -> list[Attempt]:
    """Try each as a score_mod of its own, with the same learned tensors."""
    return [Attempt(attention(mod), qkv(t, S), learned) for mod in mods]


class Kind(enum.IntEnum):
    PAD = 0
    TOKEN = 1


def documents(t: Trial) -> torch.Tensor:
    return torch.arange(S, device=t.device) // 10


def kinds(t: Trial) -> torch.Tensor:
    return torch.arange(B * S, device=t.device).view(B, S) * 7 % 4


def draw_kept(t: Trial) -> torch.Tensor:
    return torch.rand(S, S, device=t.device) > 0.4


# ---- masks
@report(USER + "made in place", "tensors made in a mask: ranges, triangles, lists")
def masks_of_made_tensors(t: Trial) -> list[Attempt]:
    n, device = S, t.device
    return try_masks(
        t,
        lambda b, h, q, k: torch.arange(n, device=device)[q] >= k,
        lambda b, h, q, k: torch.ones(n, n, dtype=torch.bool, device=device).tril()[q, k],
        lambda b, h, q, k: torch.tensor([0] * 24 + [1] * 24, device=device)[q] >= torch.tensor([0] * 24 + [1] * 24, device=device)[k],
        lambda b, h, q, k: (
            torch.arange(5, device=device).repeat_interleave(10)[q] >= torch.arange(5, device=device).repeat_interleave(10)[k]
        ),
        lambda b, h, q, k: torch.tensor([[True, False], [True, True]], device=device)[q % 2, k % 2] | (q == k),
        lambda b, h, q, k: torch.eye(n, dtype=torch.bool, device=device).roll(1, 0)[q, k] | (q == k),
    )


@report(USER + "integers", "index arithmetic: shifts, floors, remainders, powers")
def index_arithmetic(t: Trial) -> list[Attempt]:
    return try_masks(
        t,
        lambda b, h, q, k: (1 << (q % 4)) >= (k % 5),
        lambda b, h, q, k: ((k >> (q % 6)) & 1 == 0) | (q == k),
        lambda b, h, q, k: torch.div(q, 8, rounding_mode="floor") >= torch.div(k, 8, rounding_mode="floor"),
        lambda b, h, q, k: torch.fmod(q, 8) == torch.remainder(k, 8),
        lambda b, h, q, k: 2 ** (q % 4) >= (k % 7),
        lambda b, h, q, k: torch.sign(q - k).clamp(0, 1).bool() | (q == k),
        lambda b, h, q, k: (q / 4).floor() >= (k / 4).int(),
        lambda b, h, q, k: ((q ^ k) & 3 == 0) & (q >= k),
    )


@report(USER + "conditions", "conditions joined in Python's and PyTorch's ways")
def joined_conditions(t: Trial) -> list[Attempt]:
    return try_masks(
        t,
        lambda b, h, q, k: functools.reduce(operator.or_, [(q - k).abs() == i for i in (0, 1, 3)]),
        lambda b, h, q, k: sum([(q >= k).int(), (q % 3 == 0).int(), (k % 2 == 0).int()]) >= 2,
        lambda b, h, q, k: torch.stack([q == k, q >= k + 3]).any(0),
        lambda b, h, q, k: torch.stack([(q >= k).int(), (q - k < 20).int()]).prod(0) > 0,
        lambda b, h, q, k: (q >= k) * (q - k < 20),
        lambda b, h, q, k: True & q.ge(k).logical_and(q.sub(k).lt(20)),
        lambda b, h, q, k: torch.ones_like(q, dtype=torch.bool) & (q >= k),
        lambda b, h, q, k: torch.isclose(q.float(), k.float()) | (q > k),
    )


@report(USER + "views", "captured tables through views: rolled, flipped, transposed")
def views_of_tables(t: Trial) -> list[Attempt]:
    docs, keep = documents(t), draw_kept(t)
    return try_masks(
        t,
        lambda b, h, q, k: docs.roll(1)[q] >= docs[k],
        lambda b, h, q, k: docs.flip(0)[q] == docs[k],
        lambda b, h, q, k: keep.T[k, q] | (q == k),
        lambda b, h, q, k: keep.view(-1)[q * S + k] | (q == k),
        lambda b, h, q, k: docs.expand(B, S)[b, q] == docs[None][0, k],
        lambda b, h, q, k: docs.narrow(0, 0, S)[q] == docs[:S][k],
        lambda b, h, q, k: keep.tril()[q, k] | (q == k),
        lambda b, h, q, k: keep.split(24)[0][q % 24, k] | (q == k),
    )


@report(USER + "modalities", "rows of a captured table of spans")
def rows_of_spans(t: Trial) -> list[Attempt]:
    device = t.device
    spans = torch.tensor([[[0, 5, 8], [1, 20, 6]], [[0, 0, 4], [1, 30, 10]]], device=device)

    def iterated(b: Any, h: Any, q: Any, k: Any) -> Any:
        keep = q >= k
        for _, start, length in spans[b]:
            keep = keep | ((q >= start) & (k < start + length) & (k >= start))
        return keep

    return try_masks(
        t,
        iterated,
        lambda b, h, q, k: (spans[b, :, 1] == k // 4).any() | (q == k),
        lambda b, h, q, k: (spans[b, :, 1] <= q).sum() >= torch.count_nonzero(spans[b, :, 1] <= k),
        lambda b, h, q, k: (
            torch.searchsorted(torch.tensor([10, 20, 30], device=device), q, right=True)
            == torch.bucketize(k, torch.tensor([10, 20, 30], device=device), right=True)
        ),
        lambda b, h, q, k: torch.isin(k, torch.tensor([0, 1, 5, 9], device=device)) | (q == k),
    )


@report(USER + "token kinds", "kinds of tokens: enumerations, dictionaries, flags")
def kinds_of_tokens(t: Trial) -> list[Attempt]:
    named, of = {"document": documents(t)}, kinds(t)
    last, zero, window = (torch.tensor(n, device=t.device) for n in (7, 0, 9))
    return try_masks(
        t,
        lambda b, h, q, k: (of[b, k] != Kind.PAD) | (q == k),
        lambda b, h, q, k: named["document"][q] == named["document"][k],
        lambda b, h, q, k: torch.minimum(torch.maximum(q, zero), last - 1) == torch.minimum(torch.maximum(k, zero), last - 1),
        lambda b, h, q, k: torch.abs(q - k) < window,
        lambda b, h, q, k: of[b, k].bool() | (q == k),
        lambda b, h, q, k: of[torch.full_like(b, 1), q] == of[b, k],
        lambda b, h, q, k: (q < named["document"].shape[0] - 3) | (q == k),
    )


@report(USER + "points", "distances of points: grids, norms, nearest components")
def distances_of_points(t: Trial) -> list[Attempt]:
    points = torch.randn(S, 2, device=t.device)
    return try_masks(
        t,
        lambda b, h, q, k: torch.sqrt(((q // 7 - k // 7) ** 2 + (q % 7 - k % 7) ** 2).float()) <= 2.5,
        lambda b, h, q, k: torch.hypot((q // 7 - k // 7).float(), (q % 7 - k % 7).float()) <= 2.5,
        lambda b, h, q, k: (points[q] - points[k]).norm() <= 1.5,
        lambda b, h, q, k: (points[q] @ points[k] >= 0) | (q == k),
        lambda b, h, q, k: (points[q].argmax() == points[k].argmax()) | (q == k),
        lambda b, h, q, k: (points[q].std() >= points[k].std(unbiased=False)) | (q == k),
        lambda b, h, q, k: (torch.dist(points[q], points[k]) < 1.0) | (q == k),
    )


# ---- scores
@report(USER + "biases in place", "biases made in a score: ramps, slopes")
def scores_of_made_tensors(t: Trial) -> list[Attempt]:
    n, device = S, t.device
    slopes = t.randn(H)
    return try_scores(
        t,
        [
            lambda s, b, h, q, k: s - slopes[h] * torch.arange(n, device=device)[(q - k).abs()] * 0.1,
            lambda s, b, h, q, k: s + slopes[h] * torch.linspace(0, 1, n, device=device).flip(0)[k],
            lambda s, b, h, q, k: s + torch.tensor([0.5, 2.0], device=device)[h] * (k - q) * slopes[h],
            lambda s, b, h, q, k: torch.where(q >= k, s, s.new_tensor(-5.0)) + slopes[h] * torch.eye(n, device=device)[q, k],
        ],
        slopes,
    )


@report(USER + "modules", "layers on captured rows: embeddings, norms, matrices")
def layers_on_rows(t: Trial) -> list[Attempt]:
    table, weight, bias, points = t.randn(2 * S, H), t.randn(H, 2), t.randn(H), t.randn(S, 2)
    return try_scores(
        t,
        [
            lambda s, b, h, q, k: s + F.embedding(q - k + S, table)[h] + bias[h] * weight[h, 0] * points[q, 1],
            lambda s, b, h, q, k: s + F.linear(points[q] - points[k], weight, bias)[h] + table[k, h],
            lambda s, b, h, q, k: s + (weight @ (points[q] - points[k]))[h] * bias[h] + table[q, h],
            lambda s, b, h, q, k: s + torch.einsum("d,d->", points[q], weight[h]) * table[k, h] + bias[h],
            lambda s, b, h, q, k: s + F.layer_norm(points[q] + table[k], (2,), weight[h], bias)[0],
            lambda s, b, h, q, k: s + (F.rms_norm(points[q], (2,), weight[h], 1e-5) * table[k]).sum() + bias[h],
        ],
        table,
        weight,
        bias,
        points,
    )


@report(USER + "a layer of a module", "modules called in the mod")
def called_modules(t: Trial) -> Attempt:
    class Bias(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = torch.nn.Linear(2, H, device=t.device)
            self.table = torch.nn.Embedding(2 * S, H, device=t.device)
            self.points = torch.nn.Parameter(torch.randn(S, 2, device=t.device))

        def forward(self, s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
            return s + self.project(self.points[q] - self.points[k])[h] + self.table(q - k + S)[h]

    module = Bias()
    for x in module.parameters():
        t.wanting(x)
    return Attempt(attention(module.forward), qkv(t, S), tuple(module.parameters()) if t.gradients else ())


@report(USER + "similarities", "similarities of learned rows: cosine, softmax weights")
def similarities_of_rows(t: Trial) -> list[Attempt]:
    points = t.randn(S, 3)
    return try_scores(
        t,
        [
            lambda s, b, h, q, k: s + F.cosine_similarity(points[q], points[k], dim=0),
            lambda s, b, h, q, k: s + (F.normalize(points[q], dim=-1) * points[k]).sum(-1),
            lambda s, b, h, q, k: s + (torch.softmax(points[q], -1) * points[k]).sum(),
            lambda s, b, h, q, k: s - torch.logsumexp(points[q] + points[k], -1),
            lambda s, b, h, q, k: s - torch.dist(points[q], points[k] + 1.0),
            lambda s, b, h, q, k: s + points[q].mean() + (points[k] * 1.5).var() - points[q].std(unbiased=False),
            lambda s, b, h, q, k: s + points[q].split(1)[0].sum() + points[k].chunk(3)[1].sum() + points[q].unbind()[2],
        ],
        points,
    )


@report(USER + "learned gates", "learned gates: sigmoids, softplus, interpolation")
def learned_gates(t: Trial) -> list[Attempt]:
    gates, slopes, factor = t.randn(H, S), t.randn(H), t.randn()
    return try_scores(
        t,
        [
            lambda s, b, h, q, k: s + torch.sigmoid(gates)[h, q] - F.softplus(slopes)[h] * (q - k).abs() * 0.1 + factor,
            lambda s, b, h, q, k: torch.lerp(s, gates[h, k].to(s.dtype), 0.3) * factor.exp() + slopes[h],
            lambda s, b, h, q, k: torch.addcmul(s, gates[h, q], gates[h, k]) + slopes[h] * factor,
            lambda s, b, h, q, k: torch.maximum(s, gates[h, k]) + slopes[h] * factor,
            lambda s, b, h, q, k: s * torch.rsqrt(1 + torch.square(gates[h, k])) + factor * slopes[h],
            lambda s, b, h, q, k: s + torch.stack([gates[h, q], gates[h, k], factor]).sum() + slopes[h],
            lambda s, b, h, q, k: torch.where(q >= k, s + gates[h, k] * factor, torch.full_like(s, -5.0)) + slopes[h] * q * 0.01,
        ],
        gates,
        slopes,
        factor,
    )


@report(USER + "activations", "activations of the score")
def activations_of_scores(t: Trial) -> list[Attempt]:
    slope = t.wanting(torch.tensor([0.25], device=t.device))
    return try_scores(
        t,
        [
            lambda s, b, h, q, k: F.prelu(s.reshape(1), slope.to(s.dtype))[0],
            lambda s, b, h, q, k: F.softsign(s) + F.tanhshrink(s) + slope[0],
            lambda s, b, h, q, k: F.softshrink(s) + F.hardshrink(s, 0.25) * slope[0],
            lambda s, b, h, q, k: F.silu(s) + F.gelu(s, approximate="tanh") * slope[0] + F.mish(s),
            lambda s, b, h, q, k: F.leaky_relu(s) + F.elu(s) * slope[0] + F.celu(s),
            lambda s, b, h, q, k: F.hardswish(s) + F.relu6(s) * slope[0],
        ],
        slope,
    )


@report(USER + "spelling", "arithmetic of scores: dtypes, constants, methods")
def spellings_of_arithmetic(t: Trial) -> list[Attempt]:
    gates = t.randn(H, S)
    return try_scores(
        t,
        [
            lambda s, b, h, q, k: s + (q - k).type_as(s) * 0.01 + gates[h, k].to(s.dtype),
            lambda s, b, h, q, k: sum((s, gates[h, q], gates[h, k])) * math.pi / math.e,
            lambda s, b, h, q, k: s.masked_fill(q < k, -1e4) + gates[h, k],
            lambda s, b, h, q, k: s + (1 - (q >= k).float()) * -10 + gates[h, q],
            lambda s, b, h, q, k: s - torch.ceil(torch.log2((q - k).abs() + 1.5)) * gates[h, k],
            lambda s, b, h, q, k: 1.0 / (1.0 + s.abs()) + torch.exp(-(q - k).abs() / 10) * gates[h, q],
        ],
        gates,
    )


# ---- what is refused
@behaviour(
    USER + "running sums",
    "a running sum within the mod",
    why="X120: each pair would compute the sum anew; write `ids = (tokens == eos).cumsum(-1)` before the mod, `ids[b, q_idx]` in the mod",
)
def running_sum_in_the_mod(t: Trial, call: str) -> None:
    tokens = kinds(t)

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        ids = (tokens == 3).cumsum(-1)
        return ids[b, q] == ids[b, k]

    _expect_refusal(t, call, "X120", lambda s, b, h, q, k: torch.where(mask(b, h, q, k), s, -torch.inf))


@behaviour(
    USER + "numbers of tensors",
    "`int()` of a captured tensor",
    why="X121: compare with the tensor itself, `< window`, or call `window.item()` before the mod",
)
def number_of_a_tensor(t: Trial, call: str) -> None:
    window = torch.tensor(9, device=t.device)
    _expect_refusal(t, call, "X121", lambda s, b, h, q, k: torch.where((q - k).abs() < int(window), s, -torch.inf))


def _expect_refusal(t: Trial, call: str, code: str, mod: Mod) -> None:
    run = attention(mod)(t.ours)
    t.expect_refusal(lambda: (t.compile(run) if call == "compiled" else run)(*qkv(t, S)), code)
