"""Models of Hugging Face transformers on attn_implementation="cuir", beside others: tokens a second.

    python -m benchmarks.transformers                              # on a Hopper GPU: every model below; --models llama, --layers 8 for less
    python -m benchmarks.transformers --tiny --backend interpret --device cpu     # no GPU: the same script on tiny models; its figures say nothing
    python -m benchmarks.transformers --table rows.jsonl           # the table of what was measured

Models have real sizes and random weights; peers are sdpa, flex_attention and FlashAttention. prefill: one forward pass
over a prompt, logits of the last token. padded: the same with prompts of a batch padded at the left. dynamic, static:
generate() over such a cache, the tokens after the first; over a static cache transformers compiles the model.
Contenders take turns (cuir/performance/timing/timing_protocol.py), wall clock. Before that each is compared with eager attention on a
short prompt: `off` is the relative distance of its logits. Contenders that refuse a model are named, with the reason.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from cuir.integrations.transformers import register
from cuir.performance.timing.timing_protocol import describe_error, time_in_turns

GRAPHS = 256  # of torch.compile for one function: one for each contender, cache and batch
# Configurations as their authors publish them: sizes alone, no weights.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072}),
    "mistral": ("MistralConfig", {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "sliding_window": 4096, "max_position_embeddings": 32768}),
    "gemma2": ("Gemma2Config", {"vocab_size": 256000, "hidden_size": 3584, "intermediate_size": 14336, "num_hidden_layers": 42, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "sliding_window": 4096, "attn_logit_softcapping": 50.0, "query_pre_attn_scalar": 256, "max_position_embeddings": 8192}),
    "gpt_oss": ("GptOssConfig", {"vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128, "num_local_experts": 32, "num_experts_per_tok": 4, "max_position_embeddings": 131072}),
}  # fmt: skip
TINY = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "sliding_window": 8, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
RIVALS = ("sdpa", "flex_attention", "flash_attention_2", "flash_attention_3")
WORK = ("prefill", "padded", "dynamic", "static")


def model_of(name: str, layers: int | None, tiny: bool, dtype: torch.dtype, device: str) -> Any:
    """Return a model with random weights, the same each time."""
    import transformers

    kind, sizes = MODELS[name]
    if tiny:
        sizes = {**sizes, **{k: v for k, v in TINY.items() if k in sizes or k.endswith("token_id")}}
    if layers is not None:
        sizes = {**sizes, "num_hidden_layers": layers}
    torch.manual_seed(0)
    with torch.device(device):
        config = getattr(transformers, kind)(**sizes)
        return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager").eval()


def prompts(model: Any, batch: int, tokens: int, padded: bool) -> dict[str, torch.Tensor]:
    """Return random tokens; padded: the i-th prompt of a batch of n lacks i / 2n of them, at the left."""
    g = torch.Generator().manual_seed(tokens)
    ids = torch.randint(3, model.config.vocab_size, (batch, tokens), generator=g)
    missing = torch.arange(batch)[:, None] * tokens // (2 * batch) if padded else torch.zeros(batch, 1, dtype=torch.int64)
    mask = (torch.arange(tokens) >= missing).long()
    return {"input_ids": ids.to(model.device), "attention_mask": mask.to(model.device)}


def off(model: Any, implementation: str, tokens: int) -> float:
    """Return the relative distance of an implementation's logits from those of eager attention."""
    inputs = prompts(model, 2, tokens, True)
    present = inputs["attention_mask"].bool()
    logits: dict[str, torch.Tensor] = {}
    for name in ("eager", implementation):
        model.set_attn_implementation(name)
        logits[name] = model(**inputs, use_cache=False).logits[present].float()
    return float((logits[implementation] - logits["eager"]).norm() / logits["eager"].norm())


