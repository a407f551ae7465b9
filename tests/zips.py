"""Zip archives as other programs write them."""

import io
import zipfile


def damaged_lzma(content: bytes) -> bytes:
  """Packs the members of an archive by LZMA, and flips bits in the first one."""
  stream = io.BytesIO()
  with (
    zipfile.ZipFile(io.BytesIO(content)) as plain,
    zipfile.ZipFile(stream, "w", zipfile.ZIP_LZMA) as packed,
  ):
    names = plain.namelist()
    for name in names:
      packed.writestr(name, plain.read(name))
  content = bytearray(stream.getvalue())
  content[30 + len(names[0]) + 12] ^= 255  # after the header, its name and the properties of LZMA
  return bytes(content)


def encrypted(content: bytes) -> bytes:
  """Marks all members of an archive as encrypted, in their headers and in the directory at the end."""
  content = bytearray(content)
  for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
    at = content.find(signature)
    while at >= 0:
      content[at + flags] |= 1
      at = content.find(signature, at + 1)
  return bytes(content)
