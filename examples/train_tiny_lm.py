"""Trains a small language model of characters twice from the same weights on the same text, with PyTorch's attention and with ours, and shows both loss curves.

python examples/train_tiny_lm.py --plot curves.png              # on a Hopper GPU: 300 steps of 8 x 2048 characters; beside PyTorch's compiled flex_attention, with the time a step
python examples/train_tiny_lm.py --steps 4                      # without one: tiny, in the interpreter, beside the same formula in PyTorch's dense operations

The text is the project's own pages (docs/*.md), each of their paragraphs a document. A window of the text holds parts of several documents, so the attention has a document mask
beside the causal one, a soft cap on the scores and ALiBi in the place of positions.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

PAGES = Path(__file__).resolve().parent.parent / "docs"
CAP = 20.0
WARM = 5  # steps that are not timed: kernels are made in them
Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
Mod = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model and its training.

    `layers` blocks of `heads` heads of `dim`; windows of `length` characters, `batch` of them a step.
    """

    layers: int
    heads: int
    dim: int
    batch: int
    length: int
    steps: int
    rate: float

    @property
    def width(self) -> int:
        return self.heads * self.dim


@dataclass(frozen=True)
class Text:
    """Characters as numbers, i64 [characters], and of each which document it is in, i32 [characters]."""

    characters: torch.Tensor
    documents: torch.Tensor
    alphabet: str

    def window(self, sizes: Sizes, step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Characters, those that follow them, and documents, [batch, length] each; of one step always the same."""
        g = torch.Generator().manual_seed(step)
        first = torch.randint(len(self.characters) - sizes.length, (sizes.batch, 1), generator=g)
        at = first + torch.arange(sizes.length)
        return self.characters[at], self.characters[at + 1], self.documents[at]


def read_text(folder: Path = PAGES, longest: int | None = None) -> Text:
    """The pages of a folder; a document is a paragraph, at most its first `longest` characters."""
    documents = [part[:longest] for page in sorted(folder.glob("*.md")) for part in page.read_text(encoding="utf-8").split("\n\n")]
    alphabet = "".join(sorted(set("".join(documents))))
    number = {c: i for i, c in enumerate(alphabet)}
    characters = torch.tensor([number[c] for d in documents for c in d])
    lengths = torch.tensor([len(d) for d in documents])
    return Text(characters, torch.arange(len(documents), dtype=torch.int32).repeat_interleave(lengths), alphabet)


class Block(nn.Module):
    """Attention and a feed-forward part, each added to what it was given."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.heads, self.dim = sizes.heads, sizes.dim
        self.before, self.between = nn.LayerNorm(sizes.width), nn.LayerNorm(sizes.width)
        self.inputs, self.output = nn.Linear(sizes.width, 3 * sizes.width), nn.Linear(sizes.width, sizes.width)
        self.forward_part = nn.Sequential(nn.Linear(sizes.width, 4 * sizes.width), nn.GELU(), nn.Linear(4 * sizes.width, sizes.width))

    def forward(self, x: torch.Tensor, attention: Attention) -> torch.Tensor:
        """x [batch, length, width]."""
        B, M, width = x.shape
        q, k, v = self.inputs(self.before(x)).view(B, M, 3, self.heads, self.dim).permute(2, 0, 3, 1, 4)
        x = x + self.output(attention(q, k, v).transpose(1, 2).reshape(B, M, width))
        return x + self.forward_part(self.between(x))


class Model(nn.Module):
    """A decoder; ALiBi says where characters are, so there are no positions."""

    def __init__(self, sizes: Sizes, alphabet: int):
        super().__init__()
        self.embedding = nn.Embedding(alphabet, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.last, self.head = nn.LayerNorm(sizes.width), nn.Linear(sizes.width, alphabet)

    def forward(self, characters: torch.Tensor, attention: Attention) -> torch.Tensor:
        x = self.embedding(characters)
        for block in self.blocks:
            x = block(x, attention)
        return self.head(self.last(x))


def rules(documents: torch.Tensor, heads: int) -> tuple[Mod, Mod]:
    """mask_mod and score_mod: causal inside of a document; a soft cap, then ALiBi. documents i32 [batch, length], which may be written to between steps."""
    slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1, device=documents.device) / heads)

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> torch.Tensor:
        return (documents[b, q_idx] == documents[b, kv_idx]) & (q_idx >= kv_idx)

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> torch.Tensor:
        return CAP * torch.tanh(score / CAP) + slopes[h] * (kv_idx - q_idx)

    return mask_mod, score_mod


# ---- the attentions: each is made ready for the documents of a step
def ours(mask_mod: Mod, score_mod: Mod, sizes: Sizes, device: str) -> Callable[[], Attention]:
    """`cuir.flex_attention`: one kernel for all steps, and block lists for each."""
    from cuir import create_block_mask, flex_attention

    block_mask = create_block_mask(mask_mod, sizes.batch, None, sizes.length, sizes.length, device=device)
    backend = "auto" if device == "cuda" else "interpret"

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flex_attention(q, k, v, score_mod, block_mask, backend=backend)

    return lambda: attention


def pytorchs(mask_mod: Mod, score_mod: Mod, sizes: Sizes, device: str) -> Callable[[], Attention]:
    """PyTorch's `flex_attention`, compiled; its blocks are made anew for each step."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled, blocks = torch.compile(flex_attention), torch.compile(create_block_mask)

    def ready() -> Attention:
        block_mask = blocks(mask_mod, sizes.batch, None, sizes.length, sizes.length, device=device)
        return lambda q, k, v: compiled(q, k, v, score_mod=score_mod, block_mask=block_mask)

    return ready


def dense(mask_mod: Mod, score_mod: Mod, sizes: Sizes, device: str) -> Callable[[], Attention]:
    """The formula in PyTorch's operations, whose flex_attention has no backward pass on a CPU: all pairs, in float32."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        shape = (sizes.batch, sizes.heads, sizes.length, sizes.length)
        at = [torch.arange(n).view([-1 if d == e else 1 for e in range(4)]) for d, n in enumerate(shape)]
        scores = score_mod(q.float() @ k.float().mT * sizes.dim**-0.5, *at)
        return (scores.masked_fill(~mask_mod(*at), -math.inf).softmax(-1) @ v.float()).to(q.dtype)

    return lambda: attention


