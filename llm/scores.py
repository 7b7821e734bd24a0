"""Figures of an evaluation: pass@k, attempts, cost, and reasons of failures; as a Markdown table.

A row is a sample: {"variant", "model", "sample", "right_at", "why", "attempts": [{"stage", "codes"}, ...], "tokens",
"usd", "seconds"}, attempts in their order.
* right_at: number of the first attempt that is right, from 1 on, None if none is.
* usd: None where no price is known.
* incomplete: reason why the sample ended early; such a sample counts only if it is right nevertheless.
* drifted: in a replay, the number of answers on record to requests that differ from today's.

Figure of an evaluation: pass@k of each model beside the published figures, and reasons of failures.

Needs matplotlib.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuir.text.figures import load_pyplot, save_figure
from cuir.text.markdown import table

Row = Mapping[str, Any]
KS = (1, 3, 5)
PUBLISHED = {1: 0.70, 3: 0.85, 5: 1.00}  # CuBridge, arXiv:2605.05023: its models, its variants, its own intermediate representation
SOURCE = "CuBridge (arXiv:2605.05023), as published: its models, its variants, its own CuIR and verification"
REASONS = (
    "no program",
    "parse",
    "types",
    "structure",
    "contracts",
    "schedule",
    "mask",
    "numbers",
    "too slow to verify",
    "slower than need be",
)
RIGHT = ("speed", "passed")  # stages of attempts that are right
_STAGES = {
    "answer": "no program",
    "parse": "parse",
    "orchestration": "structure",
    "contracts": "contracts",
    "schedules": "schedule",
    "mask": "mask",
    "numbers": "numbers",
    "time": "too slow to verify",
    "speed": "slower than need be",
}


def pass_at(n: int, c: int, k: int) -> float | None:
    """Estimate the chance that k samples hold a right one; None for n < k.

    n samples were drawn, of which c are right. The unbiased estimator 1 - C(n - c, k) / C(n, k) of Chen et al.,
    Evaluating Large Language Models Trained on Code, 2021 (arXiv:2107.03374).
    """
    return None if n < k else 1.0 - math.comb(n - c, k) / math.comb(n, k)


def reason(stage: str, codes: Sequence[str]) -> str:
    """Classify a failed attempt as one of REASONS.

    `check` is divided by the family of its first code (P; N, T; S, M).
    """
    if stage == "check":
        return {"P": "parse", "N": "types", "T": "types"}.get(codes[0][:1] if codes else "", "structure")
    return _STAGES[stage]


@dataclass(frozen=True)
class Score:
    """Figures of one model over all its variants, or over one of them.

    Attributes:
        at: pass@k of samples with their repairs, the mean over variants that have k samples.
        first: The same for each sample's first answer alone.
        attempts: Mean number until a sample is right, or of all that it made.
        usd: None if the price of an answer is unknown.
        reasons: Counts over all attempts that failed.
        codes: Counts of the first code of each.
    """

    model: str
    variants: int
    samples: int
    right: int
    incomplete: int
    at: Mapping[int, float | None]
    first: Mapping[int, float | None]
    attempts: float
    tokens: int
    usd: float | None
    seconds: float
    reasons: Mapping[str, int]
    codes: Mapping[str, int]

    def as_json(self) -> dict[str, Any]:
        """Return the figures as JSON data."""
        return {
            "model": self.model,
            "variants": self.variants,
            "samples": self.samples,
            "right": self.right,
            "incomplete": self.incomplete,
            "pass_at": {str(k): v for k, v in self.at.items()},
            "first_answer_pass_at": {str(k): v for k, v in self.first.items()},
            "attempts": self.attempts,
            "tokens": self.tokens,
            "usd": self.usd,
            "seconds": round(self.seconds, 1),
            "reasons": dict(self.reasons),
            "codes": dict(self.codes),
        }


def score(model: str, rows: Sequence[Row]) -> Score:
    """Compute the figures of a model's rows."""
    whole = [r for r in rows if "incomplete" not in r or right(r)]
    variants = sorted({r["variant"] for r in rows})
    by_variant = [[r for r in whole if r["variant"] == v] for v in variants]
    failed = [a for r in rows for a in r["attempts"] if a["stage"] != "passed"]
    usd = [r["usd"] for r in rows]
    return Score(
        model,
        len(variants),
        len(whole),
        sum(map(right, whole)),
        len(rows) - len(whole),
        {k: _mean(pass_at(len(of), sum(map(right, of)), k) for of in by_variant) for k in KS},
        {k: _mean(pass_at(len(of), sum(r["right_at"] == 1 for r in of), k) for of in by_variant) for k in KS},
        statistics.fmean(r["right_at"] or len(r["attempts"]) for r in whole) if whole else 0.0,
        sum(r["tokens"] for r in rows),
        None if None in usd else sum(usd),
        sum(r["seconds"] for r in rows),
        _count_words(reason(a["stage"], a["codes"]) for a in failed),
        _count_words(code for a in failed for code in a["codes"][:1]),
    )


