import torch


def reference(kn, vn, gamma, slot, pos, cosine, sine, kc, vc, eps):
    """Tokens with a slot of -1 are padding."""
    kc, vc = kc.clone(), vc.clone()
    NP, PAGE, HK, D = kc.shape
    keep = slot >= 0
    s, p = slot[keep].long(), pos[keep].long()
    k = kn[keep]
    k = k * torch.rsqrt((k * k).mean(-1, keepdim=True) + eps) * gamma
    x, y = k[..., :32], k[..., 32:]
    c, z = cosine[p][:, None], sine[p][:, None]
    kc[s // PAGE, s % PAGE] = torch.cat([x * c - y * z, y * c + x * z], -1).to(kc.dtype)
    vc[s // PAGE, s % PAGE] = vn[keep].to(vc.dtype)
    return {"Kc": kc, "Vc": vc}


def sizes(drawn):
    return {"NP": -(-drawn["NT"] // 16) + 2, "P": max(1, drawn["P"])}


def inputs(sizes, generator):
    """Slots of their own, a fifth of the tokens is padding."""
    NT = sizes["NT"]
    slot = torch.randperm(sizes["NP"] * 16, generator=generator)[:NT]
    slot = torch.where(torch.rand(NT, generator=generator) < 0.2, -1, slot)
    return {"slot": slot, "pos": torch.randint(0, sizes["P"], (NT,), generator=generator)}
