"""Coding agents on the command line, as tools: which programs there are, what they say, and what a run came to."""
