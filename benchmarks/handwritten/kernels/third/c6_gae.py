import torch


def reference(r, val, last, done, gamma, lam):
    """Generalised advantage estimation (Schulman et al. 2016) and returns; done[s]: step s ends its episode."""
    go = 1 - done.to(r.dtype)
    adv, later, after = [], torch.zeros_like(last), last
    for s in reversed(range(r.shape[0])):
        later = r[s] + gamma * go[s] * after - val[s] + gamma * lam * go[s] * later
        after = val[s]
        adv.append(later)
    adv = torch.stack(adv[::-1]) if adv else torch.zeros_like(r)
    return {"ADV": adv, "RET": adv + val}


def inputs(sizes, generator):
    done = torch.rand(sizes["S"], sizes["E"], generator=generator) < 0.15
    return {"done": done.int(), "gamma": 0.9 + 0.1 * float(torch.rand(1, generator=generator)), "lam": 0.9 + 0.1 * float(torch.rand(1, generator=generator))}
