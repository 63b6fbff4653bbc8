"""The workloads: seeded generators, queries as pipelines, and the truth to hold them against."""
