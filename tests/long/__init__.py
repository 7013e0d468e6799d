"""What is long by nature: `make long` runs it, `make test` does not. `python -m tests.long NAME` runs a part."""
