"""Problems for any kernel, drawn from its signature: lengths of dims, and the kinds of their inputs.

inputs.py draws the values.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..attn.verification.problems import Case, is_attention, list_smaller_lengths, make_cases
from ..checking.checked import Checked
from ..checking.decisions import entry
from ..spec.function_specification import FunctionSpecification
from ..syntax.nodes import Binary, Call, Literal, Name
from ..syntax.walk import walk
from ..text.diagnostics import CuirError
from .tile_steps import align_heads, count_ring_uses, find_steps
from .values.cases import MOST_ELEMENTS, Draw, count_elements, get_integer_consts, select_fitting

KINDS = ("normal", "strided", "large", "tiny", "spikes", "constant", "wide")
_SHORT = (1, 2, 3)  # lengths of dims without tiles
_DIVISORS, _MOST_DIVIDED = 4, 1024  # pairs of a dim and its divisor that get problems, and the largest divisor
_LONG = 2051  # the largest length of a dim that grows until a loop turns


def make_all_draws(checked: Checked, spec: FunctionSpecification, level: str) -> list[Draw]:
    """Return problems for the numbers.

    One of each dim, none, whole tiles, one more and one less, ragged ends, extreme values, and random ones.
    """
    draws = _make_plain_draws(checked, spec, level)
    if not is_attention(checked.origin):
        steps = find_steps(checked, spec)
        draws += [*_make_divisor_draws(checked, steps), *_make_long_draws(checked, spec, steps, level)]
    return _require_admitted(checked, spec, draws)


def make_first_draws(checked: Checked, spec: FunctionSpecification, level: str, count: int) -> list[Draw]:
    """Return the first problems of `make_all_draws`, without making the others."""
    return _require_admitted(checked, spec, _make_plain_draws(checked, spec, level)[:count])


def _make_plain_draws(checked: Checked, spec: FunctionSpecification, level: str) -> list[Draw]:
    if not is_attention(checked.origin):
        return _make_tile_draws(checked, find_steps(checked, spec), level)
    BM, BN = (int(checked.consts.get(n, 128)) for n in ("BM", "BN"))  # type: ignore[arg-type]
    return [convert_case(checked, spec, c) for c in make_cases(spec, BM, BN, [], level)]


def make_schedule_draws(checked: Checked, spec: FunctionSpecification) -> list[Draw]:
    """Return problems for many schedules.

    One dim after the other is so long that short rings are reused many times; short rows, of which a CTA has several.
    """
    tiles = find_steps(checked, spec)
    stepped = [d for d in checked.dims if not tiles[d] and d != "HK"]
    tiled = [d for d in checked.dims if tiles[d]]
    lengths = functools.partial(_make_lengths, checked, stepped)
    draws = [Draw(f"long {d}", lengths(2, **{x: 5 * tiles[x] + 3 if x == d else tiles[x] + 9 for x in tiled})) for d in tiled]
    draws.append(Draw("short rows", lengths(4, **{x: max(1, tiles[x] // 2) for x in tiled}), "strided"))
    if len(stepped) > 1:
        draws.append(
            Draw(
                "more of every step",
                _pair_heads({d: tiles[d] + 9 if tiles[d] else 2 for d in checked.dims} | ({"H": 1} if "HK" in checked.dims else {})),
            )
        )
    return _require_admitted(checked, spec, draws)


def make_ring_draws(checked: Checked, spec: FunctionSpecification) -> list[Draw]:
    """Return problems for a few schedules in which each of two CTAs reaches the third round of every ring.

    One dim after the other is long; it determines the units of work or the steps.
    """
    tiles = find_steps(checked, spec)
    tiled, stepped = [d for d in checked.dims if tiles[d]], [d for d in checked.dims if not tiles[d] and d != "HK"]
    minimum = 2 * count_ring_uses(checked)

    def make(count: int) -> list[Draw]:
        draws = [
            Draw(
                f"rings go round by {d}",
                _make_lengths(checked, stepped, 1, **{x: (count - 1) * tiles[x] + 3 if x == d else 1 for x in tiled}),
            )
            for d in tiled
        ]
        if stepped:
            draws.append(Draw("rings go round by steps", _make_lengths(checked, stepped, count, **dict.fromkeys(tiled, 1))))
            if tiled:  # state left by one step, several full rings later: lengths in data may be 0 for some steps
                draws.append(
                    Draw(
                        "rings go round under steps",
                        _make_lengths(checked, stepped, 5, **{d: (count - 1) * tiles[d] + 3 if d == tiled[0] else 1 for d in tiled}),
                    )
                )
        return select_fitting(checked, spec, draws)[0]

    return make(max(10, minimum)) or make(minimum)  # may be empty: the stage reports it


def _make_lengths(checked: Checked, stepped: Sequence[str], short: int, **long: int) -> dict[str, int]:
    """Return lengths with `short` in one of the dims without tiles, so that there are few units of work."""
    return _pair_heads({d: long.get(d) or (short if stepped[-1:] == [d] else 1) for d in checked.dims})


def convert_case(checked: Checked, spec: FunctionSpecification, case: Case) -> Draw:
    """Convert an attention problem to lengths of the kernel's dims.

    Dims of other tensors are 1, or a few or many steps, by the case, where the specification admits that.
    """
    lengths, steps = case.lengths, find_steps(checked, spec)
    other_dims = [d for d in checked.dims if not hasattr(lengths, d)]
    count = (1, 2, 9)[zlib.crc32(case.name.encode()) % 3]
    sizes = {d: getattr(lengths, d, 1) for d in checked.dims}
    more = {**sizes, **{d: count * max(1, steps[d]) - (count > 2) for d in other_dims}}
    if admitted := select_fitting(checked, spec, [Draw(case.name, more, case.kind, case.seed)])[0]:
        return admitted[0]
    return _require_admitted(checked, spec, [Draw(case.name, sizes, case.kind, case.seed)], required=True)[0]


def list_simpler_draws(checked: Checked, spec: FunctionSpecification, draw: Draw) -> Iterator[Draw]:
    """Yield problems a little smaller or simpler than one, the largest reductions first."""
    for name, n in draw.sizes.items():
        for less in list_smaller_lengths(n):
            with contextlib.suppress(CuirError):  # lengths that the specification refuses
                simpler = _require_admitted(checked, spec, [replace(draw, sizes=_fix_heads({**draw.sizes, name: less}))])[0]
                if sum(simpler.sizes.values()) < sum(draw.sizes.values()):
                    yield simpler
    if draw.kind != "normal":
        yield replace(draw, kind="normal")
    if draw.seed:
        yield replace(draw, seed=0)


def _fix_heads(sizes: dict[str, int]) -> dict[str, int]:
    """Make H a multiple of HK after one of them has shrunk."""
    H, HK = sizes.get("H", 1), sizes.get("HK", 1)
    return sizes if not HK or H % HK == 0 else {**sizes, "HK": 1}


def _make_tile_draws(checked: Checked, tiles: Mapping[str, int], level: str) -> list[Draw]:
    rng = random.Random(0)

    def make(name: str, length: Any, short: Sequence[int] = _SHORT, kind: str = "normal") -> Draw:
        sizes = {d: length(tiles[d]) if tiles[d] else rng.choice(short) for d in checked.dims}
        return Draw(name, _pair_heads(sizes, rng), kind)

    draws = [
        make("whole tiles", lambda n: 2 * n, kind="large"),
        make("one more", lambda n: n + 1),
        make("one less", lambda n: max(1, 2 * n - 1), kind="strided"),
        make("ragged", lambda n: 2 * n + 17),
        make("one of each", lambda n: 1, (1,)),
        make("less than a tile", lambda n: max(1, n // 2 - 1), kind="constant"),
    ]
    for empty_dim in (d for d in checked.dims if tiles[d]):
        draws.append(Draw(f"no {empty_dim}", _pair_heads({d: 0 if d == empty_dim else n + 1 for d, n in tiles.items()}, rng)))
    draws += [make(kind, lambda n: n + 9, kind=kind) for kind in ("tiny", "spikes", "zero", "wide")]
    for i in range(4 if level == "quick" else 24):
        d = make(f"drawn {i}", lambda n: max(1, rng.choice([rng.randint(1, 3 * n), rng.randint(1, 3) * n + rng.randint(-2, 2)])))
        draws.append(replace(d, kind=rng.choice(KINDS), seed=rng.randrange(1, 2**31)))
    return draws


def _make_divisor_draws(checked: Checked, steps: Mapping[str, int]) -> Iterator[Draw]:
    """Yield problems in which a dim is one or three times a number by which the kernel divides it.

    The whole tiles of other problems are an even number of them.
    """
    for dim, divisor in _list_divisors(checked):
        for length in (divisor, 3 * divisor):
            sizes = {d: length if d == dim else min(n, divisor) + 1 for d, n in steps.items()}
            yield Draw(f"{length} of {dim}", _pair_heads(sizes))


def _list_divisors(checked: Checked) -> list[tuple[str, int]]:
    """Return pairs of a run-time dim and an integer by which a statement divides it."""
    bodies = [*checked.declarations, *(s for role in checked.roles for s in role.body)]
    pairs = dict[tuple[str, int], None]()
    for node in (n for statement in bodies for n in walk(statement) if isinstance(n, (Binary, Call))):
        operation = entry(checked, node)
        if operation is None or not operation[0].traits.divides_integers:
            continue
        dividend, divisor = operation[1][:2]
        number = divisor.value if isinstance(divisor, Literal) else checked.consts.get(divisor.id) if isinstance(divisor, Name) else None
        if isinstance(dividend, Name) and dividend.id in checked.dims and isinstance(number, int) and 1 < number <= _MOST_DIVIDED:
            pairs[dividend.id, int(number)] = None
    return list(pairs)[:_DIVISORS]


def _make_long_draws(checked: Checked, spec: FunctionSpecification, steps: Mapping[str, int], level: str) -> Iterator[Draw]:
    """Yield problems in which one dim is much longer than the others.

    It has more steps than rings, bit masks and partial-result tiles of kernels hold; fewer only where memory forbids.
    """
    counts = (*((130,) if level == "full" else ()), 33, 8, 5, 3, 2)
    for t, step in steps.items():
        for count, divisor in itertools.product(counts, (2, 1024)):
            sizes = {d: n // divisor + 1 for d, n in steps.items()}
            draw = Draw(f"long {t}", _pair_heads({**sizes, t: count * step + 3 if step else count + 1}))
            if admitted := select_fitting(checked, spec, [draw])[0]:
                yield admitted[0]
                break


def find_wider_draws(checked: Checked, spec: FunctionSpecification, enough: Callable[[Draw], bool]) -> Iterator[Draw]:
    """Yield longer and longer problems, all dims together and one after the other, that are `enough`.

    `enough` tells whether a problem shows something that no earlier one has shown.
    """
    steps = find_steps(checked, spec)
    for names, count in itertools.product((list(checked.dims), *([d] for d in checked.dims)), (4, 16, 64, 256)):
        sizes = {d: min(count * max(1, n) + 3, _LONG) if d in names else max(1, n // 2) for d, n in steps.items()}
        for draw in select_fitting(checked, spec, [Draw(f"longer {' and '.join(names)}", _pair_heads(sizes))])[0]:
            if max(count_elements(t, {**get_integer_consts(checked), **draw.sizes}) for t in checked.tensors) <= _LONG * 512 and enough(
                draw
            ):
                yield draw


def _pair_heads(sizes: dict[str, int], rng: random.Random | None = None) -> dict[str, int]:
    """Make H a multiple of HK, where a kernel has both."""
    drawn = rng is not None and "H" in sizes and "HK" in sizes
    return align_heads({**sizes, "H": rng.choice((1, 2, 3))} if drawn and rng else sizes)


def _require_admitted(checked: Checked, spec: FunctionSpecification, draws: Sequence[Draw], required: bool = False) -> list[Draw]:
    """Return the draws that the specification admits, with its lengths.

    Raises CuirError X108 if there is none.
    """
    admitted, large = select_fitting(checked, spec, draws)
    if not admitted and large:
        elements, name, draw = min(large, key=lambda entry: entry[0])
        raise CuirError.of(
            "X108",
            f"`{name}` has {elements:,} elements in the problem {draw}, and problems are tried with tensors of at most {MOST_ELEMENTS:,}",
            checked.origin.span,
            "let `sizes` of the specification give shorter lengths" if spec.sizes is not None else "smaller consts make smaller tensors",
        )
    if not admitted:
        if required:
            raise CuirError.of("X108", f"sizes of `{spec.name}` refuses the lengths {draws[0]}", checked.origin.span)
        raise CuirError.of(
            "X108",
            f"sizes of `{spec.name}` refuses every problem that was drawn",
            checked.origin.span,
            "let it give near lengths instead of None",
        )
    return admitted
