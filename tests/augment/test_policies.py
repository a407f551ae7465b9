"""AutoAugment against Pillow and the printed policies; AugMix against a loop in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from jaxreg import augment
from jaxreg.augment._policies import POLICIES

POLICY = (
  (("invert", 0.5, 0), ("brightness", 1.0, 6)),
  (("solarize", 0.7, 3), ("posterize", 0.4, 9)),
  (("color", 1.0, 9), ("invert", 0.0, 0)),
)


def pillow(name, image, magnitude, sign):
  if name == "invert":
    return ImageOps.invert(image)
  if name == "solarize":
    return ImageOps.solarize(image, 256 - 256 * magnitude / 9)
  if name == "posterize":
    return ImageOps.posterize(image, 8 - round(4 * magnitude / 9))
  return getattr(ImageEnhance, name.capitalize())(image).enhance(1 + 0.9 * sign * magnitude / 9)


@pytest.mark.thorough
def test_auto_augment_takes_a_pair_by_its_chances_as_pillow_does():
  number, key = 40, jax.random.key(0)
  x = np.random.default_rng(0).integers(0, 256, (number, 4, 5, 3)).astype(np.uint8)
  run = jax.jit(lambda key: augment.auto_augment(key, {"inputs": x, "labels": x[:, 0, 0, 0]}, policy=POLICY))
  got = run(jax.random.clone(key))
  for_row, for_chance, for_sign = jax.random.split(key, 3)
  rows = np.asarray(jax.random.randint(for_row, (number,), 0, 3))
  chances = np.asarray(jax.random.uniform(for_chance, (2, number)))
  signs = np.asarray(jax.random.rademacher(for_sign, (2, number), np.float32))
  applied = 0
  for i, image in enumerate(x):
    want = Image.fromarray(image)
    for slot, (name, probability, magnitude) in enumerate(POLICY[rows[i]]):
      if chances[slot, i] < probability:
        want, applied = pillow(name, want, magnitude, signs[slot, i]), applied + 1
    # Pillow rounds down after every operation, we once.
    assert abs(np.asarray(want, int) - np.asarray(got["inputs"][i], int)).max() <= 2, POLICY[rows[i]]
  assert {0, 1, 2} == set(rows)
  assert number < applied < 2 * number
  np.testing.assert_array_equal(got["labels"], x[:, 0, 0, 0])


# Of the printed tables: how often each operation stands there, and the sums of probabilities and magnitudes.
PRINTED = {
  "cifar10": (
    "autocontrast 7, brightness 4, color 5, contrast 2, equalize 9, invert 3, posterize 1, rotate 1, "
    "sharpness 5, shear_y 2, solarize 4, translate_x 2, translate_y 5",
    (26.5, 187),
  ),
  "imagenet": (
    "autocontrast 2, color 6, contrast 2, equalize 17, invert 3, posterize 5, rotate 6, sharpness 1, "
    "shear_x 1, solarize 7",
    (31.0, 159),
  ),
  "svhn": (
    "autocontrast 3, contrast 1, equalize 6, invert 12, rotate 4, shear_x 6, shear_y 8, solarize 5, "
    "translate_x 1, translate_y 4",
    (32.9, 143),
  ),
}


@pytest.mark.parametrize("name", POLICIES)
def test_the_policies_are_the_printed_ones(name):
  entries = [entry for row in POLICIES[name] for entry in row]
  assert len(entries) == 50
  counts, sums = PRINTED[name]
  operations = [operation for operation, _, _ in entries]
  assert ", ".join(f"{one} {operations.count(one)}" for one in sorted(set(operations))) == counts
  np.testing.assert_allclose([sum(p for _, p, _ in entries), sum(m for _, _, m in entries)], sums)


def test_auto_augment_refuses():
  b = {"inputs": jnp.zeros((1, 4, 4, 3))}
  for policy, match in (
    ("cifar100", "policy must be one of cifar10, imagenet, svhn, or sub-policies, got 'cifar100'"),
    ([], "policy must have sub-policies with the same number"),
    ([[("invert", 1.0, 0)], []], "policy must have sub-policies with the same number"),
    ([[("cutout", 1.0, 0)]], r"operations must be among .*invert, got \['cutout'\]"),
    ([[("invert", 1.5, 0)]], "policy: a probability must lie in"),
    ([[("rotate", 1.0, 10)]], "policy: a magnitude must lie in"),
  ):
    with pytest.raises(ValueError, match=match):
      augment.auto_augment(jax.random.key(0), b, policy=policy)


@pytest.mark.thorough
def test_augmix_is_the_documented_mixture():
  """Of chains that invert the values above thresholds, one after the other."""
  number, chains, most, key = 6, 3, 2, jax.random.key(1)
  x = np.random.default_rng(0).uniform(0, 1, (number, 3, 4, 2)).astype(np.float32)
  options = {"operations": ["identity", "solarize"], "num_chains": chains, "num_ops": most, "severity": 8.0}
  got = jax.jit(lambda key: augment.augmix(key, {"inputs": x}, **options))(jax.random.clone(key))["inputs"]
  keys = jax.random.split(key, 6)
  chosen = np.asarray(jax.random.randint(keys[0], (most, chains, number), 0, 2))
  level = np.asarray(jax.random.uniform(keys[1], (most, chains, number), minval=0.01, maxval=0.8))
  length = np.asarray(jax.random.randint(keys[3], (1, chains, number), 1, most + 1))[0]
  weights = np.asarray(jax.random.dirichlet(keys[4], jnp.ones(chains), (number,)))
  first, second = np.asarray(jax.random.loggamma(keys[5], 1.0, (2, number)), np.float64)
  share = np.exp(first) / (np.exp(first) + np.exp(second))
  for i in range(number):
    mixture = 0
    for chain in range(chains):
      image = x[i].astype(np.float64)
      for step in range(length[chain, i]):
        if chosen[step, chain, i]:
          image = np.where(image >= 256 / 255 * (1 - level[step, chain, i]), 1 - image, image)
      mixture = mixture + weights[i, chain] * image
    np.testing.assert_allclose(got[i], share[i] * x[i] + (1 - share[i]) * mixture, atol=1e-5)


@pytest.mark.thorough
def test_augmix_draws_lengths_and_shares_uniformly():
  """White stays white without `solarize`, in `(1/2 + 1/4 + 1/8) / 3` of all chains; else it is the share."""
  number = 4000
  b = {"inputs": jnp.ones((number, 1, 1, 1))}
  options = {"operations": ["identity", "solarize"], "num_chains": 1}
  run = jax.jit(lambda key: augment.augmix(key, b, **options)["inputs"])
  out = np.asarray(run(jax.random.key(2))).ravel()
  white, chance = (out == 1).mean(), 7 / 24
  assert abs(white - chance) < 4 * np.sqrt(chance * (1 - chance) / number)
  quartiles = np.quantile(out[out != 1], [0.25, 0.5, 0.75])
  np.testing.assert_allclose(quartiles, [0.25, 0.5, 0.75], atol=4 * 0.5 / np.sqrt(number * (1 - chance)))


def test_augmix_refuses():
  b = {"inputs": jnp.zeros((1, 4, 4, 3))}
  for options, match in (
    ({"severity": 0.0}, "severity must lie in"),
    ({"alpha": 0.0}, "alpha must lie in"),
    ({"num_chains": 0}, "num_chains must be at least 1"),
    ({"num_ops": 0}, "num_ops must be at least 1"),
    ({"operations": ["invert"]}, r"operations must be among identity.* got \['invert'\]"),
  ):
    with pytest.raises(ValueError, match=match):
      augment.augmix(jax.random.key(0), b, **options)
