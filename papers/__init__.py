"""What reproduces or proves one source, a folder each. Imports `jaxreg`; nothing there imports this."""
