"""The published experiments, and their figures beside ours."""
