"""Inputs made worse for a model: `([key,] loss_fn, x, *, ...) -> x`.

`fgsm` draws nothing and takes no key; `pgd` and `virtual_adversarial` begin at random. `vat_loss`, with the
arguments of the last, gives its penalty, `[batch]`.

`loss_fn(x) -> [batch]` is any loss, one value an example, each of its own example alone: so no batch
statistics. The caller closes over parameters and labels, and over the key of any noise, so that it is the
same in every pass. What is added to `x` is a constant to differentiation: train on the result, as
`adversarial_loss` does for a loss function of parameters and batches.
"""

from jaxreg.adversarial._adversarial_loss import adversarial_loss
from jaxreg.adversarial._fgsm import fgsm
from jaxreg.adversarial._pgd import pgd
from jaxreg.adversarial._vat import vat_loss, virtual_adversarial

__all__ = ["adversarial_loss", "fgsm", "pgd", "vat_loss", "virtual_adversarial"]


def __dir__() -> list[str]:
  return __all__
