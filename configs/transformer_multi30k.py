"""The encoder-decoder transformer on Multi30k, English to German, with label smoothing: its first 2048 pairs.

Command: python run.py --config configs/transformer_multi30k.py --config.data.parallel_text.path=DIR
Translations: python examples/translate.py runs/transformer_multi30k-<hash>
DIR holds train, val and test_2016_flickr with .en and .de (.gz or not), as in Multi30k's task 1.

Source: Zhang, Zhou and Xu, `Dropout in training neural networks: flatness of solution and noise structure`,
2021, the transformer of the appendix: sizes, the first 2048 examples, full-batch Adam, warm-up over 4000 of
10 000 steps, dropout that keeps 0.9. Model, schedule, Adam's betas and epsilon and the smoothing of 0.1 are
of Vaswani et al., `Attention Is All You Need`, 2017. Not stated there, and ours: the tokens (4000 byte pairs
of both languages), one embedding for both, no biases in attention, and that the first 2048 pairs of at most
40 tokens are taken. The queries of a layer are one matrix for all heads,
`decoder_0/self_attention/query/kernel`.

A full batch needs about 8 GB; `--config.accumulate=8` computes it in parts, each with its own noise.
"""

from jaxreg.train import Config, base_config


def get_config() -> Config:
  config = base_config()
  config.data.name = "parallel_text"
  config.data.subset.num_train = 2048
  config.model.name = "Transformer"
  config.model.Transformer.dropout_rate = 0.1
  config.method.name = "label_smoothing"
  config.optimizer.name = "adam"
  config.optimizer.adam.b2 = 0.98
  config.optimizer.adam.eps = 1e-9
  config.optimizer.learning_rate = 1.0
  config.optimizer.schedule.name = "noam"
  config.batch_size = 2048
  config.epochs = 10_000  # one step each
  config.eval_every = 100
  config.eval_batch_size = 128
  config.checkpoint.every = 500
  config.checkpoint.best = "val/nll"
  return config