@dataclass(frozen=True)
class Curve:
    """The loss of each step, and how many milliseconds it took."""

    losses: list[float]
    times: list[float]

    @property
    def time(self) -> float:
        """Milliseconds of a step: the median of those that made nothing."""
        return statistics.median(self.times[WARM:] or self.times)


def train(make: Callable[..., Callable[[], Attention]], text: Text, sizes: Sizes, device: str) -> Curve:
    """A model from the same weights as any other with these sizes, trained on the same windows. Attention in bfloat16 on a GPU, in float16 else; the rest in float32 (on a GPU with autocast)."""
    torch.manual_seed(0)
    model = Model(sizes, len(text.alphabet)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), sizes.rate)
    documents = torch.zeros(sizes.batch, sizes.length, dtype=torch.int32, device=device)
    ready = make(*rules(documents, sizes.heads), sizes, device)
    half = torch.bfloat16 if device == "cuda" else torch.float16
    losses, times = [], []
    for step in range(sizes.steps):
        characters, following, now = (x.to(device) for x in text.window(sizes, step))
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        documents.copy_(now)
        call = ready()

        def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: Attention = call) -> torch.Tensor:
            return call(q.to(half), k.to(half), v.to(half)).to(q.dtype)

        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits = model(characters, attention)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())  # waits for the device
        times.append((time.perf_counter() - began) * 1e3)
    return Curve(losses, times)


def both(text: Text, sizes: Sizes, device: str) -> dict[str, Curve]:
    """The curve of each attention, PyTorch's first."""
    peer = ("PyTorch", pytorchs) if device == "cuda" else ("PyTorch, dense", dense)
    return {name: train(make, text, sizes, device) for name, make in (peer, ("cuir", ours))}


def report(curves: dict[str, Curve]) -> str:
    """The losses, their largest difference and the times, in words."""
    (peer, theirs), (name, mine) = curves.items()
    apart = [abs(x - y) for x, y in zip(theirs.losses, mine.losses, strict=True)]
    shown = sorted({*range(0, len(apart), max(1, len(apart) // 20)), len(apart) - 1})
    lines = [f"{'step':>6}{peer:>16}{name:>10}{'apart':>10}"]
    lines += [f"{i:>6}{theirs.losses[i]:>16.4f}{mine.losses[i]:>10.4f}{apart[i]:>10.5f}" for i in shown]
    where = max(range(len(apart)), key=apart.__getitem__)
    lines.append(
        f"the losses are at most {apart[where]:.5f} apart, at step {where}; the last are {theirs.losses[-1]:.4f} and {mine.losses[-1]:.4f}"
    )
    lines.append(f"a step takes {theirs.time:.1f} ms with {peer}, {mine.time:.1f} ms with {name}")
    return "\n".join(lines)


def plot(curves: dict[str, Curve], path: Path) -> None:
    """Draws both curves, and how far they are apart, as PNG or SVG. Raises CuirError U120 without matplotlib, U108 if the file cannot be written."""
    from cuir.text.figures import load_pyplot, save_figure

    pyplot = load_pyplot("python examples/train_tiny_lm.py --plot FILE")
    figure, (above, below) = pyplot.subplots(2, 1, figsize=(7, 6), sharex=True, height_ratios=(3, 1))
    styles: tuple[dict[str, Any], ...] = {"linewidth": 3.0, "alpha": 0.5}, {"linewidth": 1.2, "color": "black"}
    for (name, curve), style in zip(curves.items(), styles, strict=True):
        above.plot(curve.losses, label=f"{name}, {curve.time:.1f} ms a step", **style)
    theirs, mine = (c.losses for c in curves.values())
    below.plot([y - x for x, y in zip(theirs, mine, strict=True)], color="black", linewidth=1.0)
    above.set_ylabel("loss")
    below.set_ylabel("apart")
    below.set_xlabel("step")
    above.legend()
    for panel in (above, below):
        panel.grid(alpha=0.3)
    figure.tight_layout()
    save_figure(figure, path)


def sizes_of(options: argparse.Namespace, device: str) -> Sizes:
    """Return the requested sizes, and for the rest those that the device can do in minutes."""
    usual = Sizes(6, 8, 64, 8, 2048, 300, 3e-4) if device == "cuda" else Sizes(1, 2, 16, 2, 70, 12, 1e-2)
    given: dict[str, Any] = {name: value for name in asdict(usual) if (value := getattr(options, name)) is not None}
    return replace(usual, **given)


def main(arguments: Sequence[str] | None = None) -> dict[str, Curve]:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("layers", "heads", "dim", "batch", "length", "steps"):
        p.add_argument(f"--{name}", type=int)
    p.add_argument("--rate", type=float)
    p.add_argument("--plot", type=Path, help="a .png or .svg file for the curves")
    options = p.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes, text = sizes_of(options, device), read_text()
    where = torch.cuda.get_device_name() if device == "cuda" else "the interpreter"
    print(f"{len(text.characters):,} characters in {int(text.documents[-1]) + 1} documents; {sizes} on {where}", flush=True)
    curves = both(text, sizes, device)
    print(report(curves))
    if options.plot is not None:
        plot(curves, options.plot)
    return curves


if __name__ == "__main__":
    main()
