"""Checkpoint protocols: one small file each, all behind the interface in `base`."""
