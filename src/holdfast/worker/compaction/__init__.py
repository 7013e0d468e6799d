"""Compaction, acted out by a worker: when a summary is made and committed, and how a model is asked for it."""
