"""Agent Skills: folders with a SKILL.md, as a model and people can call them."""
