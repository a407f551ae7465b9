"""The convolutions of ResNet-20 alone, each with both gradients: a floor of the time of its step."""

BATCH = 128
NAME = "the convolutions of ResNet-20"


def shapes():
  """Side of the input, channels in and out, and stride of each 3x3 convolution."""
  yield 32, 3, 16, 1
  for side, inputs, width, stride in ((32, 16, 16, 1), (32, 16, 32, 2), (16, 32, 64, 2)):
    yield side, inputs, width, stride
    yield from [(side // stride, width, width, 1)] * 5


def make_convolutions():
  """`run(number)`: all convolutions and their gradients in one program of JAX, `number` times."""
  import jax  # not for the side of PyTorch, which takes the shapes only

  from jaxreg.models import convolution

  draw = lambda number, *shape: jax.random.normal(jax.random.key(number), shape)
  layers = [
    (
      draw(0, BATCH, side, side, inputs),
      draw(1, 3, 3, inputs, width),
      draw(2, BATCH, side // stride, side // stride, width),
    )
    for side, inputs, width, stride in shapes()
  ]
  strides = [stride for *_, stride in shapes()]

  @jax.jit
  def step(layers):
    def one(x, kernel, cotangent, stride):
      dimensions = {"padding": [(1, 1), (1, 1)], "dimension_numbers": ("NHWC", "HWIO", "NHWC")}
      convolve = lambda x, kernel: convolution(x, kernel, (stride, stride), **dimensions)
      out, gradients = jax.vjp(convolve, x, kernel)
      found = gradients(cotangent)
      # The images need no gradient.
      return out, found if x.shape[-1] > 3 else found[1]

    return [one(*layer, stride) for layer, stride in zip(layers, strides, strict=True)]

  def run(number):
    for _ in range(number):
      jax.block_until_ready(step(layers))

  return run
