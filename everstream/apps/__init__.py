"""The applications of the papers, each in several interfaces, and the life of a benchmark."""
