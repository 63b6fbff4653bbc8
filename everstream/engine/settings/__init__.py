"""The options of a run, where they come from, and those that change while it runs."""
