"""The specification in code: slow, obvious, one function per instruction, used by lockstep tests alone.

`machine.ReferenceMachine` runs a program; `state.State` is what the instructions work on; the other files hold
the functions, grouped like the units of the hardware.
"""

from npuserve.sim.reference.machine import ReferenceMachine

__all__ = ["ReferenceMachine"]
