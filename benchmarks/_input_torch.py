"""The PyTorch side of the benchmark of input, a process of its own that does what lines ask for.

A line is `{"task": task, "options": {"folder": path, "batches": number}}`, the answer has the seconds, and as
a note those of all cores. A task is

- `torchvision, N workers`: a `DataLoader` over an `ImageFolder`, with random crops of 224;
- `Pillow`: one thread that reads, decodes and crops with Pillow, as jaxreg's threads do;
- `simplejpeg`: the same, decoded by simplejpeg.
"""

import io
import json
import sys
import time
from pathlib import Path

import simplejpeg
from _clock import cpu_seconds
from PIL import Image
from torch.utils.data import DataLoader, RandomSampler
from torchvision import datasets, transforms

BATCH_SIZE, WARM_UP, SEVERAL = 32, 4, 10**6
CROP = transforms.RandomResizedCrop(224)


def loader(folder, workers):
  found = transforms.Compose([CROP, transforms.RandomHorizontalFlip(), transforms.PILToTensor()])
  data = datasets.ImageFolder(f"{folder}/train", found)
  sampler = RandomSampler(data, replacement=True, num_samples=SEVERAL)
  return iter(DataLoader(data, BATCH_SIZE, sampler=sampler, num_workers=workers))


def one_thread(folder, decode):
  files = sorted(Path(folder).glob("train/*/*.jpg"))
  position = 0
  while True:
    yield [CROP(decode(files[(position + i) % len(files)].read_bytes())) for i in range(BATCH_SIZE)]
    position += BATCH_SIZE


DECODERS = {
  "Pillow": lambda encoded: Image.open(io.BytesIO(encoded)).convert("RGB"),
  "simplejpeg": lambda encoded: Image.fromarray(simplejpeg.decode_jpeg(encoded, "RGB")),
}


def main():
  for line in sys.stdin:
    task = json.loads(line)
    name, options = task["task"], task["options"]
    if name in DECODERS:
      batches = one_thread(options["folder"], DECODERS[name])
    else:
      batches = loader(options["folder"], int(name.split()[-2]))
    for _ in range(WARM_UP):
      next(batches)
    began, used = time.perf_counter(), cpu_seconds()
    for _ in range(options["batches"]):
      next(batches)
    seconds, used = time.perf_counter() - began, cpu_seconds() - used
    del batches  # its workers end
    print(json.dumps({"seconds": seconds, "notes": {"cpu": used}}), flush=True)


if __name__ == "__main__":
  main()
