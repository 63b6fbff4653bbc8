"""What can go wrong in a simulation."""
