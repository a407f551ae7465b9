"""The trainer's own step in a loop of your own, in three calls: `python examples/training_step.py`.

`make_program` makes pure functions of a configuration. The step has everything that the configuration names:
DropMax, a penalty, noise on the weights, clipping. Where and how it is compiled is up to you.
"""

import jax
import numpy as np
from sklearn.datasets import load_digits

from jaxreg import train

inputs, labels = load_digits(return_X_y=True)
inputs, labels = inputs.reshape(-1, 8, 8, 1).astype("uint8"), labels.astype("int32")

config = train.base_config()
config.method.name = "dropmax"
config.regularizers.names = ("l2",)
config.noise.names = ("weight_noise",)
config.optimizer.clip_norm = 1.0

program = train.make_program(
  config, input_shape=(8, 8, 1), num_classes=10, num_examples=len(inputs), input_dtype="uint8", scale=16
)
state = program.init(0)
step = jax.jit(program.train_step, donate_argnums=0)

for number in range(200):
  rows = np.random.default_rng(number).integers(len(inputs), size=config.batch_size)
  state, metrics = step(state, {"inputs": inputs[rows], "labels": labels[rows]})

loss, accuracy = (float(total / count) for total, count in (metrics["loss"], metrics["accuracy"]))
print(f"step {int(state.step)}: loss {loss:.3f}, accuracy {accuracy:.1%}")
