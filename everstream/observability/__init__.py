"""What a run shows of itself: its history, metrics, traces, and the page."""
