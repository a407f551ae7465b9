"""A table of one's own: a CSV file with numbers, texts and missing values becomes a trained model."""

import csv
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_wine

from jaxreg import train

wine = load_wine()
folder = Path(tempfile.mkdtemp())
with (folder / "wine.csv").open("w", newline="") as file:
  writer = csv.writer(file)
  writer.writerow([*wine.feature_names, "shelf", "cultivar"])
  for number, (values, target) in enumerate(zip(wine.data, wine.target)):
    measured = ["" if number % 50 == 7 else values[0], *values[1:]]  # four bottles lack the first value
    writer.writerow([*measured, "top" if number % 2 else "bottom", wine.target_names[target]])

config = train.base_config()
config.data.name = "csv"
config.method.name = "label_smoothing"
config = train.add_options(config)
config.data.csv.path = str(folder / "wine.csv")  # the last column is the label
config.epochs = 20
config.batch_size = 32
results = train.train(config, folder / "run")

predict = train.load(folder / "run")
print(f"{len(predict.input_names)} inputs, the last ones {predict.input_names[-2:]}")
inputs = np.hstack([wine.data, np.tile([[1.0, 0.0]], (len(wine.data), 1))]).astype(np.float32)
predicted = np.array(predict.class_names)[np.asarray(predict(inputs)).argmax(-1)]
print(f"test error {results['test/error']:.3f}; the first wine is of {predicted[0]}")
