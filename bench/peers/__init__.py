"""What users would pick instead, under the same load: `make bench-peers`.

Each peer runs in an environment of its own, from a lock of pinned versions, by an adapter that is written as its
guide has it (`adapters/`). What happened is read from one ledger, in the same way for all (`ledger`).
"""
