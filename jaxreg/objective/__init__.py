"""Regularizers for a loss function, `compose(loss_fn, {name: term}) -> loss_fn`, and a report of each term.

A term is a `penalty` of the parameters; an `example_term`, a further loss on the examples that shares the
loss's forward pass; or a `perturbation` of the inputs, labels, parameters, activations or the whole batch:
noise, mixup, CutMix. A weight or option is a number, a schedule of the step or a traced array.

A term's key comes from its name, so adding or removing a term changes no other term's draws.
"""

from jaxreg._names import suggest_names
from jaxreg.objective._compose import Composed as Composed
from jaxreg.objective._compose import compose as compose
from jaxreg.objective._terms import example_term as example_term
from jaxreg.objective._terms import penalty as penalty
from jaxreg.objective._terms import perturbation as perturbation
from jaxreg.objective._view import View as View

suggest_names(globals())
