"""Public reports about score mods: learned biases, positions, caps, and their gradients."""

from __future__ import annotations

import math
from typing import Any

import torch

from tests.peer.mods import NEVER
from tests.peer.reports.suite import Attempt, behaviour, report
from tests.peer.trial import Trial, attention

F = torch.nn.functional
B, H, S, D = 2, 2, 100, 32


def qkv(t: Trial, s: int = S, dtype: torch.dtype = torch.float32, **sizes: int) -> tuple[torch.Tensor, ...]:
    """Draw query, key and value [B, H, s, D] that require gradients where they are compared."""
    b, h, d = sizes.get("b", B), sizes.get("h", H), sizes.get("d", D)
    return t.qkv((b, h, s, d), dtype=dtype)


@report("pytorch/pytorch#153799", "NaN gradients for lengths that are no multiple of 128")
def causal_mask_and_distance(t: Trial) -> Attempt:
    make = attention(
        lambda score, b, h, q, k: score + (q - k),
        lambda api: api.create_block_mask(lambda b, h, q, k: q >= k, None, None, 257, 257, device=t.device),
    )
    return Attempt(make, t.qkv((1, 1, 257, 64), dtype=torch.bfloat16))


@report("pytorch/pytorch#185991", "a score_mod whose result does not depend on the score")
def score_replaced(t: Trial) -> list[Attempt]:
    bias = t.randn(S)
    return [
        Attempt(attention(lambda score, b, h, q, k: -0.1 * (q - k).abs()), qkv(t)),
        Attempt(attention(lambda score, b, h, q, k: bias[k]), qkv(t), (bias,)),
    ]


@report("pytorch/pytorch#145208", "learned scalars as factors and biases")
def learned_scalar_factor(t: Trial) -> list[Attempt]:
    factor, bias, buckets = t.randn(), t.randn(8), torch.arange(S, device=t.device) % 8
    return [
        Attempt(attention(lambda score, b, h, q, k: score * factor), qkv(t, dtype=torch.float16), (factor,)),
        Attempt(attention(lambda score, b, h, q, k: score * factor + factor.square()), qkv(t), (factor,)),
        Attempt(attention(lambda score, b, h, q, k: score + bias[buckets[q]] * bias[buckets[k]]), qkv(t), (bias,)),
    ]


@report("pytorch/pytorch#188869", "a module's temperature as factor and as bias")
def temperature_of_a_module(t: Trial) -> Attempt:
    temperature = t.wanting(torch.tensor(0.7, device=t.device))

    def make(api: Any) -> Any:
        class Layer(torch.nn.Module):
            def forward(self, q: Any, k: Any, v: Any) -> Any:
                return api.flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score * temperature + temperature)

        return Layer()

    return Attempt(make, t.qkv((1, 2, 16, 16), dtype=torch.float16), (temperature,))


@report("meta-pytorch/attention-gym#171", "a learned scalar that begins at 0")
def learned_scalar_at_zero(t: Trial) -> list[Attempt]:
    zero = t.wanting(torch.zeros((), device=t.device))
    return [
        Attempt(attention(lambda score, b, h, q, k: score + zero * k), qkv(t), (zero,)),
        Attempt(attention(lambda score, b, h, q, k: score + F.silu(zero) * k), qkv(t), (zero,)),
        Attempt(attention(lambda score, b, h, q, k: score * torch.exp(zero)), qkv(t), (zero,)),
    ]


@report("meta-pytorch/attention-gym#20", "T5's learned relative positions at a shifted index")
def learned_relative_positions(t: Trial) -> Attempt:
    table = t.randn(2 * S - 1, H)
    return Attempt(attention(lambda score, b, h, q, k: score + table[q - k + S - 1, h]), qkv(t), (table,))


