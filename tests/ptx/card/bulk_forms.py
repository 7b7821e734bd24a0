"""Forms of bulk copies and reductions of bytes that follow one another."""

from __future__ import annotations

import numpy as np

from .forms import BYTES, SPECIALS, Array, Form, draw_bytes, draw_operand, to_bytes
from .warp_forms import dump_shared, fill_shared

START = ".shared .align 8 .b64 bar; .reg .pred %p, %done; mov.u32 %i6, bar; setp.ne.u32 %p, %i0, 0;\n"
INIT = "@%p bra READY; mbarrier.init.shared.b64 [%i6], 1; READY: fence.proxy.async; bar.sync 0; @%p bra LOOP;\n"
WAIT = "LOOP: mbarrier.try_wait.parity.shared.b64 %done, [%i6], 0; @!%done bra LOOP;\n"
ISSUE = "fence.proxy.async; bar.sync 0; @%p bra OVER;\n"
STORED = "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;\nOVER: bar.sync 0;"


def list_forms() -> list[Form]:
    """Return the forms of the family."""
    forms = []
    for nbytes in (16, 48, 512):
        opcode = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
        body = fill_shared(1024, 32, proxy=True) + "\n" + START + INIT
        body += f"mbarrier.arrive.expect_tx.shared.b64 %x8, [%i6], {nbytes}; add.u64 %x9, %x0, 1024; add.u32 %i7, %i1, 32;\n"
        body += f"{opcode} [%i7], [%x9], {nbytes}, [%i6];\n{WAIT}{dump_shared(1024, 32)}"
        name = f"{opcode} {nbytes}"
        forms.append(Form(name, "cp.async.bulk", body, lambda k=name: draw_bytes(k, 2048), 1024))
        opcode = "cp.async.bulk.global.shared::cta.bulk_group"
        body = fill_shared(1024, 32, proxy=True) + f"\n{START}{ISSUE}add.u64 %x9, %x1, 64; add.u32 %i7, %i1, 16;\n"
        body += f"{opcode} [%x9], [%i7], {nbytes};\n{STORED}"
        name = f"{opcode} {nbytes}"
        forms.append(Form(name, "cp.async.bulk", body, lambda k=name: draw_bytes(k, 1024), 1024))
    for t in ("u32", "s32", "u64", "f16", "bf16", "f32", "f64"):
        noftz = ".noftz" if t in ("f16", "bf16") else ""
        opcode = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.add{noftz}.{t}"
        body = f"{write_output(1024)}\n{fill_shared(1024, 32, proxy=True)}\n{START}{ISSUE}"
        body += f"{opcode} [%x1], [%i1], 1024;\n{STORED}"

        def draw(t: str = t, key: str = opcode) -> Array:
            count = 1024 // BYTES[t]
            kind = "" if t in SPECIALS else "bits"
            return np.concatenate([to_bytes(draw_operand(t, kind, f"{key}/{i}", count, (i, 2)), t) for i in range(2)])

        forms.append(Form(opcode, "cp.reduce.async.bulk", body, draw, 1024, t))
    return forms


def write_output(nbytes: int) -> str:
    """Return code of a warp that copies input behind the first bytes to the output."""
    lines = [".reg .b32 %u<4>; mad.wide.u32 %x2, %i0, 16, %x0; mad.wide.u32 %x3, %i0, 16, %x1;"]
    for at in range(0, nbytes, 512):
        lines.append(f"ld.global.v4.b32 {{%u0, %u1, %u2, %u3}}, [%x2+{nbytes + at}];")
        lines.append(f"st.global.v4.b32 [%x3+{at}], {{%u0, %u1, %u2, %u3}};")
    return "\n".join(lines)
