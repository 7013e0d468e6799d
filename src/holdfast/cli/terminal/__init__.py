"""A chat at a terminal: screens, the keyboard, following a turn, asking the person."""
