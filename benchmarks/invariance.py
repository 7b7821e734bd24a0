"""Bits of batch-invariant calls over random batches, and what the fixed order of sums costs, on a Hopper GPU.

    python -m benchmarks.invariance                             # bits and costs of all rows
    python -m benchmarks.invariance --batches 200 --cost "" --out rows.jsonl
    python -m benchmarks.invariance --batches 0 --cost decode backward --share 512

Bits: the last queries of a sequence run alone, in one piece. In each random batch a piece of them, of 1 to all, must
have the same bits: among other sequences, at any place, with other capacities. `--without` shows that bits would differ
otherwise. Costs: medians of CUDA events in turns with a flushed L2 cache; calls over caches are CUDA
graphs. FlashAttention-3, if it is installed, runs with the splits of keys that it chooses, and with one.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

import cuir
from benchmarks.recorded import command
from cuir.attn.kernels import decoding, latent_settings
from cuir.performance.timing.gpu import versions
from cuir.performance.timing.timing_protocol import Call, capture_graph, median_ms
from cuir.text.markdown import table

PIECES = (1, 7, 64)  # queries, beside all
PAGE = 64
LATENT = 512  # columns of values of latent caches
E4M3 = torch.float8_e4m3fn


@dataclass(frozen=True)
class Kind:
    """A kind of call: which function, dtype of queries, query heads, key heads, head dim, and its rule."""

    call: str
    dtype: torch.dtype = torch.bfloat16
    heads: int = 16
    key_heads: int = 4
    dim: int = 128
    page: int = PAGE
    eight: bool = False
    rule: str = "causal"


KINDS = {
    "cache": Kind("cache"),
    "cache, f16, head dim 64, pages of 16": Kind("cache", torch.float16, 8, 8, 64, 16),
    "cache, window": Kind("cache", rule="window"),
    "cache, 8 bits": Kind("cache", eight=True),
    "cache, head dim 256": Kind("cache", dim=256, heads=8, key_heads=2),
    "packed over a cache": Kind("packed"),
    "packed over a cache, window": Kind("packed", torch.float16, rule="window"),
    "packed": Kind("varlen"),
    "dense": Kind("dense"),
    "latent": Kind("latent", heads=16, key_heads=1, dim=576),
    "latent, 8 bits": Kind("latent", heads=16, key_heads=1, dim=576, eight=True),
}


class Sizes(NamedTuple):
    """Sizes of the problems: keys of sequences, the queries of the last piece, sequences of a batch, capacities."""

    keys: tuple[int, ...] = (70, 1500, 9000)
    queries: int = 300
    sequences: tuple[int, ...] = (1, 2, 3, 7, 20, 64)
    capacities: tuple[int, ...] = (9000, 20000)
    device: str = "cuda"


SMALL = Sizes((200,), 70, (1, 2, 3), (200, 400), "cpu")  # for the interpreter


def window_mask(b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor, *, M: int, N: int) -> torch.Tensor:
    """Keep the last 100 keys of each query."""
    return (kv_idx <= q_idx + (N - M)) & (kv_idx > q_idx + (N - M) - 100)


def causal_mask(b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor, *, M: int, N: int) -> torch.Tensor:
    """Keep the keys up to each query's own."""
    return kv_idx <= q_idx + (N - M)


MASKS = {"window": window_mask, "causal": causal_mask}


