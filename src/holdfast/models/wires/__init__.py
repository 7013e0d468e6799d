"""The wires: a provider's protocol as pure mapping, both ways. One file each, and what they share."""
