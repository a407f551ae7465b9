"""Proofs and figures of one source in each folder. They import `jaxreg`, which does not import them."""
