"""`holdfast …` in a folder, as a program: `logging_in.py FOLDER mcp login NAME …`"""

import os
import sys

from holdfast.__main__ import main


def run() -> None:
    folder, *arguments = sys.argv[1:]
    os.chdir(folder)
    sys.argv = ["holdfast", *arguments]
    main()


if __name__ == "__main__":
    run()
