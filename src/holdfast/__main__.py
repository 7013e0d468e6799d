"""`python -m holdfast` is the command `holdfast`."""

import gc
import sys
from typing import NoReturn

# Loading makes a hundred thousand objects and no garbage: looking for it cost a seventh of a command's start.
YOUNG_OBJECTS = 50_000


def main() -> NoReturn:
    gc.set_threshold(YOUNG_OBJECTS)
    try:
        from holdfast.system.keys import seal  # noqa: PLC0415  Ctrl-C can come while it loads

        seal(sys.argv[1:])
        from holdfast.cli.main import main as carry_out  # noqa: PLC0415  likewise

        carry_out()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
