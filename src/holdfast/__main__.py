"""`python -m holdfast` is the command `holdfast`."""

import sys
from typing import NoReturn


def main() -> NoReturn:
    try:
        from holdfast.system.keys import seal  # noqa: PLC0415  Ctrl-C can come while it loads

        seal(sys.argv[1:])
        from holdfast.cli.main import main as carry_out  # noqa: PLC0415  likewise

        carry_out()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
