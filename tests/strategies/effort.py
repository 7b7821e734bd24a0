"""The number of examples of a property: `--hypothesis-profile=thorough` tries more of all."""

from __future__ import annotations

from hypothesis import settings


def examples(factor: float) -> settings:
    """Settings for a property that tries `factor` times the examples of others, because they are cheap or each takes long."""
    return settings(max_examples=max(1, round(factor * settings.default.max_examples)))  # type: ignore[attr-defined]
