"""The SQLite store: one file, one writer thread per process, readers that never block it."""