class Sequence(NamedTuple):
    """A sequence: its last queries [queries, H, D], keys and values [N, HK, D]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor

    def cut(self, first: int, end: int) -> Sequence:
        """Return a piece of the queries, with the keys up to the last of them."""
        behind = len(self.q) - end
        return Sequence(self.q[first:end], self.k[: len(self.k) - behind], self.v[: len(self.v) - behind])


Outputs = list[tuple[torch.Tensor, torch.Tensor]]  # of each sequence O [queries, H, D] and LSE [H, queries]


class Batches:
    """Random batches of one kind, and calls that run them."""

    def __init__(self, kind: Kind, sizes: Sizes, seed: int):
        self.kind, self.sizes = kind, sizes
        self.random = random.Random(seed)
        self.generator = torch.Generator(sizes.device).manual_seed(seed)

    def draw(self, *shape: int) -> torch.Tensor:
        """Return random numbers in the dtype of the kind."""
        return torch.randn(shape, generator=self.generator, device=self.sizes.device).to(self.kind.dtype)

    def make_sequence(self, keys: int, queries: int) -> Sequence:
        """Return a random sequence."""
        H, HK, D = self.kind.heads, self.kind.key_heads, self.kind.dim
        k, v = (self.draw(keys, HK, D).to(E4M3).to(self.kind.dtype) if self.kind.eight else self.draw(keys, HK, D) for _ in range(2))
        return Sequence(self.draw(queries, H, D), k, v)

    def surround(self, piece: Sequence) -> tuple[list[Sequence], int, int]:
        """Return a batch around a piece, its place, and the capacity of the cache."""
        count, N, M = self.random.choice(self.sizes.sequences), len(piece.k), len(piece.q)
        count = min(count, max(1, 4096 // M)) if self.kind.call == "dense" else min(count, max(1, 65536 // (M * 16)))
        capacity, place, batch = self.random.choice(self.sizes.capacities), self.random.randrange(count), []
        for b in range(count):
            if b == place:
                batch.append(piece)
                continue
            keys = N if self.kind.call == "dense" else self.random.choice((1, 33, 129, self.sizes.keys[0], self.sizes.keys[-1] // 3))
            queries = M if self.kind.call in ("cache", "latent", "dense") else self.random.randint(1, min(keys, 2 * M))
            batch.append(self.make_sequence(max(keys, queries), queries))
        return batch, place, capacity

    def run(self, batch: list[Sequence], capacity: int, invariant: bool) -> Outputs:
        """Run a batch by the function of the kind."""
        run = {
            "cache": self._run_cache,
            "latent": self._run_latent,
            "packed": self._run_cache,
            "varlen": self._run_varlen,
            "dense": self._run_dense,
        }
        options = {"batch_invariant": invariant, "return_lse": True, "verify": "off"}
        with torch.no_grad():
            return run[self.kind.call](batch, capacity, {**options, "backend": "auto" if self.sizes.device == "cuda" else "interpret"})

    def _rule(self) -> dict[str, Any]:
        return {"causal": True} if self.kind.rule == "causal" else {"block_mask": MASKS[self.kind.rule]}

    def _integers(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.sizes.device)

    def _bounds(self, counts: list[int]) -> torch.Tensor:
        return torch.nn.functional.pad(self._integers(counts).cumsum(0), (1, 0)).int()

    def _run_cache(self, batch: list[Sequence], capacity: int, options: dict[str, Any]) -> Outputs:
        page, kind = self.kind.page, self.kind
        capacity = max(capacity, *(len(s.k) for s in batch))
        used = [-(-len(s.k) // page) for s in batch]
        order = torch.randperm(sum(used) + 3, generator=self.generator, device=self.sizes.device)
        pools = [torch.full((sum(used) + 3, page, kind.key_heads, kind.dim), 3.0, dtype=kind.dtype, device=self.sizes.device) for _ in "kv"]
        table = torch.zeros(len(batch), -(-capacity // page), dtype=torch.int32, device=self.sizes.device)
        for b, s in enumerate(batch):
            mine = order[sum(used[:b]) : sum(used[: b + 1])]
            table[b, : used[b]] = mine.int()
            for pool, x in zip(pools, s[1:], strict=True):
                padded = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, used[b] * page - len(x)))
                pool[mine] = padded.view(used[b], page, kind.key_heads, kind.dim)
        pools = [p.to(E4M3) for p in pools] if kind.eight else pools
        lengths, counts = self._integers([len(s.k) for s in batch]), [len(s.q) for s in batch]
        more = {"cache_seqlens": lengths, "page_table": table, **self._rule(), **options}
        if kind.call == "cache":
            o, lse = cuir.attention_with_kv_cache(torch.stack([s.q for s in batch]), *pools, **more)
            return list(zip(o, lse))
        o, lse = cuir.attention_with_kv_cache(torch.cat([s.q for s in batch]), *pools, cu_seqlens_q=self._bounds(counts), **more)
        return list(zip(o.split(counts), lse.split(counts, 1)))

    def _run_latent(self, batch: list[Sequence], capacity: int, options: dict[str, Any]) -> Outputs:
        page = self.kind.page
        used = [-(-len(s.k) // page) for s in batch]
        table = torch.zeros(len(batch), -(-max(capacity, *(len(s.k) for s in batch)) // page), dtype=torch.int32, device=self.sizes.device)
        pool = torch.cat([torch.nn.functional.pad(s.k, (0, 0, 0, 0, 0, n * page - len(s.k))) for s, n in zip(batch, used, strict=True)])
        for b, n in enumerate(used):
            table[b, :n] = self._integers(list(range(sum(used[:b]), sum(used[: b + 1]))))
        more = {
            "cache_seqlens": self._integers([len(s.k) for s in batch]),
            "page_table": table,
            "latent": LATENT,
            **self._rule(),
            **options,
        }
        q, pool = torch.stack([s.q for s in batch]), pool.to(E4M3) if self.kind.eight else pool
        return list(zip(*cuir.attention_with_kv_cache(q, pool.view(-1, page, 1, self.kind.dim), None, **more)))

    def _run_varlen(self, batch: list[Sequence], capacity: int, options: dict[str, Any]) -> Outputs:
        q, k, v = (torch.cat(x) for x in zip(*batch))
        counts, keys = [len(s.q) for s in batch], [len(s.k) for s in batch]
        o, lse = cuir.varlen_attention(q, k, v, self._bounds(counts), self._bounds(keys), enable_gqa=True, **self._rule(), **options)
        return list(zip(o.split(counts), lse.split(counts, 1)))

    def _run_dense(self, batch: list[Sequence], capacity: int, options: dict[str, Any]) -> Outputs:
        q, k, v = (torch.stack(x).transpose(1, 2) for x in zip(*batch))
        M, N = q.shape[2], k.shape[2]
        mask = cuir.create_block_mask(partial(MASKS[self.kind.rule], M=M, N=N), None, None, M, N, device=self.sizes.device)
        o, lse = cuir.flex_attention(q, k, v, block_mask=mask, enable_gqa=True, **options)
        return list(zip(o.transpose(1, 2), lse))


def compare_bits(name: str, batches: int, sizes: Sizes, seed: int = 0, default: bool = True) -> dict[str, Any]:
    """Run random batches of a kind; return how many pieces had other bits than the whole, with and without the option."""
    drawn = Batches(KINDS[name], sizes, seed)
    wholes = [drawn.make_sequence(max(n, sizes.queries), min(n, sizes.queries)) for n in sizes.keys]
    alone = {inv: [drawn.run([s], sizes.capacities[0], inv)[0] for s in wholes] for inv in ((True, False) if default else (True,))}
    others = dict.fromkeys(alone, 0)
    for _ in range(batches):
        i = drawn.random.randrange(len(wholes))
        queries = len(wholes[i].q)
        count = min(queries, drawn.random.choice((*PIECES, queries)))
        first = drawn.random.randint(0, queries - count)
        batch, place, capacity = drawn.surround(wholes[i].cut(first, first + count))
        for inv, whole in alone.items():
            o, lse = drawn.run(batch, capacity, inv)[place]
            o_whole, lse_whole = whole[i]
            same = o.equal(o_whole[first : first + count]) and lse.equal(lse_whole[:, first : first + count])
            others[inv] += not same
    return {"kind": name, "batches": batches, "with other bits": others[True], "without the option": others.get(False)}


def compare_functions(sizes: Sizes) -> dict[str, Any]:
    """Return whether packed calls over a cache, packed sequences and dense calls give the same bits for a sequence."""
    results = []
    for name in ("packed over a cache", "packed", "dense"):
        drawn = Batches(KINDS[name], sizes, 7)
        sequences = [drawn.make_sequence(n, min(n, sizes.queries)) for n in sizes.keys]
        results.append([drawn.run([s], len(s.k), True)[0] for s in sequences])
    same = [all(a[0].equal(b[0]) and a[1].equal(b[1]) for a, b in zip(results[0], other)) for other in results[1:]]
    return {"kind": "packed over a cache, and packed sequences", "same": same[0], "and dense": same[1]}


# ---- costs
DECODE = [
    (1, 8192, 64, 8),
    (1, 32768, 64, 8),
    (1, 131072, 64, 8),
    (16, 4096, 64, 8),
    (16, 32768, 64, 8),
    (128, 1024, 64, 8),
    (128, 4096, 64, 8),
    (128, 16384, 64, 8),
    (1, 8192, 32, 32),
    (16, 4096, 32, 32),
    (64, 4096, 32, 32),
]


def time_in_turns(calls: Mapping[str, Call], rounds: int, milliseconds: float) -> dict[str, float]:
    """Return the median milliseconds of each call."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(median_ms(call, milliseconds))
    return {name: round(statistics.median(t), 5) for name, t in times.items()}


