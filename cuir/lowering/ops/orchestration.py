"""Roles and tiles are the frame of the kernel (kernel.py, role.py); the rank is a scalar (values.py)."""

from __future__ import annotations

from ..registry import emits

for _name in ("role", "tiles", "cta_rank"):
    emits(_name, "structure")(lambda: None)
