"""The laboratory: benchmarks, the applications and workloads of the papers, and their reproduction."""
