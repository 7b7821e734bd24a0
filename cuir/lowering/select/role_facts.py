"""Facts about a role on which choices depend: its threads, its registers, what is live."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...ops.limits import TARGETS, Target, count_pool_registers
from ..analyses import Facts
from ..analyses.arrivals import find_cluster_barriers
from ..analyses.liveness import Liveness
from ..analyses.uniformity import runs_on_one_lane
from ..ir import machine_ops as machine
from ..ir import ops


@dataclass(frozen=True)
class RoleFacts:
    """A role of a kernel, or the warp that hands out units of work; `values` are facts about the kernel's values."""

    kernel: ops.Kernel
    role: ops.Role | machine.Queue
    values: Facts

    @property
    def limits(self) -> Target:
        """Limits and features of the kernel's GPU."""
        return TARGETS[self.kernel.arch.data]

    @property
    def threads(self) -> int:
        """Number of threads of a worker."""
        return self.role.threads.data if isinstance(self.role, ops.Role) else 32

    @property
    def registers(self) -> int:
        """Registers of a thread that the program gives to the role, 0 if it gives none."""
        return self.role.registers.data if isinstance(self.role, ops.Role) else 0

    @property
    def available_registers(self) -> int:
        """Registers of a thread: those of the role, or those of the launch."""
        return self.registers or count_pool_registers(self.kernel.threads.data) // self.kernel.threads.data

    @cached_property
    def cluster_barriers(self) -> frozenset[str]:
        """Barriers that order tensor accesses between CTAs of a cluster.

        These are the barriers that are arrived at across the cluster, in a kernel whose CTAs may hand over data in tensors.
        """
        return find_cluster_barriers(self.kernel) if self.kernel.cluster.data > 1 and self.exchanges_tensors else frozenset()

    @cached_property
    def exchanges_tensors(self) -> bool:
        """Workers may hand over data in a tensor."""
        return any(t.exchanged is not None for t in self.kernel.collect(ops.Tensor).values())

    @cached_property
    def single(self) -> bool:
        """The role runs on one lane of its warp."""
        return not isinstance(self.role, ops.Role) or runs_on_one_lane(self.role)

    @cached_property
    def liveness(self) -> Liveness:
        """The stored values that are live after each operation."""
        return Liveness(self.role.body.block)
