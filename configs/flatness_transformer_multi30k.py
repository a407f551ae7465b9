"""The transformer on Multi30k with dropout, of the paper on dropout's noise and flat minima.

Command: python run.py --config configs/flatness_transformer_multi30k.py --config.data.parallel_text.path=DIR
Figures: python -m papers.flatness transformer_multi30k --config.data.parallel_text.path=DIR
         and with --small
         trains it without dropout and with three keep probabilities, and draws figures 1d, 2 and 3
Source: Zhang, Zhou and Xu, `Dropout in training neural networks: flatness of solution and noise structure`,
2021, appendix A. Accuracy is for the next token given the tokens before it.

Network, data and schedule come from `transformer_multi30k`. `small`: the first 512 pairs of at most 24
tokens, a vocabulary of 1000, 2000 steps with the warm-up scaled to 800, for a CPU. The source keeps 0.9; the
networks with 0.8 and 0.7 are ours. All four networks take about 3 CPU hours with their figures.
"""

from configs.transformer_multi30k import get_config as transformer_multi30k
from jaxreg.train import Config

VARIANTS = ("paper", "small")


def get_config(variant: str = "paper") -> Config:
  if variant not in VARIANTS:
    raise ValueError(f"argument must be {' or '.join(VARIANTS)}, got {variant!r}")
  config = transformer_multi30k()
  config.model.Transformer.dropout_rate = 0.1
  if variant == "small":
    config.data.subset.num_train = config.batch_size = 512
    config.data.parallel_text.vocab_size = 1000
    config.data.parallel_text.source_length = config.data.parallel_text.target_length = 24
    config.epochs = 2000
    config.optimizer.schedule.noam.warmup_steps = 800
  return config
