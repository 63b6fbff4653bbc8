"""The applications of ResiPipe and SPBench: real programs to measure a stream processor with."""
