"""`make reference`."""

import sys

from tests.upkeep.reference import DOCS, made, names


def main() -> None:
    (DOCS / "reference").mkdir(exist_ok=True)
    for name in names():
        (DOCS / name).write_text(made(name), encoding="utf-8")
        sys.stdout.write(f"docs/{name} is written\n")


if __name__ == "__main__":
    main()
