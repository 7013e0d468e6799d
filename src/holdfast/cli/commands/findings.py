"""What `holdfast doctor` finds: each with a code that stays the same."""

from holdfast.core.records import Frozen


class Finding(Frozen):
    """`code` is stable; `wrong` findings make the exit code 1."""

    what: str
    code: str
    detail: str
    wrong: bool = False
    advice: str = ""  # what to do, where the detail does not say it
