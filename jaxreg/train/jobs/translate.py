"""`job = translate`: translates the lines of a split, greedily and by beam search, and measures BLEU."""

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from tqdm import tqdm

from jaxreg import models
from jaxreg._atomic_files import write_json, write_text
from jaxreg._extras import install
from jaxreg.train import keys
from jaxreg.train.config.choices import Config
from jaxreg.train.data.batches import Source, gather
from jaxreg.train.data.text import BEGIN, END, PAD, ParallelText
from jaxreg.train.errors import RunError
from jaxreg.train.jobs.restored_run import RestoredRun, restore_states
from jaxreg.train.run.whole_split import batches
from jaxreg.train.sealed_tables import Table
from jaxreg.train.step.metrics import averaged
from jaxreg.train.step.program import Program
from jaxreg.train.step.state import TrainState
from jaxreg.typing import Array, PyTree

Search = Callable[..., tuple[Array, Array]]
Decode = Callable[[TrainState, Array, Array], Array]


def translate(config: Config, workdir: Path) -> Table:
  """Translates `config.evaluate.split` with a checkpoint of `workdir`, as `config.translate` says.

  Writes `translate.json` and, for the first replica, `translations.txt`. sacrebleu computes BLEU against the
  whole reference lines. A translation has at most as many tokens as a target in training. The layers compute
  in float32, whatever precision they were trained in. The results are `step`, and `greedy/bleu` and
  `beam/bleu`, means over the replicas.

  Raises:
    RunError: as `evaluate`, or if the data are not parallel text, or sacrebleu is missing.
  """
  if config.data.name != "parallel_text" or config.model.name != "Transformer":
    raise RunError(
      "job: translate needs data.name=parallel_text and model.name=Transformer, "
      f"got {config.data.name!r} and {config.model.name!r}"
    )
  if jax.process_count() > 1:
    raise RunError(f"job: translate runs in one process, here are {jax.process_count()}")
  try:
    import sacrebleu
  except ImportError as error:
    raise RunError(f"job: translate needs the sacrebleu package: {install('text')}") from error

  run = restore_states(config, workdir)
  split = config.evaluate.split
  source = run.source(run.dataset.splits()[split])
  text = cast(ParallelText, run.dataset)
  pairs = text.pairs[split][: len(source)]
  searches: dict[str, Search] = {
    "greedy": functools.partial(models.beam_decode, beam_size=1, length_penalty=0.0),
    "beam": functools.partial(models.beam_decode, **config.translate),
  }
  metric = sacrebleu.BLEU()
  bleu: dict[str, list[float]] = {}
  first: dict[str, list[str]] = {}
  for name, search in searches.items():
    beam_size = config.translate.beam_size if name == "beam" else 1
    decode = make_decode(run.program, search, text, beam_size=beam_size)
    for replica, state in enumerate(run.each()):
      title = name if config.replicas == 1 else f"{name}, replica {replica}"
      lines = text.text(_decode_all(decode, run, state, source, title))
      score = metric.corpus_score(lines, [[target for _, target in pairs]]).score
      bleu.setdefault(name, []).append(score)
      first.setdefault(name, lines)

  results = {"step": run.step, **averaged({f"{name}/bleu": np.array(all_) for name, all_ in bleu.items()})}
  about = {"split": split, "checkpoint": config.evaluate.checkpoint, **config.translate}
  about |= {"signature": str(metric.get_signature()), "replicas": bleu}
  write_json(workdir / "translate.json", results | about)
  blocks = [
    f"source     {source}\nreference  {reference}\ngreedy     {greedy}\nbeam       {beam}\n"
    for (source, reference), greedy, beam in zip(pairs, first["greedy"], first["beam"], strict=True)
  ]
  write_text(workdir / "translations.txt", "\n".join(blocks))
  return results


def make_decode(program: Program, search: Search, text: ParallelText, *, beam_size: int) -> Decode:
  """Builds `decode(state, inputs, number) -> tokens [batch, target_length]`; it reads only the source."""
  never = jnp.isin(jnp.arange(program.model.head.num_classes), jnp.array([PAD, BEGIN]))

  def decode(state: TrainState, inputs: Array, number: Array) -> Array:
    def apply(method: Callable[..., PyTree]) -> PyTree:
      return program.model.apply({"params": state.params, **state.model_state}, method=method)

    sources = inputs[:, : text.source_length]
    memory = apply(lambda model: model.backbone.encode(sources, train=False))
    # The hypotheses of a sequence are adjacent, and see the same source.
    sources, memory = (jnp.repeat(x, beam_size, axis=0) for x in (sources, memory))

    def next_log_probs(prefixes: Array, position: Array) -> Array:
      def outputs(model) -> dict[str, Array]:
        features = model.backbone.decode(prefixes, memory, sources, train=False)
        return model.head(features[:, position])

      # The key is for a prediction rule that samples.
      key = keys.numbered(keys.prediction(state.key, state.step, number), position)
      log_probs = program.method.predict(key, **apply(outputs))
      return jnp.where(never[None], -jnp.inf, log_probs)

    tokens, _ = search(next_log_probs, len(inputs), length=text.target_length, begin=BEGIN, end=END, pad=PAD)
    return tokens

  return decode


def _decode_all(
  decode: Decode, run: RestoredRun, state: TrainState, source: Source, title: str
) -> np.ndarray:
  mesh = run.replicas.mesh

  @functools.partial(jax.jit, out_shardings=NamedSharding(mesh, P()))
  def decode_batch(state, arrays, batch, number):
    return decode(state, gather(arrays, batch)["inputs"], number)

  parts = []
  options = {"desc": f"translating ({title})", "unit": "line", "file": sys.stderr, "disable": None}
  with tqdm(total=len(source), **options) as bar:  # on a terminal only
    for number, batch in enumerate(batches(source, run.batch_size, mesh)):
      parts.append(np.asarray(decode_batch(state, source.arrays, batch, jnp.uint32(number))))
      bar.update(min(len(parts[-1]), len(source) - bar.n))
  return np.concatenate(parts)[: len(source)]
