"""Cases of expert kernels of others for `benchmarks.ptx_experts`: their sources, tensors, and the results expected of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from cuir.cuda import KernelCall, tensor_map
from cuir.ptx.launch.structs import Argument


@dataclass(frozen=True)
class Case:
    """Arguments of a host program, the tensors behind its pointers, and the expected results.

    Attributes:
        call: The launch, where no host program makes it.
    """

    arguments: tuple[int, ...]
    tensors: tuple[torch.Tensor, ...]
    results: Callable[[], list[tuple[torch.Tensor, torch.Tensor]]]
    call: KernelCall | None = None


@dataclass(frozen=True)
class Expert:
    """A kernel of others.

    Attributes:
        source: A host program in CUDA, or a Python program that writes what a compiler makes of a kernel.
        include: Folders of headers, in FOLDER.
        cases: What it is run on.
        standard: Of C++.
        known: Findings that it is expected to have, by their codes, and why.
        cut: A file in FOLDER with a kernel, and the line where the kernel's harness begins, which is left out.
    """

    name: str
    source: str
    arch: str
    include: tuple[str, ...]
    cases: tuple[Callable[[], Case], ...]
    defines: dict[str, object] = field(default_factory=dict)
    standard: str = "c++17"
    cut: tuple[str, str] | None = None
    known: dict[str, str] = field(default_factory=dict)


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def make_attention(b: int, h: int, hk: int, m: int, n: int, d: int, causal: bool) -> Callable[[], Case]:
    """Return the case of FlashAttention's layout."""

    def make() -> Case:
        q, k, v = draw(b, m, h, d), draw(b, n, hk, d, seed=1), draw(b, n, hk, d, seed=2)
        o, lse, count = torch.zeros_like(q), torch.zeros(b, h, m), torch.zeros(1, dtype=torch.int32)

        def results() -> list[tuple[torch.Tensor, torch.Tensor]]:
            keys, values = (t.float().repeat_interleave(h // hk, 2) for t in (k, v))
            scores = torch.einsum("bmhd,bnhd->bhmn", q.float(), keys) / math.sqrt(d)
            kept = torch.arange(n)[None] <= torch.arange(m)[:, None] + (n - m if causal else n)
            scores = scores.masked_fill(~kept, -math.inf)
            expected = torch.einsum("bhmn,bnhd->bmhd", scores.softmax(-1), values).nan_to_num()  # 0 in rows without keys
            rows = kept.any(1)
            return [(o.float(), expected), (lse[..., rows], scores.logsumexp(-1)[..., rows])]

        return Case((b, h, hk, m, n), (q, k, v, o, lse, count), results)

    return make


def make_learn_cuda(b: int, m: int, n: int) -> Callable[[], Case]:
    def make() -> Case:
        q, k, v = (draw(b, s, 128, seed=i, dtype=torch.bfloat16) for i, s in enumerate((m, n, n)))
        o = torch.zeros_like(q)

        def results() -> list[tuple[torch.Tensor, torch.Tensor]]:
            return [(o.float(), torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float()))]

        return Case((b, m, n), (q, k, v, o), results)

    return make


def make_gemm(m: int, n: int, k: int) -> Callable[[], Case]:
    def make() -> Case:
        a, b, d = draw(m, k), draw(n, k, seed=1), torch.zeros(m, n).half()
        return Case((m, n, k), (a, b, d), lambda: [(d.float(), a.float() @ b.float().T)])

    return make


def make_mla(lengths: Sequence[int], heads: int) -> Callable[[], Case]:
    """Return the case of FlashMLA: one part of the schedule for each sequence."""

    def make() -> Case:
        b, width = len(lengths), max(-(-n // 64) for n in lengths)
        table = torch.randperm(b * width, generator=torch.Generator().manual_seed(0)).int().reshape(b, width)
        q, cache = draw(b, 1, heads, 576), draw(b * width, 64, 1, 576, seed=1) / 4
        o, lse = torch.zeros(b, 1, heads, 512).half(), torch.zeros(b, 1, heads)
        schedule = torch.tensor([[i, i, 0, -(-n // 64), 0, 0, 0, 0] for i, n in enumerate(lengths)], dtype=torch.int32)
        splits = torch.arange(b + 1, dtype=torch.int32)
        rest = torch.zeros(2 * b, heads), torch.zeros(2 * b, heads, 512)

        def results() -> list[tuple[torch.Tensor, torch.Tensor]]:
            found = []
            for i, n in enumerate(lengths):
                keys = cache[table[i].long()].reshape(-1, 576)[:n].float()
                scores = q[i, 0].float() @ keys.T / math.sqrt(576)
                found += [(o[i, 0].float(), scores.softmax(-1) @ keys[:, :512]), (lse[i, 0], scores.logsumexp(-1))]
            return found

        tensors = (q, cache, o, lse, table, torch.tensor(lengths, dtype=torch.int32), schedule, splits, *rest)
        return Case((b, heads, b * width, width, b), tensors, results)

    return make


def make_varlen(queries: Sequence[int], keys: Sequence[int], h: int, hk: int, d: int, page: int) -> Callable[[], Case]:
    """Return the case of packed sequences, causal; page: keys of a page, 0 for packed keys."""

    def make() -> Case:
        b, rows, longest = len(queries), sum(queries), max(keys)
        width = -(-longest // page) if page else 0
        starts = torch.tensor([0, *itertools.accumulate(queries)]), torch.tensor([0, *itertools.accumulate(keys)])
        count = b * width * page if page else sum(keys)
        q, k, v = draw(rows, h, d), draw(count, hk, d, seed=1), draw(count, hk, d, seed=2)
        table = torch.randperm(max(b * width, 1), generator=torch.Generator().manual_seed(0)).int().reshape(-1, max(width, 1))
        o, lse, counter = torch.zeros_like(q), torch.zeros(h, rows), torch.zeros(1, dtype=torch.int32)
        schedule = [torch.zeros(b, dtype=torch.int32) for _ in range(4)]

        def find_keys(i: int) -> torch.Tensor:
            if not page:
                return torch.arange(int(starts[1][i]), int(starts[1][i + 1]))
            return (table[i].long()[:, None] * page + torch.arange(page)).reshape(-1)[: keys[i]]

        def results() -> list[tuple[torch.Tensor, torch.Tensor]]:
            found = []
            for i, (m, n) in enumerate(zip(queries, keys)):
                mine = slice(int(starts[0][i]), int(starts[0][i + 1]))
                k_i, v_i = (t[find_keys(i)].float().repeat_interleave(h // hk, 1) for t in (k, v))
                scores = torch.einsum("mhd,nhd->hmn", q[mine].float(), k_i) / math.sqrt(d)
                kept = torch.arange(n)[None] <= torch.arange(m)[:, None] + n - m
                scores, seen = scores.masked_fill(~kept, -math.inf), kept.any(1)
                found.append((o[mine].float(), torch.einsum("hmn,nhd->mhd", scores.softmax(-1), v_i).nan_to_num()))
                found.append((lse[:, mine][:, seen], scores.logsumexp(-1)[:, seen]))
            return found

        lengths = torch.tensor(keys, dtype=torch.int32) if page else starts[1].int()
        tensors = (q, k, v, o, lse, counter, starts[0].int(), lengths, table, *schedule)
        return Case((b, h, hk, rows, count, max(queries), width * page or longest), tensors, results)

    return make


def make_gradients(b: int, h: int, m: int, n: int, d: int, causal: bool) -> Callable[[], Case]:
    """Return the case of the backward pass in FlashAttention's layout."""

    def make() -> Case:
        q, k, v, do = draw(b, m, h, d), draw(b, n, h, d, seed=1), draw(b, n, h, d, seed=2), draw(b, m, h, d, seed=3)
        inputs = [t.float().requires_grad_() for t in (q, k, v)]
        scores = torch.einsum("bmhd,bnhd->bhmn", inputs[0], inputs[1]) / math.sqrt(d)
        kept = torch.arange(n)[None] <= torch.arange(m)[:, None] + (n - m if causal else n)
        scores = scores.masked_fill(~kept, -math.inf)
        out = torch.einsum("bhmn,bnhd->bmhd", scores.softmax(-1), inputs[2])
        expected = torch.autograd.grad(out, inputs, do.float())
        rounded = -(-m // 128) * 128
        found = [torch.zeros_like(t) for t in (q, k, v)]
        scratch = torch.zeros(b, h, rounded), torch.zeros(b, h, rounded), torch.zeros(b, h, rounded * d)
        tensors = (q, k, v, out.detach().contiguous().half(), scores.detach().logsumexp(-1), do, *found, *scratch)
        return Case((b, h, m, n), tensors, lambda: [(f.float(), e) for f, e in zip(found, expected)])

    return make


def make_head_major(b: int, h: int, hk: int, m: int, n: int, causal: bool, kind: str) -> Callable[[], Case]:
    """Return the case of tensors [batch, head, row, 64]; kind: "cutlass", or "kittens", whose log-sum-exp is scaled by -8."""

    def make() -> Case:
        dtype = torch.float16 if kind == "cutlass" else torch.bfloat16
        q, k, v = (draw(b, heads, rows, 64, seed=i, dtype=dtype) for i, (heads, rows) in enumerate(((h, m), (hk, n), (hk, n))))
        o, lse = torch.zeros_like(q), torch.zeros(b, h, m)

        def results() -> list[tuple[torch.Tensor, torch.Tensor]]:
            keys, values = (t.float().repeat_interleave(h // hk, 1) for t in (k, v))
            scores = q.float() @ keys.mT / 8
            if causal:
                scores = scores.masked_fill(torch.arange(n)[None] > torch.arange(m)[:, None], -math.inf)
            sums = scores.logsumexp(-1) * (1 if kind == "cutlass" else -8)
            return [(o.float(), scores.softmax(-1) @ values), (lse, sums)]

        return Case((b, h, m, n) if kind == "cutlass" else (b, h, hk, n), (q, k, v, o, lse), results)

    return make


def make_scaled_gemm(m: int, n: int, k: int) -> Callable[[], Case]:
    """Return the case of a product of 8-bit floats with scales: of A for each row and 128 columns, of B for blocks of 128 x 128."""

    def make() -> Case:
        a, b = (draw(*shape, seed=i, dtype=torch.float32).to(torch.float8_e4m3fn) for i, shape in enumerate(((m, k), (n, k))))
        blocks = -(-k // 128)
        of_a, of_b = draw(blocks, m, dtype=torch.float32).abs() + 0.5, draw(-(-n // 128), blocks, dtype=torch.float32).abs() + 0.5
        d = torch.zeros(m, n, dtype=torch.bfloat16)

        def results() -> list[tuple[torch.Tensor, torch.Tensor]]:
            left = a.float() * of_a.T.repeat_interleave(128, 1)[:, :k]
            right = b.float() * of_b.repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
            return [(d.float(), left @ right.T)]

        return Case((m, n, k), (a.view(torch.uint8), b.view(torch.uint8), of_a, of_b, d), results)

    return make


def make_tilelang_gemm(m: int, n: int, k: int) -> Callable[[], Case]:
    """Return the case of TileLang's product: copies of boxes of 128 x 64, three stages, a warpgroup that loads and two that multiply."""

    def make() -> Case:
        a, b, c = draw(m, k), draw(n, k, seed=1), torch.zeros(m, n).half()
        maps = [tensor_map(t, (128, 64), 128) for t in (a, b)]
        call = KernelCall((-(-n // 128), -(-m // 128)), 384, *maps, c, shared=98304)
        return Case((m, n, k), (a, b, c), lambda: [(c.float(), a.float() @ b.float().T)], call)

    return make


def make_triton_gemm(m: int, n: int, k: int) -> Callable[[], Case]:
    """Return the case of Triton's product: each descriptor is a tensor map, with sizes and strides behind it."""

    def make() -> Case:
        a, b, c = draw(m, k), draw(n, k, seed=1), torch.zeros(m, n).half()
        arguments: list[Argument] = []
        for t in (a, b, c):
            arguments += [tensor_map(t, (64, 64), 128), *t.shape, *t.stride()]
        call = KernelCall((-(-m // 64), -(-n // 64)), 384, *arguments, m, n, k, None, shared=65632)
        return Case((m, n, k), (a, b, c), lambda: [(c.float(), a.float() @ b.float().T)], call)

    return make


TILELANG_SHAPE = 136, 200, 400  # constants of the text that TileLang makes
FA2 = ("flash-attention/csrc/flash_attn/src", "cutlass/include")
FA3 = ("flash-attention/hopper", "cutlass/include")
GEMM = ("cutlass/include", "cutlass/tools/util/include")
PINGPONG = {"TILE_M": 64, "CLUSTER": 1, "SCHEDULE": "KernelTmaWarpSpecializedPingpong", "EPILOGUE": "TmaWarpSpecialized"}
COOPERATIVE = {"TILE_M": 128, "CLUSTER": 2, "SCHEDULE": "KernelTmaWarpSpecializedCooperative", "EPILOGUE": "TmaWarpSpecializedCooperative"}


COMMITS = {
    "learn-cuda": "gau-nernst/learn-cuda 1454f8b",
    "flash-attention": "Dao-AILab/flash-attention 0251105",
    "cutlass": "NVIDIA/cutlass 7107b05",
    "FlashMLA": "deepseek-ai/FlashMLA 9241ae3",
    "ThunderKittens": "HazyResearch/ThunderKittens 0b55588",
    "DeepGEMM": "deepseek-ai/DeepGEMM 54e2261",
    "tilelang": "tilelang 0.1.15",
    "triton": "triton 3.4.0",
}


def list_experts() -> list[Expert]:
    """Return the kernels, small ones first."""
    experts = [
        Expert("learn_cuda_v5", "learn_cuda.cu", "80", ("learn-cuda/07_attention",), (make_learn_cuda(2, 128, 192),)),
    ]
    for d in (64, 128):
        for causal in (True, False):
            cases = make_attention(1, 2, 1, 200, 300, d, causal), make_attention(2, 1, 1, 150, 77, d, causal)
            name = f"d{d}_{'causal' if causal else 'full'}"
            defines: dict[str, object] = {"HEAD_DIM": d, "IS_CAUSAL": str(causal).lower()}
            experts.append(Expert(f"flash_attention_2_{name}", "flash_attention_2.cu", "80", FA2, cases, defines))
            experts.append(Expert(f"flash_attention_3_{name}", "flash_attention_3.cu", "90a", FA3, cases, {**defines, "CLUSTER": 1}))
    defines = {"HEAD_DIM": 128, "IS_CAUSAL": "false", "CLUSTER": 2}
    clustered = make_attention(1, 2, 1, 200, 300, 128, False), make_attention(2, 1, 1, 150, 77, 128, False)
    experts.append(Expert("flash_attention_3_cluster", "flash_attention_3.cu", "90a", FA3, clustered, defines))
    gemms = make_gemm(256, 256, 256), make_gemm(136, 200, 72)
    experts.append(Expert("cutlass_pingpong", "cutlass_gemm.cu", "90a", GEMM, gemms, dict(PINGPONG)))
    experts.append(Expert("cutlass_cooperative", "cutlass_gemm.cu", "90a", GEMM, gemms, dict(COOPERATIVE)))
    packed = make_varlen((150, 1, 70), (200, 90, 70), 2, 1, 64, 0), make_varlen((70, 1, 40), (90, 90, 40), 1, 1, 64, 0)
    paged = make_varlen((3, 1, 70), (200, 90, 70), 2, 1, 64, 32), make_varlen((3, 1, 5), (100, 40, 7), 1, 1, 64, 32)
    defines = {"HEAD_DIM": 64, "IS_CAUSAL": "true"}
    experts.append(Expert("flash_attention_3_varlen", "flash_attention_3_varlen.cu", "90a", FA3, packed, {**defines, "PAGE": 0}))
    why = {"R403": "cp.async, an ordinary write by the manual, and no fence.proxy.async before the product"}
    experts.append(Expert("flash_attention_3_paged", "flash_attention_3_varlen.cu", "90a", FA3, paged, {**defines, "PAGE": 32}, known=why))
    for d, causal, block in ((64, False, 128), (128, True, 64)):
        cases = make_gradients(1, 2, 200, 300, d, causal), make_gradients(2, 1, 77, 77, d, causal)
        defines = {"HEAD_DIM": d, "IS_CAUSAL": str(causal).lower(), "BLOCK_M": block}
        experts.append(Expert(f"flash_attention_3_backward_d{d}", "flash_attention_3_backward.cu", "90a", FA3, cases, defines))
    fmha = ("cutlass/examples/88_hopper_fmha", *GEMM, "cutlass/examples/common")
    for fusion, causal in (("ResidualFusion", False), ("CausalFusion", True)):
        cases = (
            make_head_major(2, 2, 2, 200, 200 if causal else 300, causal, "cutlass"),
            make_head_major(1, 2, 2, 136, 136 if causal else 72, causal, "cutlass"),
        )
        experts.append(Expert(f"cutlass_fmha_{'causal' if causal else 'full'}", "cutlass_fmha.cu", "90a", fmha, cases, {"FUSION": fusion}))
    cut = ("ThunderKittens/kernels/attention/mha_h100/mha_h100.cu", "#ifdef TORCH_COMPILE")
    rows = make_head_major(1, 2, 1, 768, 768, False, "kittens"), make_head_major(1, 1, 1, 384, 384, False, "kittens")
    defines = {"KITTENS_HOPPER": 1, "IS_CAUSAL": "false"}
    kittens = Expert("thunder_kittens", "thunder_kittens.cu", "90a", ("ThunderKittens/include",), rows, defines, "c++20", cut)
    experts.append(kittens)
    products = make_scaled_gemm(256, 256, 512), make_scaled_gemm(136, 200, 256)
    for multicast in (1, 2):
        name, defines = f"deep_gemm_{multicast}", {"MULTICAST": multicast}
        include, why = ("DeepGEMM/deep_gemm/include", "cutlass/include"), {"M416": "a CTA does not wait for its last store"}
        experts.append(Expert(name, "deep_gemm.cu", "90a", include, products, defines, "c++20", known=why))
    folders = ("FlashMLA/csrc", "FlashMLA/csrc/kerutils/include", "cutlass/include")
    experts.append(Expert("flash_mla", "flash_mla.cu", "90a", folders, (make_mla((130, 64, 200), 64), make_mla((70, 64), 64))))
    tiles = ("tilelang/site/tilelang/src", "cutlass/include")
    experts.append(Expert("tilelang_gemm", "tilelang_gemm.py", "90a", tiles, (make_tilelang_gemm(*TILELANG_SHAPE),)))
    why = {
        "R402": "both warpgroups store the same tile",
        "R403": "mbarriers are initialised where a copy then writes a tile, without fence.proxy.async",
    }
    experts.append(
        Expert("triton_gemm", "triton_gemm.py", "90a", (), (make_triton_gemm(136, 200, 400), make_triton_gemm(136, 200, 144)), known=why)
    )
    return experts
