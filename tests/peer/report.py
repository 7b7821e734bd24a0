"""Tables of outcomes in Markdown: counts by file and theme, refusals by code, and every case that is neither right nor refused."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from tests.peer.cases import ASIDE, BACKWARD, FILES, INPUTS
from tests.peer.running import CRASH, DIFFERS, HANG, PASS, REFUSED, WRONG, Outcome

BAD = (WRONG, DIFFERS, CRASH, HANG)
BEGIN, END = "<!-- python -m tests.peer --page -->\n", "<!-- /python -m tests.peer -->\n"


def tables(outcomes: Sequence[Outcome]) -> str:
    """Return all tables of a run."""
    refusals = "Refused, by code:\n\n" + codes(outcomes)
    return "\n\n".join([summary(outcomes), table(outcomes), refusals, "Neither right nor refused:\n\n" + bad(outcomes), asides()])


def page_tables(outcomes: Sequence[Outcome]) -> str:
    """Return the tables of a page: counts by file alone, and no tests that are not counted."""
    return "\n\n".join([summary(outcomes), file_counts(outcomes), bad(outcomes)])


def file_counts(outcomes: Sequence[Outcome]) -> str:
    """Return the counts of each file in short: cases that are neither right nor refused are one number."""
    lines = ["| | cases | pass | refused | neither | want gradients |", "|---|--:|--:|--:|--:|--:|"]
    for name, some in [(file, [o for o in outcomes if o.file == file]) for file in FILES] + [("**all**", list(outcomes))]:
        if some:
            counts = Counter(o.outcome for o in some)
            cells = [
                len(some),
                counts[PASS],
                _refusals(some),
                sum(counts[kind] for kind in BAD),
                sum(o.gradients in (BACKWARD, INPUTS) for o in some),
            ]
            lines.append(f"| {name} | " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def with_tables(page: str, outcomes: Sequence[Outcome]) -> str:
    """Return a page with its tables between two marks. Raises ValueError if it has none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no lines {BEGIN.strip()} and {END.strip()}")
    return f"{before}{begin}\n{page_tables(outcomes)}\n\n{end}{after}"


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the counts of each file, and of its themes.

    The last two columns count cases with a backward pass, and those whose inputs require gradients and no more.
    """
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
    wanting = Counter(o.gradients for o in outcomes)
    bad_counts = (counts[kind] for kind in BAD)
    cells = [len(outcomes), counts[PASS], _refusals(outcomes), *bad_counts, wanting[BACKWARD] + wanting[INPUTS], wanting[INPUTS]]
    return f"| {name} | " + " | ".join(str(cell) for cell in cells) + " |"


def _refusals(outcomes: Sequence[Outcome]) -> str:
    """Return how many cases are refused, in all and by each code."""
    codes = Counter(o.code for o in outcomes if o.outcome == REFUSED)
    return f"{codes.total()}" + (f" ({', '.join(f'{code} {n}' for code, n in codes.most_common())})" if codes else "")


def summary(outcomes: Sequence[Outcome]) -> str:
    """One sentence: the share that passes, and what is aside."""
    passed = sum(o.outcome == PASS for o in outcomes)
    whole = sum(o.outcome == PASS and not o.gradients for o in outcomes)
    share = 100 * passed / max(1, len(outcomes))
    return (
        f"{passed} of {len(outcomes)} cases pass ({share:.1f} %), without gradients; {whole} of these cases have no gradients to test. "
        f"{sum(a.count for a in ASIDE)} more cases of the originals are not counted."
    )


def codes(outcomes: Sequence[Outcome], tests: int = 4) -> str:
    """For each code of a refusal: how many cases, an example of its message, and tests that meet it."""
    lines = ["| code | cases | for example | in |", "|---|--:|---|---|"]
    for code, n in Counter(o.code for o in outcomes if o.outcome == REFUSED).most_common():
        reached = [o for o in outcomes if o.outcome == REFUSED and o.code == code]
        lines.append(f"| {code} | {n} | {_cell(reached[0].message)} | {_tests(reached, tests)} |")
    return "\n".join(lines)


def bad(outcomes: Sequence[Outcome], tests: int = 4) -> str:
    """The cases that are wrong, differ, crashed or hung: those with one message are one row, with a case of them to run."""
    lines = ["| | what | cases | in | one of them |", "|---|---|--:|---|---|"]
    groups: dict[tuple[str, str, str], list[Outcome]] = {}
    for o in sorted((o for o in outcomes if o.outcome in BAD), key=lambda o: BAD.index(o.outcome)):
        groups.setdefault((o.outcome, o.code, _strip_numbers(o.message)), []).append(o)
    for (kind, code, message), reached in sorted(groups.items(), key=lambda group: (BAD.index(group[0][0]), -len(group[1]))):
        lines.append(
            f"| {kind}{f', {code}' if code else ''} | {_cell(message)} | {len(reached)} | {_tests(reached, tests)} | `{_short(reached[0].name)}` |"
        )
    return "\n".join(lines) if groups else "No case gives wrong numbers, differs otherwise, crashes or hangs."


def _strip_numbers(message: str) -> str:
    """Return a message without the numbers of one case, and without Dynamo's additions of the user's code."""
    return re.sub(r"0x[0-9a-f]+|\d+(\.\d+)?(e-?\d+)?", "…", re.split(r" from user code|;| Explanation:", message)[0])[:110]


def _tests(outcomes: Sequence[Outcome], most: int) -> str:
    counts = Counter(_short(o.name).partition("[")[0] for o in outcomes).most_common()
    output = [f"{name} ({n})" if n > 1 else name for name, n in counts[:most]]
    return ", ".join(output) + (f" and {len(counts) - most} more tests" if len(counts) > most else "")


def asides() -> str:
    lines = ["| not counted | cases | why |", "|---|--:|---|"]
    return "\n".join([*lines, *(f"| {a.file}: {', '.join(a.tests)} | {a.count} | {a.reason} |" for a in ASIDE)])


def _short(name: str) -> str:
    return name.partition("::")[2]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")[:200]
