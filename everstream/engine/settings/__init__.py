"""The options of a run, their origins, and the settings that can change while it is active."""
