"""Measurements of jaxreg. `python -m benchmarks` runs the measurements of speed; each also runs by itself."""
