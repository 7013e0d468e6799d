"""The core decides. It is pure: no clock, no I/O, no asyncio; an import contract keeps it so.

Read `states.py` first: it holds the three machines as tables. `apply.py` finds the cell, `cells/` carries it out on a
`draft.py`, and what comes out is in `change.py`.
"""
