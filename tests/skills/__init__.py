"""Agent Skills and AGENTS.md."""
