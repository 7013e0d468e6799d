"""How a waiter learns that something changed: the bell inside a process, the wake stream between processes."""
