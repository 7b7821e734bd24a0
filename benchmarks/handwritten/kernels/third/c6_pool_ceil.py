import torch


def reference(x, KW, S, PAD, LO):
    """As torch.nn.functional.avg_pool1d and max_pool1d with ceil_mode=True, count_include_pad=True."""
    L = x.shape[1]
    first = torch.arange(LO) * S - PAD
    place = first[:, None] + torch.arange(KW)
    inside = (place >= 0) & (place < L)
    taken = x[:, place.clamp(0, L - 1)]                                     # [B, LO, KW, C]
    size = (first + KW).clamp(max=L + PAD) - first
    total = taken.masked_fill(~inside[..., None], 0.0).sum(2)
    return {"AVG": total / size[:, None].to(x.dtype), "MAX": taken.masked_fill(~inside[..., None], -torch.inf).amax(2)}


def sizes(drawn):
    L, KW, S, PAD = (drawn[n] for n in ("L", "KW", "S", "PAD"))
    if L < 1:
        return None
    LO = -(-(L + 2 * PAD - KW) // S) + 1
    if (LO - 1) * S >= L + PAD:                                             # the last window begins within the sequence or its left padding
        LO -= 1
    return {"LO": LO}
