"""What is going on in this process: figures, verdicts with reason codes, and both as Prometheus text."""
