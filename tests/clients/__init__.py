"""Real clients of OpenAI's protocols, driven against a real server: `python -m tests.clients`, `make long`."""
