"""The open web: the `fetch` tool, the client behind it, which addresses it refuses, its cache, pages as text."""
