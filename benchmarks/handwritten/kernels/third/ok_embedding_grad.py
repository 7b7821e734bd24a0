import torch


def reference(dy, token, pad, scale, V):
    """dW[token[n]] += scale * dY[n] but for tokens `pad`, and the number of tokens of each row."""
    token = token.long()
    dw = torch.zeros(V, dy.shape[1], dtype=dy.dtype)
    live = token != pad
    dw = dw.index_add(0, token[live], scale * dy[live])
    return {"dW": dw, "count": torch.bincount(token, minlength=V).int()}


def sizes(drawn):
    return {"V": max(drawn["V"], 1)}


def inputs(sizes, generator):
    V, N = sizes["V"], sizes["N"]
    token = (torch.rand(N, generator=generator) ** 2 * V).long().clamp(max=V - 1)
    return {"token": token.int(), "pad": int(torch.randint(0, V, (1,), generator=generator))}
