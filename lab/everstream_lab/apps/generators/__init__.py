"""Where inputs come from: seeded generators, each of which makes the same files every time."""
