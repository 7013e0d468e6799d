"""What the commands do, one file each; their arguments and help are in `cli/main.py` and `cli/chats_group.py`."""
