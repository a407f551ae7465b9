"""Attacks, which make inputs worse for a model: `(key, loss_of_inputs, x, *, ...) -> x`.

`pgd` and `virtual_adversarial` start at random; `pgd` takes `key=None` without a random start, as the fast
gradient sign method. `attack` measures robustness: it also takes labels, and its function gives logits. Two
functions return a penalty, `[batch]`: `vat_loss` with the arguments of `virtual_adversarial`, and
`trades_loss` with `pgd`'s. `adversarial_loss` trains on the result; its `loss_fn` is `(params, batch, *, key)
-> scalar`.

`loss_of_inputs(x) -> [batch]` is any loss with one value per example that depends only on this example, so
not on batch statistics. The caller closes over parameters and labels, and over the key of any noise, so that
the noise is the same in every pass. `virtual_adversarial` needs no labels: its function is `log_probs_fn(x)
-> [batch, ..., classes]`. The perturbation of `x` is a constant to differentiation.
"""

from jaxreg.adversarial._adversarial_loss import adversarial_loss
from jaxreg.adversarial._attack import attack
from jaxreg.adversarial._pgd import pgd
from jaxreg.adversarial._trades import trades_loss
from jaxreg.adversarial._vat import vat_loss, virtual_adversarial

__all__ = [
  "adversarial_loss",
  "attack",
  "pgd",
  "trades_loss",
  "vat_loss",
  "virtual_adversarial",
]
