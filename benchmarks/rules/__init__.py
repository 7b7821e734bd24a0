"""Rules of attention that nobody tuned for: those of attention-gym, and more from a generator.

`python -m benchmarks.rules` times them beside FlexAttention.
"""

from .generated import GENERATED, make_rule
from .gym import GYM
from .rule import Mods, Rule, Size

RULES = (*GYM, *GENERATED)

__all__ = ["GENERATED", "GYM", "RULES", "Mods", "Rule", "Size", "make_rule"]
