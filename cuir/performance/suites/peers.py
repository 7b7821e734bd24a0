"""Contenders that users have today.

These are cuDNN and FlashAttention-2 through scaled_dot_product_attention, compiled FlexAttention, and compiled PyTorch;
FlashAttention-3 and 4 and cuDNN's interval masks where their packages are installed.

Masks as runs of keys, from a specification, for peers that take no mask function.

FlashInfer over a paged cache and of packed sequences, as a contender: its kernels on CUDA cores and on tensor cores.

Each is planned once, as a serving loop does for all its layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import Any, Protocol

import torch

from ...attn.kernels.card_kernels import DEFAULT, choose_target
from ...spec.specification import Specification, indices, lengths_of
from ...text.diagnostics import CuirError
from ..timing.problem import split_rows
from ..timing.timing_protocol import AttentionCall, Outputs

MOST = 8  # runs of a query's keys; a mask with more is not one of intervals


def find_kept_runs(spec: Specification, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor | None:
    """Return where each run of a query's keys begins and ends, int32 [batches, heads, M, runs, 2].

    Runs that a query lacks are (N, N). None if a query has more than MOST. batches and heads are 1 where the mask
    depends on neither. q [B, H, M, D], k [B, HK, N, D].
    """
    lengths = lengths_of(q, k)
    mask_mod, _ = spec.mods(lengths, q.device)
    if mask_mod is None:
        return torch.tensor([0, lengths.N], dtype=torch.int32, device=q.device).expand(1, 1, lengths.M, 1, 2)
    b, h, i, j = indices(lengths, q.device)
    alike = torch.as_tensor(mask_mod(b, h, i[:, :, :1], j)).expand(-1, -1, -1, lengths.N)
    pieces_of_runs = []
    for rows in split_rows(lengths.M, alike.numel()):
        mask = torch.as_tensor(mask_mod(b, h, i[:, :, rows], j), device=q.device)
        runs = _runs(mask.expand(torch.broadcast_shapes(mask.shape, (1, 1, i[:, :, rows].shape[2], lengths.N))))
        if runs is None:
            return None
        pieces_of_runs.append(runs)
    most = max(x.shape[3] for x in pieces_of_runs)
    return torch.cat([torch.nn.functional.pad(x, (0, 0, 0, most - x.shape[3]), value=lengths.N) for x in pieces_of_runs], 2)


def _runs(mask: torch.Tensor) -> torch.Tensor | None:
    """Return the runs of a mask [b, h, m, N]."""
    N = mask.shape[-1]
    edges = torch.nn.functional.pad(mask, (1, 1)).diff()  # of booleans: where two neighbours differ, by turns a run's begin and its end
    count = int(edges.sum(-1).max()) // 2 if edges.numel() else 0
    if count > MOST:
        return None
    at = torch.arange(N + 1, dtype=torch.int32, device=mask.device)
    places = torch.where(edges, at, N).sort(-1).values[..., : 2 * max(1, count)]
    places = torch.nn.functional.pad(places, (0, max(0, 2 - places.shape[-1])), value=N)
    return places.unflatten(-1, (-1, 2))


def as_functions(runs: torch.Tensor, batches: int) -> torch.Tensor:
    """Return runs as cuDNN's interval masks, int32 [heads, functions, batches * M].

    A query keeps the keys of [0, F0), [F1, F2), [F3, F4) and so on.
    """
    _, heads, M, count, _ = runs.shape
    flat = runs.expand(batches, *runs.shape[1:]).permute(1, 3, 4, 0, 2).reshape(heads, 2 * count, batches * M)
    begins, ends = flat[:, 0], flat[:, 1]
    if bool(((begins == 0) | (begins == ends)).all()):  # the first run of every query that has one begins with the first key
        first = torch.where(begins == ends, 0, ends)[:, None]
        return torch.cat([first, flat[:, 2:]], 1).contiguous()
    return torch.cat([torch.zeros_like(begins)[:, None], flat], 1).contiguous()


def window_of(runs: torch.Tensor, keys: int) -> tuple[int | None, int | None] | None:
    """Return how many keys before and after its position each query keeps, None for all of them.

    None for a mask that is no such window. Needs as many queries as keys.
    """
    if tuple(runs.shape[:4]) != (1, 1, keys, 1) or not keys:
        return None
    begins, ends = runs[0, 0, :, 0].unbind(-1)
    at = torch.arange(keys, dtype=torch.int32, device=runs.device)
    left = None if bool((begins == 0).all()) else keys - 1 - int(begins[-1])
    right = None if bool((ends == keys).all()) else int(ends[0]) - 1
    if left is not None and (left < 0 or not torch.equal(begins, (at - left).clamp(min=0))):
        return None
    if right is not None and (right < 0 or not torch.equal(ends, (at + right + 1).clamp(max=keys))):
        return None
    return left, right


PEERS = {
    "cudnn": "cuDNN through scaled_dot_product_attention (full and causal)",
    "fa2": "FlashAttention-2 through scaled_dot_product_attention (full and causal)",
    "fa3": "FlashAttention-3, from the package that you have installed (full and causal)",
    "fa4": "FlashAttention-4's CuTe kernels, from the package that you have installed (full, causal and windows without a score_mod)",
    "cudnn_flex": "cuDNN's interval masks, from the package that you have installed (masks whose queries keep few runs of keys, no score_mod)",
    "dense": "scaled_dot_product_attention with a dense mask (no score_mod)",
    "flex": "compiled FlexAttention with its block mask",
    "compiled": "torch.compile of the formula with a dense mask",
    "deterministic": "our own gradients with torch.use_deterministic_algorithms (suites of backward passes)",
    "otherwise": "compiled, where FlexAttention cannot say the variant: weights without a softmax",
    "flashinfer": "FlashInfer over a cache in pages, the better of its kernels on CUDA cores and on tensor cores (decode), or of packed sequences (varlen)",
    "16_bits": "our own call over the same cache in f16 or bf16, where it is of 8 bits (decode)",
    "settings": "our own decode kernel with every way to share out the keys (decode)",
    "varlen_attn": "PyTorch's own attention of packed sequences (varlen)",
}
OF_KERNELS = ("cudnn", "fa2", "fa3", "fa4", "cudnn_flex", "dense", "flex", "compiled", "otherwise")
KINDS = {"forward": "forward kernels", "backward": "backward passes", "decode": "decoding", "varlen": "packed sequences"}
OF = {
    "forward": OF_KERNELS,
    "backward": (*OF_KERNELS, "deterministic"),
    "decode": ("cudnn", "fa2", "fa3", "flashinfer", "flex", "16_bits", "settings"),
    "varlen": ("fa3", "fa4", "cudnn_flex", "flashinfer", "varlen_attn"),
}  # contenders of a kind of suite
FA3_MODULES = ("flash_attn_interface", "fa3_fwd_interface")  # of its own setup, and of the wheel with forward kernels alone (bf16)
PACKAGES = {  # of contenders: what it is called, its module, how to get it
    "fa4": ("FlashAttention-4", "flash_attn.cute", "pip install flash-attn-4[cu13]"),
    "cudnn_flex": ("cuDNN's attention with interval masks", "cudnn.flex_attention", "pip install 'nvidia-cudnn-frontend>=1.32'"),
    "flashinfer": ("FlashInfer", "flashinfer", "pip install flashinfer-python"),
}
COMPILED = ("flex", "compiled", "otherwise")  # those that spend seconds on a new shape before they run


def check_peers(names: Sequence[str], kind: str = "forward") -> None:
    """Check the names of contenders.

    Raises CuirError U118 for an unknown one, for one that suites of this kind do not have, and for one that is not
    installed.
    """
    for name in names:
        if name not in PEERS:
            raise CuirError.of("U118", f"there is no peer `{name}`", hint="; ".join(f"{n}: {PEERS[n]}" for n in OF[kind]))
        if name not in OF[kind]:
            raise CuirError.of(
                "U118",
                f"suites of {KINDS[kind]} have no contender `{name}`, found it asked for",
                hint="; ".join(f"{n}: {PEERS[n]}" for n in OF[kind]),
            )
        why = not_installed(name, kind)
        if why:
            raise CuirError.of("U118", why[0], hint=why[1])


def not_installed(name: str, kind: str) -> tuple[str, str] | None:
    """Return why a contender of another package cannot run, and what it needs; None if it can."""
    modules = FA3_MODULES if kind in ("forward", "backward") else FA3_MODULES[:1]
    if name == "fa3" and not any(find_spec(module) for module in modules):
        return "FlashAttention-3 is not installed", f"a package with the module {' or '.join(modules)}"
    if name in PACKAGES:
        title, module, how = PACKAGES[name]
        if not _is_installed(module):
            return f"{title} is not installed (no module {module})", how
    return None


def _is_installed(module: str) -> bool:
    """Return whether there is a module, without an import of the package that it is in."""
    package, _, rest = module.partition(".")
    spec = find_spec(package)
    return spec is not None and (not rest or PathFinder.find_spec(module, spec.submodule_search_locations) is not None)


def contenders(names: Sequence[str], spec: Specification, problem: Mapping[str, torch.Tensor], scale: float) -> dict[str, AttentionCall]:
    """Return calls that compute O for Q [B, H, M, D], K and V [B, HK, N, D], by name. Nothing runs yet.

    Those that cannot express the variant are left out.
    """
    check_peers(names)
    q, k, v = (problem[n] for n in "QKV")
    if set(names) & set(COMPILED):
        torch._dynamo.reset()  # or its limit of recompilations makes later problems run uncompiled
    plain_mask = causal_flag(spec, q, k)
    softmax = spec.normalize == "softmax"
    calls: dict[str, AttentionCall] = {}
    for name in names:
        if name in ("cudnn", "fa2"):
            if plain_mask is not None:
                calls[name] = _sdpa(name, q, k, v, plain_mask, scale)
        elif name == "fa3":
            if plain_mask is not None:
                calls[name] = _fa3(q, k, v, plain_mask, scale)
        elif name in ("fa4", "cudnn_flex"):
            call = (_fa4 if name == "fa4" else _cudnn_flex)(spec, q, k, v, scale)
            if call is not None:
                calls[name] = call
        elif name == "dense":
            if spec.score_mod is None and spec.mask_mod is not None and softmax and spec.sink is None:
                calls[name] = _dense(spec, q, k, v, scale)
        elif name == "flex":
            if softmax:
                calls[name] = _flex(spec, q, k, v, scale)
        elif name == "compiled" or not softmax:
            calls["compiled"] = _formula(spec, q, k, v, scale)
    return calls


def causal_flag(spec: Specification, q: torch.Tensor, k: torch.Tensor) -> bool | None:
    """Return is_causal of scaled_dot_product_attention, or None where no flag expresses the variant."""
    mask_mod, score_mod = spec.mods(lengths_of(q, k), q.device)
    if score_mod is not None or spec.normalize != "softmax" or spec.sink is not None:
        return None
    if mask_mod is None:
        return False
    mask = torch.as_tensor(mask_mod(*indices(lengths_of(q, k), q.device)), device=q.device)
    causal = q.shape[2] == k.shape[2] and bool((mask == torch.ones(mask.shape[-2:], dtype=torch.bool, device=q.device).tril()).all())
    return True if causal else None


def _sdpa(name: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> AttentionCall:
    """Return a call of scaled_dot_product_attention."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    backend = SDPBackend.CUDNN_ATTENTION if name == "cudnn" else SDPBackend.FLASH_ATTENTION

    def call() -> torch.Tensor:
        with sdpa_kernel(backend):
            return sdpa(q, k, v, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1])

    return call


