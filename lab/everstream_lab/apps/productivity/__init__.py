"""How much code an application takes: lines and Halstead's measures, beside published ones."""
