"""The output of commands: terminal view, summary and page."""