def _fa3(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> AttentionCall:
    """Return a call of FlashAttention-3."""
    if find_spec(FA3_MODULES[0]):
        from flash_attn_interface import flash_attn_func
    else:
        from fa3_fwd_interface import flash_attn_func
    q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))  # [B, M, H, D], as its users have them

    def call() -> torch.Tensor:
        o: torch.Tensor = flash_attn_func(q, k, v, softmax_scale=scale, causal=causal)
        return o.transpose(1, 2)

    return call


def _fa4(spec: Specification, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> AttentionCall | None:
    """Return a call of FlashAttention-4, None where no window expresses the mask."""
    runs = _runs_of(spec, q, k)
    if runs is None:
        return None
    window = window_of(runs, k.shape[2])
    if window is None:
        return None
    q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))  # [B, M, H, D], as its users have them

    def call() -> torch.Tensor:
        from flash_attn.cute import flash_attn_func

        o = flash_attn_func(q, k, v, softmax_scale=scale, window_size=window)
        first: torch.Tensor = o[0] if isinstance(o, tuple) else o
        return first.transpose(1, 2)

    return call


def _cudnn_flex(spec: Specification, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> AttentionCall | None:
    """Return a call of cuDNN's interval masks, None where a query keeps more than a few runs of keys.

    Its plan, which depends on the mask and the shapes alone, is made at the first call.
    """
    runs = _runs_of(spec, q, k)
    if runs is None:
        return None
    q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))  # [B, M, H, D], as its users have them
    plans: list[object] = []

    def call() -> torch.Tensor:
        from cudnn.flex_attention import create_mask_plan, flex_attn_func

        if not plans:
            plans.append(create_mask_plan(as_functions(runs, q.shape[0]), q, k, v))
        o: torch.Tensor = flex_attn_func(q, k, v, mask_plan=plans[0], softmax_scale=scale)
        return o.transpose(1, 2)

    return call


