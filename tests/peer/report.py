"""Tables of outcomes in Markdown: counts by file and theme, what was refused by which code, and every case that was neither right nor refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.peer.cases import ASIDE, BACKWARD, FILES, INPUTS
from tests.peer.running import CRASH, DIFFERS, HANG, PASS, REFUSED, WRONG, Outcome

BAD = (WRONG, DIFFERS, CRASH, HANG)


def table(outcomes: Sequence[Outcome]) -> str:
    """The counts. The last two columns say which of these cases want a backward pass, or hand in tensors that require gradients and no more."""
    head = "| | cases | pass | refused | wrong | differs | crash | hang | want gradients | of these, inputs alone |"
    lines = [head, "|---|" + "--:|" * (head.count("|") - 2)]
    for file in FILES:
        of_file = [o for o in outcomes if o.file == file]
        if not of_file:
            continue
        lines.append(_line(f"**{file}**", of_file))
        lines += [_line(theme, [o for o in of_file if o.theme == theme]) for theme in dict.fromkeys(o.theme for o in of_file)]
    lines.append(_line("**all**", outcomes))
    return "\n".join(lines)


def _line(name: str, outcomes: Sequence[Outcome]) -> str:
    counts = Counter(o.outcome for o in outcomes)
    codes = Counter(o.code for o in outcomes if o.outcome == REFUSED)
    refused = f"{counts[REFUSED]}" + (f" ({', '.join(f'{code} {n}' for code, n in codes.most_common())})" if codes else "")
    wanting = Counter(o.gradients for o in outcomes)
    cells = [len(outcomes), counts[PASS], refused, *(counts[kind] for kind in BAD), wanting[BACKWARD] + wanting[INPUTS], wanting[INPUTS]]
    return f"| {name} | " + " | ".join(str(cell) for cell in cells) + " |"


def summary(outcomes: Sequence[Outcome]) -> str:
    """One sentence: the share that passes, and what is aside."""
    passed = sum(o.outcome == PASS for o in outcomes)
    whole = sum(o.outcome == PASS and not o.gradients for o in outcomes)
    share = 100 * passed / max(1, len(outcomes))
    return (
        f"{passed} of {len(outcomes)} cases pass ({share:.1f} %), gradients aside; {whole} of them want no gradients. "
        f"{sum(a.count for a in ASIDE)} more cases of the originals are not counted."
    )


def codes(outcomes: Sequence[Outcome], tests: int = 4) -> str:
    """For each code of a refusal: how many cases, an example of its message, and tests that meet it."""
    lines = ["| code | cases | for example | in |", "|---|--:|---|---|"]
    for code, n in Counter(o.code for o in outcomes if o.outcome == REFUSED).most_common():
        met = [o for o in outcomes if o.outcome == REFUSED and o.code == code]
        names = [f"{name} ({k})" for name, k in Counter(o.name.partition("::")[2].partition("[")[0] for o in met).most_common(tests)]
        lines.append(f"| {code} | {n} | {_cell(met[0].message)} | {', '.join(names)} |")
    return "\n".join(lines)


def bad(outcomes: Sequence[Outcome]) -> str:
    """Each case that is wrong, differs, crashed or hung: those of one test, kind and message are one row."""
    lines = ["| | test | cases | |", "|---|---|--:|---|"]
    groups: dict[tuple[str, str, str], list[Outcome]] = {}
    for o in sorted((o for o in outcomes if o.outcome in BAD), key=lambda o: BAD.index(o.outcome)):
        groups.setdefault((o.outcome, o.name.partition("[")[0], o.code), []).append(o)
    for (kind, test, code), met in groups.items():
        lines.append(
            f"| {kind}{f', {code}' if code else ''} | {test} | {len(met)} | `-k '{_short(met[0].name)}'`: {_cell(met[0].message)} |"
        )
    return "\n".join(lines) if groups else "None is wrong, differs, crashed or hung."


def asides() -> str:
    lines = ["| not counted | cases | why |", "|---|--:|---|"]
    return "\n".join([*lines, *(f"| {a.file}: {', '.join(a.tests)} | {a.count} | {a.reason} |" for a in ASIDE)])


def _short(name: str) -> str:
    return name.partition("::")[2]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")[:200]
