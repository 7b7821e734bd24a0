"""A kernel that copies rows of any dtype."""

COPY = """\
@kernel(arch="sm_90a")
def copy(X: Global[T, M, 64], Y: Global[T, M, 64], *, T: const):
    work = tiles(cdiv(M, 64))
    with role("all", warpgroups=1):
        for t in work:
            i = t * 64 + rows(64)
            store(Y[i, cols(64)], X[i, cols(64)])
"""
