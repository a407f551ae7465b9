"""Small wrong changes of a source file, made on its syntax tree: what the tests should notice.

Docstrings, annotations, `__all__`, imports, decorators and messages are left alone.
"""

import ast
import copy
import dataclasses
from collections.abc import Callable, Iterator

COMPARED = {
  ast.Lt: ast.GtE,
  ast.LtE: ast.Lt,
  ast.Gt: ast.LtE,
  ast.GtE: ast.Gt,
  ast.Eq: ast.NotEq,
  ast.NotEq: ast.Eq,
  ast.In: ast.NotIn,
  ast.NotIn: ast.In,
  ast.Is: ast.IsNot,
  ast.IsNot: ast.Is,
}
COMPUTED = {
  ast.Add: ast.Sub,
  ast.Sub: ast.Add,
  ast.Mult: ast.Div,
  ast.Div: ast.Mult,
  ast.Pow: ast.Mult,
  ast.FloorDiv: ast.Mult,
  ast.Mod: ast.Mult,
  ast.BitAnd: ast.BitOr,
  ast.BitOr: ast.BitAnd,
}
UNORDERED = (ast.Sub, ast.Div, ast.MatMult, ast.Pow, ast.Mod, ast.FloorDiv)
# Functions whose argument may stand for their value.
TRANSPARENT = {
  "stop_gradient",
  "abs",
  "sqrt",
  "square",
  "exp",
  "log",
  "sorted",
  "reversed",
  "copy",
  "deepcopy",
}
SKIPPED = (ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Assert)
SPOKEN = {"warn", "warning", "info", "print", "debug", "error"}


@dataclasses.dataclass(frozen=True)
class Mutant:
  """The change `kind` at a place: `scope` is the qualified name of the function around it, or empty."""

  file: str
  line: int
  column: int
  kind: str
  scope: str
  old: str
  new: str

  @property
  def name(self) -> str:
    return f"{self.file}:{self.line}:{self.column} {self.kind}"


def called(node: ast.AST) -> str:
  """The last part of the name of a called function."""
  function = node.func if isinstance(node, ast.Call) else None
  return getattr(function, "attr", getattr(function, "id", ""))


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
  """The kinds of changes of one node, and what takes its place."""
  again = lambda **fields: ast.copy_location(type(node)(**{**dict(ast.iter_fields(node)), **fields}), node)
  match node:
    case ast.Compare(ops=[op]):
      yield "compare", again(ops=[COMPARED[type(op)]()])
    case ast.BoolOp(op=op):
      yield "and/or", again(op=ast.Or() if isinstance(op, ast.And) else ast.And())
    case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand):
      yield "drop sign" if isinstance(node.op, ast.USub) else "drop not", operand
    case ast.BinOp(left=left, op=op, right=right):
      if type(op) in COMPUTED:
        yield "operator", again(op=COMPUTED[type(op)]())
      if isinstance(op, UNORDERED):
        yield "swap", again(left=right, right=left)
    case ast.Constant(value=bool() as value):
      yield "constant", again(value=not value)
    case ast.Constant(value=int() | float() as value):
      yield "constant", again(value=value + 1 if isinstance(value, int) else 2 * value or 1.0)
    case ast.IfExp(body=body, orelse=orelse):
      yield "branches", again(body=orelse, orelse=body)
    case ast.If(test=test):
      yield "negate", again(test=ast.copy_location(ast.UnaryOp(ast.Not(), test), test))
    case ast.Call(args=args, keywords=keywords):
      for i, keyword in enumerate(keywords):
        if keyword.arg:
          yield f"drop {keyword.arg}", again(keywords=keywords[:i] + keywords[i + 1 :])
      alike = len(args) > 1 and type(args[0]) is type(args[1])
      if alike and not isinstance(args[0], ast.Starred | ast.Constant):
        yield "swap arguments", again(args=[args[1], args[0], *args[2:]])
      if len(args) == 1 and called(node) in TRANSPARENT:
        yield f"drop {called(node)}", args[0]
    case ast.Expr(value=ast.Call()) | ast.AugAssign():
      yield "drop statement", ast.copy_location(ast.Pass(), node)
    case ast.Assign(targets=[ast.Name(id=name)], value=value):
      if any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(value)):
        yield "drop statement", ast.copy_location(ast.Pass(), node)


def places(tree: ast.AST, scope: str = "") -> Iterator[tuple[ast.AST, str, int | None, ast.AST, str]]:
  """`(parent, field, index, node, scope)` of every node that may change."""
  for field, value in ast.iter_fields(tree):
    if field in ("annotation", "returns", "decorator_list", "type_params"):
      continue
    for i, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
      if not isinstance(node, ast.AST) or isinstance(node, SKIPPED) or called(node) in SPOKEN:
        continue
      if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        continue
      if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
        continue
      inner = scope
      if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        inner = f"{scope}.{node.name}".lstrip(".")
      yield tree, field, i, node, scope
      yield from places(node, inner)


def put(parent: ast.AST, field: str, index: int | None, node: ast.AST) -> None:
  if index is None:
    setattr(parent, field, node)
  else:
    getattr(parent, field)[index] = node


def mutants(file: str, text: str) -> list[Mutant]:
  """All mutants of a source; `file` only names it."""
  found = {}
  for _, _, _, node, scope in places(ast.parse(text)):
    for kind, new in changes(node):
      old, new = (ast.unparse(copy.deepcopy(x)).partition("\n")[0] for x in (node, new))
      mutant = Mutant(file, node.lineno, node.col_offset, kind, scope, old, new)
      found[mutant.name] = mutant
  return list(found.values())


def mutated(text: str, mutant: Mutant) -> ast.Module:
  tree = ast.parse(text)
  for parent, field, index, node, _ in places(tree):
    for kind, new in changes(node):
      same = (node.lineno, node.col_offset, kind) == (mutant.line, mutant.column, mutant.kind)
      if same and ast.unparse(node).partition("\n")[0] == mutant.old:
        put(parent, field, index, new)
        return ast.fix_missing_locations(tree)
  raise ValueError(f"there is no {mutant.name}")


def marked(text: str, file: str, mark: Callable[[str], ast.stmt]) -> ast.Module:
  """The source with `mark(name)` as the first statement of the function of each qualified name."""
  tree = ast.parse(text)
  for _, _, _, node, scope in [*places(tree)]:
    if isinstance(node, ast.FunctionDef):
      docstring = ast.get_docstring(node) is not None
      node.body.insert(docstring, mark(f"{file}:{scope}.{node.name}".replace(":.", ":")))
  return ast.fix_missing_locations(tree)
