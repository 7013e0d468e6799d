"""The shell tool, and the judgement on a command line: its acts, what is harmless, what git would start."""
