"""`everstream run`: the command, the driver's process, and the supervisor that restarts it."""
