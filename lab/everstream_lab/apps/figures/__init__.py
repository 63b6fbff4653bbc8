"""The figures of SPBench and ResiPipe, drawn anew for the machine at hand."""
