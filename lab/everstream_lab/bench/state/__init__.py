"""What large state costs: in memory, on disk, and opening its store."""
