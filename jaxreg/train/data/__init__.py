"""Data: the examples, their order, and the way of a batch to the devices.

A batch passes three files: its source (a row of `REGISTRY["data"]`), `images` or `dataset` with the examples,
and `batches`, which says which examples these are and puts them on the devices. Functions here see no
configuration: their errors name arguments, and `assemble/load_data.py` names the fields.
"""