@behaviour(
    "meta-pytorch/attention-gym#20",
    "a table read at q_idx - kv_idx",
    why="U416: a computed index below 0 does not count from the end; add the table's length",
    calls=("eager",),
)
def learned_relative_positions_unshifted(t: Trial, call: str) -> None:
    table = t.randn(2 * S)
    t.expect_refusal(lambda: attention(lambda score, b, h, q, k: score + table[q - k])(t.ours)(*qkv(t)), "U416")


@report("meta-pytorch/attention-gym#69", "a bias computed from the query")
def bias_of_the_query(t: Trial) -> Attempt:
    relation = t.randn(S, S, D)

    def make(api: Any) -> Any:
        def call(q: Any, k: Any, v: Any) -> Any:
            bias = torch.einsum("bhqd,qkd->bhqk", q, relation.to(q.dtype)) * 0.1
            return api.flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + bias[b, h, i, j])

        return call

    return Attempt(make, qkv(t), (relation,))


@report("pytorch/pytorch#136076", "a learned bias at the sum of both indices")
def bias_at_the_sum(t: Trial) -> Attempt:
    bias = t.randn(2 * S)
    return Attempt(attention(lambda score, b, h, q, k: score + bias[q + k]), qkv(t), (bias,))


@report("pytorch/pytorch#137452", "a learned bias behind an integer table")
def bias_through_a_table(t: Trial) -> Attempt:
    bias, places = t.randn(S), torch.randperm(S, device=t.device)
    return Attempt(attention(lambda score, b, h, q, k: score + bias[places[k]]), qkv(t), (bias,))


@report("pytorch/pytorch#157677", "a linear layer's bias from the first token")
def bias_of_a_projection(t: Trial) -> Attempt:
    weight, first = t.randn(H * 16 * 16, 8), torch.randn(B, 8, device=t.device)

    def make(api: Any) -> Any:
        def call(q: Any, k: Any, v: Any) -> Any:
            bias = (first.to(q.dtype) @ weight.to(q.dtype).mT).view(B, H, 16, 16)
            return api.flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + bias[b, h, i, j])

        return call

    return Attempt(make, qkv(t, 16), (weight,))


@report("pytorch/pytorch#162228", "a bias matrix made inside the compiled function")
def bias_matrix_made_inside(t: Trial) -> Attempt:
    of_token = t.randn(B, 16)

    def make(api: Any) -> Any:
        def call(x: Any) -> Any:
            b = torch.arange(B, device=x.device).view(B, 1, 1)
            i, j = torch.arange(16, device=x.device).view(1, 16, 1), torch.arange(16, device=x.device).view(1, 1, 16)
            matrix = of_token.to(x.dtype)[b, i] + of_token.to(x.dtype)[b, j]
            x = x[:, None].repeat(1, H, 1, 1)
            return api.flex_attention(x, x, x, score_mod=lambda score, b, h, q, k: score + matrix[b, q, k])

        return call

    return Attempt(make, (t.randn(B, 16, 64),), (of_token,))


@report("meta-pytorch/attention-gym#45", "a bias of another layout, doubled and viewed")
def bias_doubled_and_viewed(t: Trial) -> Attempt:
    bias = t.randn(B, S, S, H)

    def make(api: Any) -> Any:
        def call(q: Any, k: Any, v: Any) -> Any:
            doubled = (2 * bias).view(B, H, S, S)
            return api.flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + doubled[b, h, i, j])

        return call

    return Attempt(make, qkv(t, dtype=torch.bfloat16), (bias,))


@behaviour("pytorch/pytorch#139548", "a mask_mod given as score_mod", why="X123: give the mask to `create_block_mask`")
def mask_as_score(t: Trial, call: str) -> None:
    function = attention(lambda score, b, h, q, k: q >= k)(t.ours)
    t.expect_refusal(lambda: (t.compile(function) if call == "compiled" else function)(*qkv(t)), "X123")