def scores(rows: Sequence[Row]) -> list[Score]:
    """Compute the figures of each model, in the order in which they come."""
    return [score(model, [r for r in rows if r["model"] == model]) for model in dict.fromkeys(r["model"] for r in rows)]


def right(row: Row) -> bool:
    """Return whether an attempt of the sample is right."""
    return row["right_at"] is not None


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None."""
    numbers = [v for v in values if v is not None]
    return statistics.fmean(numbers) if numbers else None


def _count_words(words: Iterable[str]) -> dict[str, int]:
    """Count words, the most frequent first."""
    return dict(Counter(words).most_common())


HEAD = (
    "model",
    *(f"pass@{k}" for k in KS),
    *(f"first answer @{k}" for k in KS),
    "variants",
    "samples",
    "attempts",
    "tokens",
    "cost",
    "seconds",
)


def entries(model_scores: Sequence[Score]) -> list[tuple[str, ...]]:
    """Return the lines of the table below HEAD; the last is CuBridge's published figures."""
    lines: list[tuple[str, ...]] = [
        (
            s.model,
            *(share(s.at[k]) for k in KS),
            *(share(s.first[k]) for k in KS),
            str(s.variants),
            f"{s.right} of {s.samples}" + (f" ({s.incomplete} cut short)" if s.incomplete else ""),
            f"{s.attempts:.1f}",
            f"{s.tokens:,}",
            money(s.usd),
            f"{s.seconds:.0f}",
        )
        for s in model_scores
    ]
    return [*lines, ("CuBridge, published", *(share(PUBLISHED[k]) for k in KS), *[""] * (len(HEAD) - 1 - len(KS)))]


def why_failed(model_scores: Sequence[Score]) -> list[tuple[str, ...]]:
    """Return the lines of the table of reasons, below ("model", *REASONS, "most frequent codes")."""
    return [
        (s.model, *(str(s.reasons.get(r, 0)) for r in REASONS), ", ".join(f"{c} {n}" for c, n in list(s.codes.items())[:6]))
        for s in model_scores
    ]


