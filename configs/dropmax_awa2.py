"""DropMax on Animals with Attributes 2, instead of the paper's AWA, with ResNet-18 from scratch.

Command: python run.py --config configs/dropmax_awa2.py --config.data.image_folder.path=DIR
         (the softmax baseline: --config.method.name=softmax)
Source: Lee et al., `DropMax: Adaptive Variational Softmax`, 2018, appendix C: batches of 125, 300 epochs, SGD
with momentum 0.9 from 0.01, divided by 10 at epochs 150 and 250, weight decay 1e-4; ResNet-18 by its authors'
word.

The images of AWA are withdrawn; AWA 2 has the same 50 classes and other images (37 322). So the paper's
errors, 30.29 % with softmax and 26.91 % with DropMax (confirmed by its poster), are for another set. DIR has
train/CLASS and test/CLASS. The archive has neither; these flags in place of the path draw 50 test images:
  --config.data.name=examples.image_lists:drawn_split --config.data.drawn_split.test=50
  --config.data.drawn_split.path=Animals_with_Attributes2/JPEGImages

Not confirmed, and so ours: the split (50 test images per class, drawn at random, the others for training),
crops, flips and standardised channels, the 7x7 stem, no pre-training, and weight decay on everything but the
mask branches, as in the released MNIST code. The error is the last epoch's, on the test split; nothing is
chosen on it. 125 is divisible by 1, 5 or 25 devices; on others, --config.batch_size=128. We have not run this
config, and its time is not measured.

Gradients are not clipped, unlike in `dropmax_cifar10`: on synthetic images of 50 classes learning starts
without clipping (papers/dropmax).
"""

from configs._photographs import dropmax, folder
from jaxreg.train import Config


def get_config() -> Config:
  config = dropmax((150.0, 250.0), 300, weight_decay=1e-4)
  folder(config)
  return config