@report("pytorch/pytorch#145869", "a learned bias of every pair")
def bias_of_every_pair(t: Trial) -> list[Attempt]:
    whole, of_heads = t.randn(B, H, S, S), t.randn(1, H, S, S)
    return [
        Attempt(attention(lambda score, b, h, q, k: score + whole[b, h, q, k]), qkv(t), (whole,)),
        Attempt(attention(lambda score, b, h, q, k: score + of_heads[0, h, q, k]), qkv(t), (of_heads,)),
    ]


@report("meta-pytorch/attention-gym#131", "large scores in half precision")
def large_scores(t: Trial) -> list[Attempt]:
    tensors = [t.wanting(10 * x.detach()) for x in t.qkv((1, 2, 240, 128), dtype=torch.float32)]
    return [
        Attempt(attention(), [t.wanting(x.detach().to(dtype)) for x in tensors]) for dtype in (torch.float32, torch.bfloat16, torch.float16)
    ]


@report("pytorch/pytorch#135161", "equal inputs: compiled and eager drift apart")
def equal_inputs(t: Trial) -> Attempt:
    x = torch.full((1, 4, 256, 64), 2.6, device=t.device) + 0.1 * torch.randn(1, 4, 256, 64, device=t.device)
    return Attempt(attention(), [t.wanting(x.clone()) for _ in range(3)])


@report("pytorch/pytorch#188871", "a table at a shifted distance, several lengths")
def tables_of_several_lengths(t: Trial) -> list[Attempt]:
    def at(n: int) -> Attempt:
        table, offset = t.randn(2 * n), n - 1
        return Attempt(attention(lambda score, b, h, q, k: score + table[q - k + offset]), qkv(t, n), (table,))

    return [at(n) for n in (64, 96, 160)]


