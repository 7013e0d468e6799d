"""`python -m holdfast` is the command `holdfast`."""

import sys
from typing import NoReturn


def main() -> NoReturn:
    try:
        from holdfast.cli.main import main as carry_out  # noqa: PLC0415  Ctrl-C can come while it loads

        carry_out()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