def now() -> float:
    """Return the wall clock, once launched work has ended."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


class Clock:
    """Stopping criterion of generate() that stops nothing, and notes times of the first and last token."""

    def __init__(self, new: int) -> None:
        self.new, self.count, self.first, self.last = new, 0, 0.0, 0.0

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        self.count += 1
        if self.count == 1:
            self.first = now()
        if self.count == self.new:
            self.last = now()
        return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)


def measure_seconds(model: Any, implementation: str, work: str, inputs: Mapping[str, torch.Tensor], new: int) -> float:
    """Return the seconds of a prefill, or of generate() from the first new token to the last.

    Of two calls the second counts.
    """
    model.set_attn_implementation(implementation)
    seconds = 0.0
    for _ in range(2):
        if work in ("prefill", "padded"):
            began = now()
            model(**inputs, use_cache=False, logits_to_keep=1)
            seconds = now() - began
        else:
            clock = Clock(new)
            model.generate(
                **inputs,
                max_new_tokens=new,
                min_new_tokens=new,
                do_sample=False,
                cache_implementation=work,
                pad_token_id=0,
                stopping_criteria=[clock],
            )
            seconds = clock.last - clock.first
    return seconds


def rates(
    model: Any, names: Sequence[str], work: str, batch: int, tokens: int, new: int, rounds: int
) -> tuple[dict[str, float], dict[str, str]]:
    """Return tokens a second of each contender, and why others failed."""
    inputs = prompts(model, batch, tokens, work == "padded")
    counted = int(inputs["attention_mask"].sum()) if work in ("prefill", "padded") else batch * (new - 1)
    jobs = {name: partial(measure_seconds, model, name, work, inputs, new) for name in names}
    times, failed = time_in_turns(jobs, rounds, lambda job: float(job()))
    return {name: counted / statistics.median(seconds) for name, seconds in times.items()}, failed


def measure_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for each model and kind of work: tokens a second, distances of logits, refusals."""
    register(backend=options.backend)
    torch._dynamo.config.recompile_limit = GRAPHS
    dtype = torch.float16 if options.tiny else torch.bfloat16
    for name in options.models:
        model = model_of(name, options.layers, options.tiny, dtype, options.device)
        offs: dict[str, float] = {}
        refused: dict[str, str] = {}
        for implementation in ("cuir", *options.beside):
            try:
                offs[implementation] = off(model, implementation, min(options.tokens, 512))
            except Exception as error:  # an implementation that is not installed, or not for this model
                refused[implementation] = describe_error(error)
        for work in options.work:
            tokens_a_second, failed = rates(model, list(offs), work, options.batch, options.tokens, options.new, options.rounds)
            yield {
                "model": name,
                "layers": model.config.num_hidden_layers,
                "work": work,
                "batch": options.batch,
                "tokens": options.tokens,
                "new": options.new,
                "rates": {n: round(r, 1) for n, r in tokens_a_second.items()},
                "off": {n: round(x, 5) for n, x in offs.items()},
                "failed": {**refused, **failed},
            }
        del model
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format tokens a second of each contender, and ours by the best other one."""
    names = list(dict.fromkeys(n for row in rows for n in row["rates"]))
    lines = [
        f"| model | layers | work | batch | tokens | {' | '.join(names)} | ours / best other |",
        f"|---|--:|---|--:|--:|{'--:|' * (len(names) + 1)}",
    ]
    for row in rows:
        of = row["rates"]
        best = max((r for n, r in of.items() if n != "cuir"), default=0)
        figures = " | ".join(f"{of[n]:.0f}" if n in of else "" for n in names)
        share = f"{of['cuir'] / best:.2f}" if best and "cuir" in of else ""
        lines.append(f"| {row['model']} | {row['layers']} | {row['work']} | {row['batch']} | {row['tokens']} | {figures} | {share} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.transformers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--work", nargs="+", choices=WORK, default=list(WORK))
    parser.add_argument("--beside", nargs="*", default=list(RIVALS), help="other implementations")
    parser.add_argument("--layers", type=int, default=None, help="so many instead of all")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=None, help="of a prompt: 4096")
    parser.add_argument("--new", type=int, default=None, help="tokens that are generated: 128")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--backend", default="auto", choices=("auto", "interpret"))
    parser.add_argument("--tiny", action="store_true", help="models, prompts and answers of a handful of tokens")
    parser.add_argument("--out", type=Path, default=None, help="a file for the rows, a line each")
    parser.add_argument("--table", type=Path, default=None)
    options = parser.parse_args(arguments)
    options.tokens = options.tokens or (6 if options.tiny else 4096)
    options.new = options.new or (3 if options.tiny else 128)
    if options.new < 2:
        parser.error("--new must be at least 2: the first token is not timed")
    if options.table is not None:
        print(table([json.loads(line) for line in options.table.read_text(encoding="utf-8").splitlines()]))
        return 0
    rows: list[dict[str, Any]] = []
    with torch.no_grad():
        for row in measure_rows(options):
            rows.append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
            if options.out is not None:
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
    print(table(rows))
    return int(any("cuir" in row["failed"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