def cost_rows(parts: list[str], rounds: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each problem of the parts."""
    for part in parts:
        for row in PARTS[part](rounds):
            ours, fixed = row["ms"]["ours"], row["ms"]["ours, fixed order"]
            yield {**row, "cost": round(fixed / ours - 1, 4)}


def _decode_rows(rounds: int, M: int = 1, eight: bool = False) -> Iterator[dict[str, Any]]:
    for B, N, H, HK in DECODE:
        if HK <= 8 or (M == 1 and not eight):
            yield _time_decode(B, N, H, HK, M, eight, rounds)
            torch.cuda.empty_cache()


def _time_decode(B: int, N: int, H: int, HK: int, M: int, eight: bool, rounds: int) -> dict[str, Any]:
    q = torch.randn(B, M, H, 128, device="cuda", dtype=torch.bfloat16)
    pages = B * N // PAGE
    k, v = (torch.randn(pages, PAGE, HK, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    k, v = (x.to(E4M3) for x in (k, v)) if eight else (k, v)
    table = torch.randperm(pages, device="cuda").view(B, -1).int()
    lengths = torch.full((B,), N, dtype=torch.int32, device="cuda")

    def ours(invariant: bool) -> torch.Tensor:
        with torch.no_grad():
            o: torch.Tensor = cuir.attention_with_kv_cache(
                q, k, v, cache_seqlens=lengths, page_table=table, causal=True, batch_invariant=invariant, verify="off"
            )
        return o

    calls: dict[str, Call] = {"ours": partial(ours, False), "ours, fixed order": partial(ours, True)}
    if not eight:
        calls |= _flash_attention_3(q, k, v, lengths, table)
    results: dict[str, Any] = {name: call() for name, call in calls.items()}
    expected = results["ours"].double()
    errors = {name: float((x.double() - expected).norm() / expected.norm()) for name, x in results.items()}
    assert max(errors.values()) < 1e-2, errors
    times = time_in_turns({name: capture_graph(call) for name, call in calls.items()}, rounds, 10.0)
    problem = {"batch": B, "keys": N, "heads": H, "key heads": HK, "queries": M, "8 bits": eight}
    return {"part": "decode", **problem, "ms": times}


def _latent_rows(rounds: int) -> Iterator[dict[str, Any]]:
    for B, N, H in ((1, 8192, 128), (1, 131072, 128), (16, 32768, 128), (64, 8192, 128), (128, 4096, 128), (128, 8192, 16)):
        q = torch.randn(B, 1, H, 576, device="cuda", dtype=torch.bfloat16)
        cache = torch.randn(B * N // PAGE, PAGE, 1, 576, device="cuda", dtype=torch.bfloat16)
        table = torch.randperm(B * N // PAGE, device="cuda").view(B, -1).int()
        more: dict[str, Any] = {"cache_seqlens": torch.full((B,), N, dtype=torch.int32, device="cuda"), "page_table": table}

        def ours(invariant: bool, q: Any = q, cache: Any = cache, more: Any = more) -> torch.Tensor:
            with torch.no_grad():
                o: torch.Tensor = cuir.attention_with_kv_cache(
                    q, cache, None, causal=True, latent=LATENT, batch_invariant=invariant, verify="off", **more
                )
            return o

        calls = {"ours": partial(ours, False), "ours, fixed order": partial(ours, True)}
        error = float((calls["ours"]().double() - calls["ours, fixed order"]().double()).norm() / calls["ours"]().double().norm())
        assert error < 1e-2, error
        times = time_in_turns({name: capture_graph(call) for name, call in calls.items()}, rounds, 10.0)
        yield {"part": "latent", "batch": B, "keys": N, "heads": H, "ms": times}


def _flash_attention_3(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor, table: torch.Tensor) -> dict[str, Call]:
    try:
        from flash_attn_interface import flash_attn_with_kvcache
    except ImportError:
        return {}

    def call(splits: int) -> torch.Tensor:
        o: torch.Tensor = flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths, page_table=table, causal=True, num_splits=splits)
        return o

    return {"fa3": partial(call, 0), "fa3, one split": partial(call, 1)}


def _prefill_rows(rounds: int) -> Iterator[dict[str, Any]]:
    for length in (2048, 8192):
        for dim in (64, 128):
            count = 16384 // length
            q, k, v = (torch.randn(16384, heads, dim, device="cuda", dtype=torch.bfloat16) for heads in (32, 8, 8))
            bounds = torch.arange(0, 16384 + 1, length, device="cuda").int()

            def packed(invariant: bool, q: Any = q, k: Any = k, v: Any = v, bounds: Any = bounds, length: int = length) -> torch.Tensor:
                options: dict[str, Any] = {"causal": True, "enable_gqa": True, "verify": "off", "batch_invariant": invariant}
                with torch.no_grad():
                    o: torch.Tensor = cuir.varlen_attention(q, k, v, bounds, bounds, length, length, **options)
                return o

            dense = tuple(x.view(count, length, -1, dim).transpose(1, 2) for x in (q, k, v))
            mask = cuir.create_block_mask(lambda b, h, i, j: j <= i, None, None, length, length, device="cuda")

            def flex(invariant: bool, dense: Any = dense, mask: Any = mask) -> torch.Tensor:
                q, k, v = dense
                o: torch.Tensor = cuir.flex_attention(q, k, v, None, mask, enable_gqa=True, verify="off", batch_invariant=invariant)
                return o

            for name, call in (("packed", packed), ("dense", flex)):
                calls = {"ours": partial(call, False), "ours, fixed order": partial(call, True)}
                yield {"part": name, "length": length, "head dim": dim, "ms": time_in_turns(calls, rounds, 40.0)}


def _backward_rows(rounds: int) -> Iterator[dict[str, Any]]:
    for causal in (False, True):
        for dim in (64, 128):
            for length in (4096, 16384):
                q, k, v, do = (torch.randn(16384 // length, 32, length, dim, device="cuda", dtype=torch.bfloat16) for _ in range(4))
                q, k, v = (x.requires_grad_() for x in (q, k, v))
                mask = cuir.create_block_mask(lambda b, h, i, j: j <= i, None, None, length, length, device="cuda") if causal else None
                o = cuir.flex_attention(q, k, v, block_mask=mask, verify="off")

                def gradients(fixed: bool, o: Any = o, inputs: Any = (q, k, v), do: Any = do) -> tuple[torch.Tensor, ...]:
                    torch.use_deterministic_algorithms(fixed)
                    try:
                        return torch.autograd.grad(o, inputs, do, retain_graph=True)
                    finally:
                        torch.use_deterministic_algorithms(False)

                calls = {"ours": partial(gradients, False), "ours, fixed order": partial(gradients, True)}
                same = all(a.equal(b) for a, b in zip(gradients(True), gradients(True), strict=True))
                row = {"part": "backward", "mask": "causal" if causal else "full", "length": length, "head dim": dim, "same bits": same}
                yield {**row, "ms": time_in_turns(calls, rounds, 60.0)}


def describe_problem(row: Mapping[str, Any]) -> str:
    """Write the problem of a timed row."""
    kind = f"{row['part']}, 8-bit cache" if row.get("8 bits") else row["part"]
    return f"{kind}: " + ", ".join(f"{n} {x}" for n, x in row.items() if n not in ("part", "ms", "cost", "same bits", "8 bits"))


def markdown(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the page of results: batches, then times and costs."""
    head, *rest = rows
    bits = [[r["kind"], str(r["batches"]), str(r["with other bits"])] for r in rest if "batches" in r]
    timed = [r for r in rest if "cost" in r]
    names = list(dict.fromkeys(name for r in timed for name in r["ms"]))
    lines = [[describe_problem(r), *(str(r["ms"].get(n, "")) for n in names), f"{100 * r['cost']:.1f} %"] for r in timed]
    parts = [
        "# Batch-invariant calls",
        f"{head['device']}, {head['date']}.",
        f"    {head['command']} --out FILE",
        "\n".join(table(["kind", "random batches", "with other bits"], bits)),
        "Milliseconds, in turns, with a flushed L2 cache; the cost is of ours.",
        "\n".join(table(["problem", *names, "cost"], lines)),
    ]
    return "\n\n".join(parts) + "\n"


PARTS: dict[str, Callable[[int], Iterator[dict[str, Any]]]] = {
    "decode": _decode_rows,
    "four": partial(_decode_rows, M=4),
    "eight": partial(_decode_rows, eight=True),
    "latent": _latent_rows,
    "prefill": _prefill_rows,
    "backward": _backward_rows,
}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batches", type=int, default=200, help="random batches of each kind of call")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--without", action="store_true", help="also run the batches without the option")
    parser.add_argument(
        "--cost",
        nargs="*",
        default=list(PARTS),
        help="parts that are timed: decode, four (queries), eight (bits), latent, prefill, backward",
    )
    parser.add_argument("--share", type=int, help="keys of the first shares of decoding, to try others")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="rows, one JSON object a line")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("this needs a Hopper GPU", file=sys.stderr)
        return 1
    if options.share:
        decoding.FIXED_SHARE = latent_settings.FIXED_SHARE = options.share
    results: list[dict[str, Any]] = [{"suite": "invariance", "command": command("benchmarks.invariance", sys.argv[1:]), **versions()}]

    def show(row: dict[str, Any]) -> None:
        results.append(row)
        print(json.dumps(row), flush=True)
        if options.out is not None:
            options.out.write_text("".join(json.dumps(r) + "\n" for r in results), encoding="utf-8")

    if options.batches:
        for name in options.kinds:
            show(compare_bits(name, options.batches, Sizes(), default=options.without))
        if {"packed over a cache", "packed", "dense"} <= set(options.kinds):
            show(compare_functions(Sizes()))
    for row in cost_rows([part for part in options.cost if part], options.rounds):
        show(row)
    return 1 if any(row.get("with other bits") or row.get("same") is False or row.get("same bits") is False for row in results[1:]) else 0


if __name__ == "__main__":
    sys.exit(main())
