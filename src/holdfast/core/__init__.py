"""The core decides. It is pure: no clock, no I/O, no asyncio; an import contract keeps it so.

Read `states.py` first: it holds the three machines as tables. `apply.py` carries out their cells.
"""
