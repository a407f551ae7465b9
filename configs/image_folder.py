"""Your own folder of images of any size: ResNet-18 at 224 pixels, decoded during training.

Command: python run.py --config configs/image_folder.py --config.data.image_folder.path=DIR
         (DIR/train/CLASS/*.jpg and DIR/val/CLASS/*.jpg, PNG too; decoded by so many processes:
         --config.data.stream.workers=8; DropMax: --config.method.name=dropmax)
Source: He et al., `Deep Residual Learning for Image Recognition`, 2016, section 3.4: batches of 256, SGD with
momentum 0.9 from 0.1 and weight decay 1e-4, crops of 224 with flips.

The reported error is on the images of `val`, which no choice sees: the best checkpoint is chosen on a
held-out tenth of `train`. Ours: the crop's area and aspect are drawn, as became common for networks of that
time (Szegedy et al., `Going Deeper with Convolutions`, 2015, section 6), 90 epochs, and a cosine schedule
after five epochs of warm-up. For a few thousand images take smaller batches, and a pretrained network if
there is one (`config.pretrained`). We have not trained at this size, so there is no expected figure.
"""

from jaxreg.train import Config, base_config


def get_config() -> Config:
  config = base_config()
  config.data.name = "image_folder"
  config.augment.mean = (0.485, 0.456, 0.406)
  config.augment.std = (0.229, 0.224, 0.225)
  config.model.name = "ResNet"
  config.model.ResNet.depth = 18
  config.model.ResNet.stem = "imagenet"
  config.method.name = "softmax"
  config.optimizer.name = "sgd"
  config.optimizer.learning_rate = 0.1
  config.optimizer.sgd.momentum = 0.9
  config.optimizer.schedule.name = "cosine"
  config.optimizer.schedule.warmup_epochs = 5.0
  config.optimizer.weight_decay.rate = 1e-4
  config.batch_size = 256
  config.epochs = 90
  config.eval_batch_size = 256
  return config
