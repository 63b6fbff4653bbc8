"""Commands on a store: its checkpoints and savepoints, compatibility checks, changes to a live run."""
