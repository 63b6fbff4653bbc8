"""Where the state of operators is kept: one protocol, and one module per backend."""
