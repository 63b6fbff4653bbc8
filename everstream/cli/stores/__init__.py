"""Commands about a store: its checkpoints and savepoints, whether a program fits, changes while it runs."""
