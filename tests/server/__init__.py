"""The HTTP surface, over real sockets, by real processes."""
