"""Tool bodies in a process of their own: the worker's side, and the program."""
