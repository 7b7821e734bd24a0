"""ALiBi with a causal mask."""

from __future__ import annotations

from corpus.variants.alibi import alibi
from corpus.variants.causal import causal
from cuir.spec import Specification


def alibi_causal(heads: int | None = None) -> Specification:
    """score = s + 2^(-8 (h + 1) / H) * (k - q), keep = k <= q + (N - M): a penalty that grows with the distance of the keys before the query.

    Press et al. 2022, figure 3; slopes as in `alibi`. `heads` takes the place of H: 32 gives 2^(-(h + 1) / 4). Bottom-right aligned, as `causal`.
    """
    return Specification("alibi_causal", causal().mask_mod, alibi(heads).score_mod, doc=alibi_causal.__doc__ or "")
