"""How the driver learns that a worker is alive, and why one ended."""