def _runs_of(spec: Specification, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor | None:
    """Return the mask as runs of keys, None where the variant adds more than a mask to a softmax."""
    if spec.score_mod is not None or spec.normalize != "softmax" or spec.sink is not None:
        return None
    return find_kept_runs(spec, q, k)


def _dense(spec: Specification, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> AttentionCall:
    """Return a call with a dense mask, made at the first call, once for what it does not depend on."""
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    masks: list[torch.Tensor] = []

    def call() -> torch.Tensor:
        if not masks:
            whole = spec.mask(lengths_of(q, k), q.device)
            batches, heads = (n if stride else 1 for n, stride in zip(whole.shape[:2], whole.stride()[:2], strict=True))
            masks.append(whole[:batches, :heads].contiguous())
        return sdpa(q, k, v, attn_mask=masks[0], scale=scale, enable_gqa=q.shape[1] != k.shape[1])

    return call


def _compile(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Compile a function with torch.compile for a new problem, in this process.

    One or two kernels are not worth inductor's pool of processes. Compiled code is kept on disk, choices between
    tilings are not: those are made by timing, which is for a process that has the GPU to itself.
    """
    import torch._inductor.config

    torch._inductor.config.compile_threads = 1
    torch._inductor.config.autotune_local_cache = False
    compiled: Callable[..., torch.Tensor] = torch.compile(function, dynamic=False)
    return compiled


def _flex(spec: Specification, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> AttentionCall:
    """Return a call of FlexAttention, compiled at the first call: block mask, then the kernel.

    A sink is applied to its result, from its LSE.
    """
    compiled: list[AttentionCall] = []

    def call() -> Outputs:
        if not compiled:
            from torch.nn.attention.flex_attention import create_block_mask, flex_attention

            lengths = lengths_of(q, k)
            mask_mod, score_mod = spec.mods(lengths, q.device)
            blocks = None
            if mask_mod is not None:  # separate for batches and heads only if the mask depends on them
                mask = torch.as_tensor(mask_mod(*indices(lengths, q.device)))
                batches, heads = (n if n > 1 else None for n in mask.shape[:2])
                blocks = create_block_mask(mask_mod, batches, heads, lengths.M, lengths.N, device=str(q.device))
            options: dict[str, Any] = {"score_mod": score_mod, "block_mask": blocks, "scale": scale, "enable_gqa": q.shape[1] != k.shape[1]}
            if spec.sink is None:
                kernel = _compile(flex_attention)
                compiled.append(lambda: kernel(q, k, v, **options))
            else:
                from torch.nn.attention.flex_attention import AuxRequest

                sinks = spec.sinks(lengths).to(q.device, torch.float32)[:, None]

                def with_sink(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
                    o, aux = flex_attention(q, k, v, **options, return_aux=AuxRequest(lse=True))
                    share: torch.Tensor = torch.sigmoid(aux.lse - sinks)[..., None]
                    return (o * share).to(o.dtype)

                kernel = _compile(with_sink)
                compiled.append(lambda: kernel(q, k, v))
        return compiled[0]()

    return call


def _formula(spec: Specification, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> AttentionCall:
    """Return a call of the definition by torch.compile.

    It has products, score rule, dense mask, weights, product.
    """
    compiled: list[Callable[..., torch.Tensor]] = []
    lengths = lengths_of(q, k)
    mask_mod, score_mod = spec.mods(lengths, q.device)
    b, h, i, j = indices(lengths, q.device)
    normalize, sinks = spec.normalize, None if spec.sink is None else spec.sinks(lengths).to(q.device, torch.float32)[:, None, None]

    def weights(s: torch.Tensor) -> torch.Tensor:
        if normalize == "sigmoid":
            return torch.sigmoid(s)
        if normalize == "relu":
            return torch.relu(s) / max(1, lengths.N)
        if sinks is None:
            return torch.softmax(s, -1)
        return torch.exp(s - torch.logaddexp(s.logsumexp(-1, keepdim=True), sinks))

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, dim=1) if group > 1 else x for x in (k, v))
        s = (q @ k.mT).float() * scale
        if score_mod is not None:
            s = score_mod(s, b, h, i, j)
        if mask_mod is not None:
            s = s.masked_fill(~mask_mod(b, h, i, j), -torch.inf)
        return weights(s).to(q.dtype) @ v

    def call() -> torch.Tensor:
        if not compiled:
            compiled.append(_compile(attention))
        return compiled[0](q, k, v)

    return call


WORKSPACE = 256 << 20  # bytes, as its documentation demands


class _Plan(Protocol):
    """A planned kernel of the package."""

    def run(self, q: torch.Tensor, *keys_and_values: object, enable_pdl: bool | None = None) -> torch.Tensor: ...


def flashinfer(q: torch.Tensor, caches: tuple[torch.Tensor, ...], table: torch.Tensor, counts: Sequence[int]) -> dict[str, AttentionCall]:
    """Return calls that compute O [B, H, M, D]. Nothing runs yet.

    Args:
        q: [B, H, M, D].
        caches: Keys and values, each [NP, page, HK, D].
        table: Page table [B, pages].
        counts: Tokens of the sequences.
    """
    ways = {"tensor_cores": True, "cuda_cores": False} if q.shape[2] == 1 else {"tensor_cores": True}
    return {f"flashinfer {way}": _call(q, caches, table, counts, tensor_cores) for way, tensor_cores in ways.items()}


def _call(
    q: torch.Tensor, caches: tuple[torch.Tensor, ...], table: torch.Tensor, counts: Sequence[int], tensor_cores: bool
) -> AttentionCall:
    """Return a call that plans at its first run."""
    B, H, M, D = q.shape
    page, HK = caches[0].shape[1:3]
    backend, overlaps = _choose_backend(q.device)
    planned: list[_Plan] = []
    rows = q.transpose(1, 2).reshape(B * M, H, D)

    def plan() -> _Plan:
        """Plan the kernel for these lengths."""
        import flashinfer

        pages = [-(-n // page) for n in counts]
        first = torch.tensor([0, *pages]).cumsum(0).to(q.device, torch.int32)
        page_indices = torch.cat([table[b, :n] for b, n in enumerate(pages)])
        last = torch.tensor([(n - 1) % page + 1 for n in counts], dtype=torch.int32, device=q.device)
        room = torch.zeros(WORKSPACE, dtype=torch.uint8, device=q.device)
        types = {"q_data_type": q.dtype, "kv_data_type": caches[0].dtype}
        if M == 1:
            decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(room, "NHD", use_tensor_cores=tensor_cores)
            decode.plan(first, page_indices, last, H, HK, D, page, pos_encoding_mode="NONE", **types)
            return decode
        rows_of = torch.arange(0, B * M + 1, M, dtype=torch.int32, device=q.device)
        prefill = flashinfer.BatchPrefillWithPagedKVCacheWrapper(room, "NHD", backend=backend)
        prefill.plan(rows_of, first, page_indices, last, H, HK, D, page, causal=False, **types)
        return prefill

    def call() -> torch.Tensor:
        if not planned:
            planned.append(plan())
        o: torch.Tensor = planned[0].run(rows, caches, enable_pdl=overlaps)
        return o.view(B, M, H, D).transpose(1, 2)

    return call


def flashinfer_packed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu: torch.Tensor, causal: bool) -> AttentionCall:
    """Return a call that computes O [TQ, H, D] of packed sequences; it plans at its first run.

    Args:
        q: [TQ, H, D].
        k: [TQ, HK, D], as v.
        cu: Where the sequences begin, and the end of the last one, int32 [B + 1].
    """
    backend, overlaps = _choose_backend(q.device)
    planned: list[_Plan] = []

    def call() -> torch.Tensor:
        if not planned:
            import flashinfer

            room = torch.zeros(WORKSPACE, dtype=torch.uint8, device=q.device)
            ragged = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(room, "NHD", backend=backend)
            ragged.plan(cu, cu, q.shape[1], k.shape[1], q.shape[2], causal=causal, q_data_type=q.dtype, kv_data_type=k.dtype)
            planned.append(ragged)
        return planned[0].run(q, k, v, enable_pdl=overlaps)

    return call


def flashinfer_latent(
    q: torch.Tensor, cache: torch.Tensor, table: torch.Tensor, counts: Sequence[int], latent: int, scale: float
) -> AttentionCall:
    """Return a call that computes causal O [B, M, H, latent] over latent vectors; it plans at its first run.

    Args:
        q: [B, M, H, D].
        cache: Vectors, [NP, page, 1, D], whose first `latent` columns are the values.
        table: Page table [B, pages].
        counts: Tokens of the sequences.
    """
    B, M, H, D = q.shape
    backend, _ = _choose_backend(q.device)
    planned: list[_Plan] = []
    parts = [x.contiguous() for x in (*q.flatten(0, 1).split((latent, D - latent), -1), *cache[:, :, 0].split((latent, D - latent), -1))]

    def call() -> torch.Tensor:
        if not planned:
            import flashinfer.mla

            pages = [-(-n // cache.shape[1]) for n in counts]
            rows, first = (torch.tensor(x, dtype=torch.int32, device=q.device) for x in ([M] * B, pages))
            starts = [torch.nn.functional.pad(x.cumsum(0, dtype=torch.int32), (1, 0)) for x in (rows, first)]
            lengths = torch.tensor(counts, dtype=torch.int32, device=q.device)
            room = torch.zeros(WORKSPACE, dtype=torch.uint8, device=q.device)
            wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(room, backend=backend)
            indices = torch.cat([table[b, :n] for b, n in enumerate(pages)])
            wrapper.plan(*starts, indices, lengths, H, latent, D - latent, cache.shape[1], True, scale, q.dtype, cache.dtype)
            planned.append(wrapper)
        o: torch.Tensor = planned[0].run(*parts)
        return o.view(B, M, H, latent)

    return call


def _choose_backend(device: torch.device) -> tuple[str, bool | None]:
    """Return the kernels that calls ask for, and whether a launch may begin before the one in front of it ends.

    For an older architecture than the GPU's these are the ones that the package has for it.
    """
    return ("auto", None) if choose_target(device).arch == DEFAULT else ("fa2", False)


__all__ = [
    "COMPILED",
    "FA3_MODULES",
    "KINDS",
    "MOST",
    "OF",
    "OF_KERNELS",
    "PACKAGES",
    "PEERS",
    "as_functions",
    "causal_flag",
    "check_peers",
    "contenders",
    "find_kept_runs",
    "flashinfer",
    "flashinfer_latent",
    "flashinfer_packed",
    "not_installed",
    "window_of",
]
