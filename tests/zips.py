"""Zip archives as other programs write them."""


def encrypted(content: bytes) -> bytes:
  """Marks all members of an archive as encrypted, in their headers and in the directory at the end."""
  content = bytearray(content)
  for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
    at = content.find(signature)
    while at >= 0:
      content[at + flags] |= 1
      at = content.find(signature, at + 1)
  return bytes(content)
