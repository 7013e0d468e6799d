"""For clients that are commands: run one, and tell what it said."""

import subprocess


def output_of(*command: str, said: str = "") -> str:
    """What it printed, having read what is said. Raises RuntimeError with its complaint if it failed."""
    done = subprocess.run(command, capture_output=True, text=True, input=said, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr.strip()[-400:]} {done.stdout.strip()[-500:]}")
    return done.stdout.strip()
