"""Mutants of the core: how much of what it decides do its own tests notice? `make mutants` asks."""
