"""What the commands do, one file each; their arguments and help are in `main.py` and `chats_group.py`."""
