"""How the driver finds out that a worker is alive, and why one ended."""
