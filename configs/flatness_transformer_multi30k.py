"""Figures 1d, 2 and 3 of the paper on flat minima: the transformer on Multi30k, with dropout and without.

Command: python run.py --config configs/flatness_transformer_multi30k.py --config.data.parallel_text.path=DIR
Source: Zhang, Zhou and Xu, `Dropout in training neural networks: flatness of solution and noise structure`,
2021, appendix A; variance and curvature in the queries of the first block of the decoder. The source does not
say which attention's queries; here they are the self-attention's. Accuracy is for the next token given the
tokens before it.

Network, data and schedule come from `transformer_multi30k`. Figure 3 has the 50 largest of 4000
eigenpairs, by Lanczos; `flatness.projected_variance.eigenpairs=0` gives all. `small`: the first 512 pairs of
at most 24 tokens, a vocabulary of 1000, 2000 steps with the warm-up scaled to 800, for a CPU. The source
keeps 0.9; the rows with 0.8 and 0.7 are ours, for figures 1 and 3. The four take about 3 CPU hours.
"""

from configs.transformer_multi30k import get_config as transformer_multi30k
from jaxreg.train import Config

VARIANTS = ("paper", "small")


def get_config(variant: str = "paper") -> Config:
  if variant not in ("paper", "small"):
    raise ValueError(f"argument must be paper or small, got {variant!r}")
  config = transformer_multi30k()
  config.job = "flatness"
  config.model.Transformer.dropout_rate = 0.0
  config.flatness.mask = ("backbone/decoder_0/self_attention/query/kernel",)
  config.flatness.projected_variance.eigenpairs = 50
  if variant == "small":
    config.data.parallel_text.num_examples = config.batch_size = 512
    config.data.parallel_text.vocab_size = 1000
    config.data.parallel_text.source_length = config.data.parallel_text.target_length = 24
    config.epochs = 2000
    config.optimizer.schedule.noam.warmup_steps = 800
    config.flatness.variance_flatness.samples = 500
    config.flatness.variance_flatness.directions = 30
    # Attention saturates: with 256 pairs the loss doubled along no direction in its queries.
    config.flatness.variance_flatness.factors = (1.1,)
    config.flatness.projected_variance.samples = 500
  # Of figure 2 with more dropout nothing can be fitted: the loss hardly rises by a tenth.
  figure_3 = {"flatness.analyses": ("profile", "projected_variance")}
  both = {"flatness.analyses": ("profile", "variance_flatness", "projected_variance")}
  config.flatness.rows = {
    "no dropout": {},
    "keep 0.9": {"model.Transformer.dropout_rate": 0.1, **both},
    "keep 0.8": {"model.Transformer.dropout_rate": 0.2, **figure_3},
    "keep 0.7": {"model.Transformer.dropout_rate": 0.3, **figure_3},
  }
  return config
