"""The names of methods as their papers write them."""

PAPER_NAMES = {
  "arcface": "ArcFace",
  "bi_tempered": "bi-tempered",
  "confidence_penalty": "confidence penalty",
  "cosface": "CosFace",
  "deterministic_attention": "Deterministic Attention",
  "deterministic_dropmax": "Deterministic DropMax",
  "dropmax": "DropMax",
  "dropmax_qp": "DropMax (q = p)",
  "focal": "focal loss",
  "group_softmax": "group softmax",
  "label_smoothing": "label smoothing",
  "large_margin": "large margin",
  "logit_adjustment": "logit adjustment",
  "random_dropmax": "Random DropMax",
  "sampled_softmax": "Sampled Softmax",
}


def paper_name(label: str) -> str:
  """Returns the paper's name of the method that the label names, or else the label."""
  return PAPER_NAMES.get(label, label)
