"""Who is still there: processes found by the mark of the guard under which they were started."""

from holdfast.system.guard_process import VARIABLE, glance
from holdfast.worker.guard import Guard


def living(guard: Guard) -> list[int]:
    mark = f"{VARIABLE}={guard.mark}".encode()
    return [seen.pid for seen in glance() if not seen.dead and seen.carries(mark)]
