"""Measurements of jaxreg. `python -m benchmarks` runs those of speed; each also runs by itself."""
