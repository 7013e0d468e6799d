"""The command line as somebody for whom permissions count: `python -m tests.cli.unprivileged chats list`."""

import os
import sys

from holdfast.cli.main import main
from tests.store.unprivileged import heed_permissions

if __name__ == "__main__":
    if os.getuid() == 0:
        heed_permissions()
    main(sys.argv[1:])
