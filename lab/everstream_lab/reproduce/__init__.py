"""The tables and figures of the five papers: what regenerates each, and ours beside theirs."""