def by_variant(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Return the lines of the table of variants.

    Its head is ("variant", "model", "right", "attempts of each sample", "why attempts failed").
    """
    lines: list[tuple[str, ...]] = []
    for variant, model in dict.fromkeys((r["variant"], r["model"]) for r in rows):
        of = sorted((r for r in rows if (r["variant"], r["model"]) == (variant, model)), key=lambda r: r["sample"])
        s = score(model, of)
        each = ", ".join(
            f"{r['right_at']}" if right(r) else f"{len(r['attempts'])} ({'cut short' if 'incomplete' in r else 'failed'})" for r in of
        )
        lines.append((variant, model, f"{s.right} of {s.samples}", each, ", ".join(f"{name} {n}" for name, n in s.reasons.items())))
    return lines


def share(value: float | None) -> str:
    """Format a share."""
    return "-" if value is None else f"{value:.2f}"


def money(usd: float | None) -> str:
    """Format a price."""
    return "unknown" if usd is None else f"${usd:.4f}"


def drift(rows: Iterable[Row]) -> str:
    """Describe how many requests of replayed samples are not those on record; "" if none."""
    drifted = [r["drifted"] for r in rows if r.get("drifted")]
    if not drifted:
        return ""
    how_many = "1 request differs from that" if sum(drifted) == 1 else f"{sum(drifted)} requests differ from those"
    return f"{how_many} on record, in {len(drifted)} sample{'s' * (len(drifted) != 1)}: prompts, reports or the language have changed since"


def markdown(head: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """Return the page of an evaluation.

    It has the settings, the scores beside the published ones, the variants, and the reasons of failures.
    """
    model_scores = scores(rows)
    lines = [
        f"# `cuir eval`: {head['pass']}",
        "",
        *(
            [f"Recorded answers, judged again: origins, settings and numbers of attempts are those of the transcripts; {head['date']}."]
            if head["replayed"]
            else [
                f"{head['origin']} to {len({r['variant'] for r in rows})} variants; a sample has at most {head['attempts']} attempts; verification level {head['level']}; {head['date']}.",
            ]
        ),
        "",
        f"    {head['command']}",
        "",
        *([f"Note: {note}.", ""] if (note := drift(rows)) else []),
        *table(HEAD, entries(model_scores)),
        "",
        "pass@k is the unbiased estimator over samples (Chen et al. 2021), the mean over variants; with repairs, and for each sample's first answer alone. "
        f"{SOURCE}.",
        "",
        "## Variants",
        "",
        *table(("variant", "model", "right", "attempts of each sample", "why attempts failed"), by_variant(rows)),
        "",
        "## Why attempts failed",
        "",
        *(
            table(("model", *REASONS, "most frequent codes"), why_failed(model_scores))
            if any(s.reasons for s in model_scores)
            else ["None did."]
        ),
        "",
    ]
    return "\n".join(lines)


def plot(scores: Sequence[Score], path: Path) -> None:
    """Write a PNG or SVG, by the name's ending.

    Raises CuirError U120 without matplotlib, U108 if the file cannot be written.
    """
    pyplot = load_pyplot("cuir eval --show")
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10.5, 3.4), width_ratios=(3, 2), layout="constrained")
    series: list[tuple[str, list[float | None]]] = [(s.model, [s.at[k] for k in KS]) for s in scores]
    series += [(f"{s.model}, first answers", [s.first[k] for k in KS]) for s in scores]
    series.append(("CuBridge, published", [PUBLISHED[k] for k in KS]))
    width = 0.8 / len(series)
    for number, (name, values) in enumerate(series):
        points = [(i + number * width, v) for i, v in enumerate(values) if v is not None]
        style = (
            {"color": "black", "alpha": 0.35}
            if number == len(series) - 1
            else {"color": f"C{number % len(scores)}", "alpha": 1.0 if number < len(scores) else 0.5}
        )
        bars = left.bar([x for x, _ in points], [v for _, v in points], width, align="edge", label=name, **style)
        left.bar_label(bars, fmt="%.2f", fontsize=7)
    left.set_xticks([i + 0.4 for i in range(len(KS))], [f"pass@{k}" for k in KS])
    left.set_ylim(0, 1.12)
    left.set_title(
        f"share of right programs, mean over at most {max(s.variants for s in scores)} variants ({sum(s.samples for s in scores)} samples in all)",
        fontsize=8,
    )
    left.legend(fontsize=7, frameon=False, loc="upper center", ncols=2, bbox_to_anchor=(0.5, -0.12))
    reasons = [r for r in REASONS if any(s.reasons.get(r) for s in scores)]
    start = [0] * len(reasons)
    for number, s in enumerate(scores):
        counts = [s.reasons.get(r, 0) for r in reasons]
        right.barh(reasons, counts, left=start, color=f"C{number}", label=s.model)
        start = [a + b for a, b in zip(start, counts)]
    if reasons:
        right.invert_yaxis()
        right.xaxis.get_major_locator().set_params(integer=True)
    else:
        right.text(0.5, 0.5, "none", ha="center", fontsize=9, transform=right.transAxes)
        right.set(xticks=[], yticks=[])
    right.set_title("attempts that failed, by the stage that refused them", fontsize=8)
    for panel in (left, right):
        panel.tick_params(labelsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)
