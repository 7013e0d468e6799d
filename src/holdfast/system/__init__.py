"""What asks the operating system: time, threads, child processes, whole files, keys, the guard."""