@report("sgl-project/sglang#33915", "Gemma 2, Grok: a cap before a window")
def cap_before_the_window(t: Trial) -> Attempt:
    cap, window = 3.0, 24

    def score_mod(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        score = cap * torch.tanh(score / cap)
        return torch.where((q >= k) & (q - k <= window), score, NEVER)

    x = [t.wanting(4 * y.detach()) for y in qkv(t)]
    return Attempt(attention(score_mod), x)


@report("flashinfer-ai/flashinfer#350", "decoding with a cap before the mask")
def capped_decoding(t: Trial) -> Attempt:
    lengths = torch.tensor([70, 100], device=t.device)
    make = attention(
        lambda score, b, h, q, k: 5 * torch.tanh(score / 5),
        lambda api: api.create_block_mask(lambda b, h, q, k: k < lengths[b], B, None, 1, S, device=t.device),
    )
    return Attempt(make, t.qkv((B, H, 1, 64), (B, H, S, 64)))


def alibi_slopes(heads: int) -> list[float]:
    """Compute ALiBi's slopes, also for numbers of heads that are no power of two, as its authors do."""
    if math.log2(heads).is_integer():
        start = 2.0 ** (-(2.0 ** -(math.log2(heads) - 3)))
        return [start ** (i + 1) for i in range(heads)]
    near = 2 ** math.floor(math.log2(heads))
    return alibi_slopes(near) + alibi_slopes(2 * near)[0::2][: heads - near]


@report("Dao-AILab/flash-attention#907", "ALiBi in cross attention, aligned to the last key")
def alibi_of_cross_attention(t: Trial) -> Attempt:
    slopes, m, n = torch.tensor(alibi_slopes(6), device=t.device), 40, 100
    return Attempt(
        attention(lambda score, b, h, q, k: score - slopes[h] * (q + n - m - k).abs()), t.qkv((B, 6, m, D), (B, 6, n, D), torch.float16)
    )


@report("Dao-AILab/flash-attention#1585", "ALiBi slopes of each batch and head")
def alibi_of_batches(t: Trial) -> Attempt:
    slopes = t.wanting(torch.rand(B, H, device=t.device))
    return Attempt(attention(lambda score, b, h, q, k: score + slopes[b, h] * k), qkv(t), (slopes,))


@report("mosaicml/llm-foundry: attention.py", "ALiBi by exp2 of the head's index")
def alibi_by_head_index(t: Trial) -> Attempt:
    return Attempt(attention(lambda score, b, h, q, k: score + torch.exp2(-((h + 1) * 8.0 / H)) * (k - q)), qkv(t))


def t5_bucket(distance: Any, buckets: int = 32, most: int = 128) -> Any:
    """T5's bucket of a distance, both directions."""
    buckets //= 2
    side = (distance > 0).to(torch.int32) * buckets
    n = distance.abs()
    exact = buckets // 2
    far = exact + (torch.log(n.clamp(min=1).float() / exact) / math.log(most / exact) * (buckets - exact)).to(torch.int32)
    return side + torch.where(n < exact, n, far.clamp(max=buckets - 1))


@report("huggingface/transformers: modeling_t5.py", "T5's buckets, precomputed for each distance")
def t5_bias(t: Trial) -> Attempt:
    table = t.randn(32, H)
    buckets = t5_bucket(torch.arange(-S, S, device=t.device)).long()
    return Attempt(attention(lambda score, b, h, q, k: score + table[buckets[k - q + S], h]), qkv(t), (table,))


@report("JingyunLiang/SwinIR#61", "Swin's shifted windows: relative positions, -100 between regions")
def swin_shifted_windows(t: Trial) -> Attempt:
    window = 7
    table = t.randn((2 * window - 1) ** 2, H)
    region = (torch.arange(49, device=t.device) % 7 > 3).int() + 2 * (torch.arange(49, device=t.device) // 7 > 3).int()

    def score_mod(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        index = (q // 7 - k // 7 + 6) * 13 + q % 7 - k % 7 + 6
        return score + table[index, h] + torch.where(region[q] == region[k], 0.0, -100.0)

    return Attempt(attention(score_mod), t.qkv((B, H, 49, D)), (table,))


@report("facebookresearch/segment-anything: image_encoder.py", "decomposed relative positions from the query")
def decomposed_positions(t: Trial) -> Attempt:
    height = width = 8
    rows, columns = t.randn(height, height, D), t.randn(width, width, D)

    def make(api: Any) -> Any:
        def call(q: Any, k: Any, v: Any) -> Any:
            grid = q.view(*q.shape[:2], height, width, D)
            of_row = torch.einsum("bhyxd,ykd->bhyxk", grid, rows.to(q.dtype)).reshape(*q.shape[:3], height) * 0.1
            of_column = torch.einsum("bhyxd,xkd->bhyxk", grid, columns.to(q.dtype)).reshape(*q.shape[:3], width) * 0.1
            return api.flex_attention(
                q, k, v, score_mod=lambda s, b, h, i, j: s + of_row[b, h, i, j // width] + of_column[b, h, i, j % width]
            )

        return call

    return Attempt(make, qkv(t, height * width), (rows, columns))


@report("aqlaboratory/openfold: triangular_attention.py", "pair biases and a mask of -1e9")
def pair_bias(t: Trial) -> Attempt:
    pair, valid = t.randn(H, S, S), (torch.arange(S, device=t.device) < 80).expand(B, S).contiguous()
    return Attempt(attention(lambda s, b, h, q, k: s + pair[h, q, k] + torch.where(valid[b, k], 0.0, -1e9)), qkv(t), (pair,))


@report("microsoft/Graphormer: graphormer_layers.py", "biases by shortest paths and edges of a graph")
def graph_distances(t: Trial) -> Attempt:
    spatial, edges = t.randn(10, H), t.randn(6, H)
    path, edge = torch.randint(0, 10, (B, S, S), device=t.device), torch.randint(0, 6, (B, S, S), device=t.device)
    return Attempt(attention(lambda s, b, h, q, k: s + spatial[path[b, q, k], h] + edges[edge[b, q, k], h]), qkv(t), (spatial, edges))


@report("zhixuan-lin/forgetting-transformer: forgetting_attention.py", "cumulative log gates of tokens")
def forget_gates(t: Trial) -> Attempt:
    logits = t.wanting(torch.zeros(B, H, S, device=t.device))

    def make(api: Any) -> Any:
        def call(q: Any, k: Any, v: Any) -> Any:
            gates = F.logsigmoid(logits).cumsum(-1)
            return api.flex_attention(
                q, k, v, score_mod=lambda s, b, h, i, j: torch.where(i >= j, s + gates[b, h, i] - gates[b, h, j], NEVER)
            )

        return call

    return Attempt(make, qkv(t), (logits,))


@report("chijames/KERPLE: logarithmic kernels", "learned logarithmic distances with clamped coefficients")
def learned_logarithms(t: Trial) -> list[Attempt]:
    a, c = t.wanting(torch.rand(H, device=t.device)), t.wanting(torch.zeros(H, device=t.device))
    return [
        Attempt(attention(lambda s, b, h, q, k: s - a[h].clamp(min=0.01) * torch.log1p(c[h].clamp(min=0) * (q - k).abs())), qkv(t), (a, c)),
        Attempt(attention(lambda s, b, h, q, k: s - F.softplus(a[h]) * torch.log1p(F.softplus(c[h]) * (q - k).abs())), qkv(t), (a, c)),
    ]


@report("microsoft/DeBERTa: disentangled_attention.py", "content to position and back, clamped distances")
def disentangled(t: Trial) -> Attempt:
    span, table = 16, t.randn(32, D)

    def make(api: Any) -> Any:
        def call(q: Any, k: Any, v: Any) -> Any:
            to_position, to_content = (x @ table.to(q.dtype).mT * 0.1 for x in (q, k))

            def score_mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
                near = (i - j).clamp(-span, span - 1) + span
                back = (j - i).clamp(-span, span - 1) + span
                return s + to_position[b, h, i, near] + to_content[b, h, j, back]

            return api.flex_attention(q, k, v, score_mod=score_mod)

        return call

    return Attempt(make, qkv(t), (table,))


@report("microsoft/Swin-Transformer: swin_transformer_v2.py", "cosine attention with a clamped learned temperature")
def cosine_attention(t: Trial) -> Attempt:
    logit_scale = t.wanting(torch.full((H,), math.log(10.0), device=t.device))

    def make(api: Any) -> Any:
        def call(q: Any, k: Any, v: Any) -> Any:
            q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
            return api.flex_attention(
                q, k, v, score_mod=lambda s, b, h, i, j: s * logit_scale[h].clamp(max=math.log(100.0)).exp(), scale=1.0
            )

        return call

    return Attempt(make, qkv(t), (logit_scale,))


@report("pytorch/pytorch#163300", "a position bias by a small learned network")
def continuous_position_bias(t: Trial) -> Attempt:
    w1, b1, w2 = t.randn(8, 2), t.randn(8), t.randn(H, 8)

    def score_mod(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        dy, dx = (q // 5 - k // 5).float(), (q % 5 - k % 5).float()
        dy, dx = torch.sign(dy) * torch.log1p(dy.abs()), torch.sign(dx) * torch.log1p(dx.abs())
        return score + (w2[h] * torch.relu(w1[:, 0] * dy + w1[:, 1] * dx + b1)).sum(-1)

    return Attempt(attention(score_mod), t.qkv((B, H, 25, D)), (w1, b1, w2))


@report("lucidrains/x-transformers: attend.py", "powers of scores, a learned bias, a sigmoid")
def mixed_arithmetic(t: Trial) -> list[Attempt]:
    head = t.wanting(torch.zeros(H, device=t.device))
    return [
        Attempt(attention(lambda s, b, h, q, k: torch.relu(s) ** 2 + head[h]), qkv(t), (head,)),
        Attempt(attention(lambda s, b, h, q, k: s * torch.sigmoid(head[h]) + F.gelu(s)), qkv(t), (head,)),
        Attempt(attention(lambda s, b, h, q, k: torch.maximum(s, head[h]) + torch.minimum(s, head[h])), qkv(t), (head,)),
    ]
