"""Regularizers for a loss function, `compose(loss_fn, {name: term}) -> loss_fn`, and a report of each term.

A term is a `penalty` of the parameters; an `example_term`, a further loss on the examples that shares the
loss's forward pass; or a `perturbation` of the inputs, labels, parameters, activations or the whole batch:
noise, mixup, CutMix. A weight or option is a number, a schedule of the step or a traced array.

A term's key comes from its name, so adding or removing a term changes no other term's draws.
"""

from jaxreg.objective._compose import Composed, compose
from jaxreg.objective._terms import example_term, penalty, perturbation
from jaxreg.objective._view import View

__all__ = [
  "Composed",
  "View",
  "compose",
  "example_term",
  "penalty",
  "perturbation",
]
