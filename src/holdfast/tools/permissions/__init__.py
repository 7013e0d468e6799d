"""What a call may do: acts, rules on them, and one rulebook that decides."""
