"""The errors of wrong arguments, which name the argument; without JAX, because the command imports them."""


class ArgumentError(ValueError):
  """A wrong value of an argument; its message is `ARGUMENT must ...`, or `ARGUMENT: PROBLEM`.

  Attributes:
    argument: the name of the argument; empty if no single argument is wrong.
    problem: the rest of the message.
  """

  def __init__(self, argument: str, problem: str):
    super().__init__(argument, problem)
    self.argument, self.problem = argument, problem

  def __str__(self) -> str:
    separator = " " if self.problem.startswith("must ") else ": "
    return f"{self.argument}{separator}{self.problem}" if self.argument else self.problem


class ArgumentTypeError(ArgumentError, TypeError):
  """A wrong type of an argument: a TypeError that whoever catches an `ArgumentError` catches, too."""
