"""The matrix products and convolutions of each network alone, with their gradients."""

from typing import NamedTuple


class Layer(NamedTuple):
  """An einsum of two factors or, without an equation, a convolution of `NHWC` images with a `HWIO` kernel."""

  left: tuple[int, ...]
  right: tuple[int, ...]
  equation: str = ""
  stride: int = 1
  padding: int = 0
  first: bool = False  # the inputs of the network need no gradient


def layers(network: str) -> list[Layer]:
  return {"MLP": mlp, "LeNet": lenet, "ResNet-20": resnet20, "ViT": vit}[network]()


def dense(rows, inputs, outputs, **options):
  return Layer((rows, inputs), (inputs, outputs), "ni,io->no", **options)


def mlp():
  return [dense(128, 784, 1024, first=True), dense(128, 1024, 1024), dense(128, 1024, 10)]


def lenet():
  convolutions = [Layer((50, 28, 28, 1), (5, 5, 1, 20), first=True), Layer((50, 12, 12, 20), (5, 5, 20, 50))]
  return [*convolutions, dense(50, 800, 500), dense(50, 500, 10)]


def resnet20():
  def convolution(side, inputs, width, stride=1):
    return Layer((128, side, side, inputs), (3, 3, inputs, width), "", stride, padding=1, first=inputs == 3)

  found = [convolution(32, 3, 16)]
  for side, inputs, width, stride in ((32, 16, 16, 1), (32, 16, 32, 2), (16, 32, 64, 2)):
    found += [convolution(side, inputs, width, stride)] + [convolution(side // stride, width, width)] * 5
  return [*found, dense(128, 64, 10)]


def vit():
  batch, tokens, heads, width = 128, 64, 4, 128
  rows, split = batch * tokens, (batch, tokens, heads, width // heads)
  block = [
    dense(rows, width, 3 * width),
    Layer(split, split, "bqhd,bkhd->bhqk"),
    Layer((batch, heads, tokens, tokens), split, "bhqk,bkhd->bqhd"),
    dense(rows, width, width),
    dense(rows, width, 256),
    dense(rows, 256, width),
  ]
  return [dense(rows, 48, width, first=True), *block * 6, dense(batch, width, 10)]


def make_products(network):
  """`run(number)`: all products and their gradients in one program of JAX, `number` times."""
  import jax  # not for the side of PyTorch, which takes the shapes only
  import jax.numpy as jnp

  from jaxreg.models import convolution

  def multiply(layer, left, right):
    if layer.equation:
      return jnp.einsum(layer.equation, left, right)
    dimensions = {"padding": [(layer.padding,) * 2] * 2, "dimension_numbers": ("NHWC", "HWIO", "NHWC")}
    return convolution(left, right, (layer.stride,) * 2, **dimensions)

  @jax.jit
  def step(factors, cotangents):
    found = []
    for layer, (left, right), cotangent in zip(layers(network), factors, cotangents, strict=True):
      out, gradients = jax.vjp(lambda *factors, layer=layer: multiply(layer, *factors), left, right)
      found.append((out, gradients(cotangent)[layer.first :]))
    return found

  draw = lambda number, shape: jax.random.normal(jax.random.key(number), shape)
  factors = [(draw(0, layer.left), draw(1, layer.right)) for layer in layers(network)]
  outs = [
    jax.eval_shape(lambda *factors, layer=layer: multiply(layer, *factors), *pair)
    for layer, pair in zip(layers(network), factors, strict=True)
  ]
  cotangents = [draw(2, out.shape) for out in outs]

  def run(number):
    for _ in range(number):
      jax.block_until_ready(step(factors, cotangents))

  return run
