"""Measures Everstream against itself and against plain programs, in ratios taken in one run."""
