"""Engine "local": workers are processes of this machine, without Spark and without Java."""
