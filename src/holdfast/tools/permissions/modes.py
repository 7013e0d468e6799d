"""What is done where no rule matches: the four modes, and what holds where none is set, as one table."""

from typing import Literal

from holdfast.config import PermissionMode

Ruling = Literal["allow", "ask", "deny"]
CAREFUL: tuple[Ruling, ...] = ("allow", "ask", "deny")  # the later counts more

# What an act is to a mode. A run is `sandboxed` where it can touch nothing but the root.
Kind = Literal["read_inside", "read", "write_inside", "write", "sandboxed", "run", "reach", "call"]

_NOTHING_BUT_READS: dict[Kind, Ruling] = {
    "read_inside": "allow",
    "read": "deny",
    "write_inside": "deny",
    "write": "deny",
    "sandboxed": "deny",
    "run": "deny",
    "reach": "deny",
    "call": "deny",
}
_ASK: dict[Kind, Ruling] = {kind: "allow" if kind == "read_inside" else "ask" for kind in _NOTHING_BUT_READS}
_TABLE: dict[PermissionMode | None, dict[Kind, Ruling]] = {
    "read": _NOTHING_BUT_READS,
    "ask": _ASK,
    "edit": {**_ASK, "write_inside": "allow", "sandboxed": "allow"},
    "unattended": _ASK,  # and every ask is a deny, whoever asks
    # No permissions are set: a program's tools do what they were given for, each within its own bounds. A shell asks.
    None: {**_ASK, "write_inside": "allow", "reach": "allow", "call": "allow"},
}


def ruling_of(mode: PermissionMode | None, kind: Kind) -> Ruling:
    return _TABLE[mode][kind]
