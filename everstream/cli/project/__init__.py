"""`everstream new`: writes a small project to begin with."""
