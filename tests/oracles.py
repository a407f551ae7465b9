"""What the functions should give, in float64 NumPy, written from the papers' equations in probability form.

Nothing here calls jaxreg. Noise is passed in, so that a sampled loss has one right answer.
"""

import itertools

import numpy as np

from jaxreg.calibration import Bins

EPS = 1e-20
# Names of weights, their shapes and the axes of one unit's incoming weights, by Flax's layouts.
LAYOUTS = (
  ("Dense_0/kernel", (3, 4), (0,)),
  ("Conv_0/kernel", (2, 3, 2, 4), (0, 1, 2)),
  ("Conv1D_0/kernel", (3, 2, 4), (0, 1)),
  ("attention/query/kernel", (6, 2, 3), (0,)),
  ("attention/key/kernel", (6, 2, 3), (0,)),
  ("attention/value/kernel", (6, 2, 3), (0,)),
  ("attention/out/kernel", (2, 3, 6), (0, 1)),
  ("query/kernel", (6, 4), (0,)),
  ("embed/embedding", (5, 3), (1,)),
  ("kernel", (4,), (0,)),
)


def f64(x) -> np.ndarray:
  return np.asarray(x, np.float64)


def sigmoid(x) -> np.ndarray:
  with np.errstate(over="ignore"):
    return 1 / (1 + np.exp(-f64(x)))


def one_hot(labels, classes) -> np.ndarray:
  return f64(np.asarray(labels)[..., None] == np.arange(classes))


def softmax(logits) -> np.ndarray:
  weights = np.exp(f64(logits))
  return weights / weights.sum(-1, keepdims=True)


def cross_entropy(logits, labels) -> np.ndarray:
  """`log(1 + sum exp(o_k - o_t))` keeps its digits when the loss is nearly zero."""
  logits, target = f64(logits), one_hot(labels, np.shape(logits)[-1])
  margins = logits - (logits * target).sum(-1, keepdims=True)
  return np.log1p((np.exp(margins) * (1 - target)).sum(-1))


def smoothed_cross_entropy(logits, labels, smoothing, over="all") -> np.ndarray:
  classes = np.shape(logits)[-1]
  wrong = smoothing / classes if over == "all" else smoothing / (classes - 1)
  target = one_hot(labels, classes)
  right = 1 - (classes - 1) * wrong
  return -((target * right + (1 - target) * wrong) * np.log(softmax(logits))).sum(-1)


def bernoulli_kl(q_logits, p_logits) -> np.ndarray:
  q, p, not_q, not_p = sigmoid(q_logits), sigmoid(p_logits), sigmoid(-f64(q_logits)), sigmoid(-f64(p_logits))
  return q * np.log(q / p) + not_q * np.log(not_q / not_p)


def bernoulli_entropy(logits) -> np.ndarray:
  on, off = sigmoid(logits), sigmoid(-f64(logits))
  return -(on * np.log(on) + off * np.log(off))


def masked_softmax(logits, mask) -> np.ndarray:
  weights = (f64(mask) + EPS) * np.exp(f64(logits))
  return weights / weights.sum(-1, keepdims=True)


def masked_log_softmax(logits) -> np.ndarray:
  """Of one example under all hard masks, `[2^n, n]`, in log space, for logits of any size."""
  gated = f64(logits) + np.log(all_masks(len(logits)) + EPS)
  return gated - np.logaddexp.reduce(gated, axis=-1, keepdims=True)


def relaxed_mask(posterior_logits, labels, noise, temperature) -> np.ndarray:
  """`noise` is logit u, `[samples, ..., classes]`."""
  mask = sigmoid((f64(posterior_logits) + f64(noise)) / temperature)
  return np.where(one_hot(labels, mask.shape[-1]) > 0, 1.0, mask)


def dropmax_terms(
  logits, retain_logits, residual_logits, labels, noise, posterior_logits=None, temperature=0.1
) -> dict[str, np.ndarray]:
  target = one_hot(labels, np.shape(logits)[-1])
  if posterior_logits is None:
    posterior_logits = f64(retain_logits) + f64(residual_logits)
  mask = relaxed_mask(posterior_logits, labels, noise, temperature)
  likelihood = (masked_softmax(logits, mask) * target).sum(-1)
  divergence = np.where(
    target > 0, -np.log(sigmoid(retain_logits)), bernoulli_kl(posterior_logits, retain_logits)
  )
  guess, not_guess = sigmoid(residual_logits), sigmoid(-f64(residual_logits))
  return {
    "nll": -np.log(likelihood).mean(0),
    "kl": divergence.sum(-1),
    "neg_entropy": -bernoulli_entropy(retain_logits).sum(-1),
    "auxiliary": -(target * np.log(guess) + (1 - target) * np.log(not_guess)).sum(-1),
  }


def dropmax_diagnostics(
  logits, retain_logits, residual_logits, labels, noise, posterior_logits=None, temperature=0.1
) -> dict[str, np.ndarray]:
  target = one_hot(labels, np.shape(logits)[-1])
  if posterior_logits is None:
    posterior_logits = f64(retain_logits) + f64(residual_logits)
  mask = relaxed_mask(posterior_logits, labels, noise, temperature)
  wrong = lambda x: (x * (1 - target)).sum(-1) / (1 - target).sum(-1)
  gradient = (masked_softmax(logits, mask) - target).mean(0)
  return {
    "retain_target": (sigmoid(retain_logits) * target).sum(-1),
    "retain_nontarget": wrong(sigmoid(retain_logits)),
    "posterior_nontarget": wrong(sigmoid(posterior_logits)),
    "kept_nontarget": wrong((mask > 0.5).mean(0)),
    "logit_grad_norm": np.linalg.norm(gradient, axis=-1),
  }


def sparsemax_probs(logits) -> np.ndarray:
  """Projects onto the simplex by trying every size of the support."""
  flat = f64(logits).reshape(-1, np.shape(logits)[-1])
  rows = []
  for row in flat:
    ordered = np.sort(row)[::-1]
    thresholds = (np.cumsum(ordered) - 1) / np.arange(1, len(row) + 1)
    size = max(k + 1 for k in range(len(row)) if ordered[k] > thresholds[k])
    rows.append(np.maximum(row - thresholds[size - 1], 0))
  return np.reshape(rows, np.shape(logits))


def sparsemax(logits, labels) -> np.ndarray:
  """Computes the loss from the threshold, as in the paper."""
  logits, probs = f64(logits), sparsemax_probs(logits)
  threshold = np.where(probs > 0, logits - probs, -np.inf).max(-1, keepdims=True)
  inside = (np.where(probs > 0, logits**2 - threshold**2, 0)).sum(-1)
  target = (logits * one_hot(labels, logits.shape[-1])).sum(-1)
  return 0.5 - target + inside / 2


def sampled_classes(noise, labels, fraction) -> np.ndarray:
  """The target and the others with the smallest `noise`, row by row."""
  classes = np.shape(noise)[-1]
  number = min(max(1, round(fraction * classes)), classes - 1)
  rows = []
  for row, label in zip(f64(noise).reshape(-1, classes), np.ravel(labels), strict=True):
    others = sorted((k for k in range(classes) if k != label), key=lambda k: row[k])
    rows.append([k == label or k in others[:number] for k in range(classes)])
  return np.reshape(rows, np.shape(noise))


def subset_cross_entropy(logits, labels, kept, correction=0.0) -> np.ndarray:
  """Cross-entropy over the classes in `kept`; `correction` is subtracted from all logits but the target's."""
  target = one_hot(labels, np.shape(logits)[-1])
  scores = f64(logits) - np.where(target > 0, 0, correction)
  margins = scores - (scores * target).sum(-1, keepdims=True)
  return np.log1p((np.exp(margins) * kept * (1 - target)).sum(-1))


def all_masks(n) -> np.ndarray:
  """The `2^n` hard masks, `[2^n, n]`."""
  return f64(list(itertools.product((0, 1), repeat=n)))


def mask_probabilities(masks, keep) -> np.ndarray:
  """Of independent entries kept with probabilities `keep`."""
  return np.prod(np.where(masks > 0, keep, 1 - f64(keep)), axis=-1)


def nll(log_probs, labels, weights) -> tuple[np.ndarray, np.ndarray]:
  picked = (f64(log_probs) * one_hot(labels, np.shape(log_probs)[-1])).sum(-1)
  return -(f64(weights) * picked).sum(), f64(weights).sum()


def brier(log_probs, labels, weights) -> tuple[np.ndarray, np.ndarray]:
  error = np.exp(f64(log_probs)) - one_hot(labels, np.shape(log_probs)[-1])
  return (f64(weights) * (error**2).sum(-1)).sum(), f64(weights).sum()


def ece_bins(log_probs, labels, weights, num_bins) -> Bins:
  """Bin by bin, from the definition: `(m - 1) / M < confidence <= m / M`."""
  probs = np.exp(f64(log_probs)).reshape(-1, np.shape(log_probs)[-1])
  confidence, weights = probs.max(-1), f64(weights).ravel()
  correct = f64(probs.argmax(-1) == np.ravel(labels))
  bins: dict[str, list] = {"confidence": [], "correct": [], "count": []}
  for m in range(1, num_bins + 1):
    inside = weights * ((m - 1) / num_bins < confidence) * (confidence <= m / num_bins)
    bins["confidence"].append((inside * confidence).sum())
    bins["correct"].append((inside * correct).sum())
    bins["count"].append(inside.sum())
  return Bins(**{name: f64(sums) for name, sums in bins.items()})


def ece(bins) -> np.ndarray:
  """The weighted mean over bins of |accuracy - confidence|."""
  total, gap = f64(bins.count).sum(), 0.0
  for confidence, correct, count in zip(*bins):
    if count > 0:
      gap += f64(count) / total * abs(f64(correct) / f64(count) - f64(confidence) / f64(count))
  return f64(gap)


def group_softmax(features, kernel, bias, labels, groups, power) -> np.ndarray:
  """(1 / a) sum_i CE(a zbar^i) from the whole tensor of ingredients, Eq. A.1 and A.2; any leading axes."""
  features, kernel, bias = f64(features), f64(kernel), f64(bias)
  ingredients = features[..., None] * kernel + bias / kernel.shape[0]
  loss = np.zeros(np.shape(labels))
  for group in range(int(np.max(groups)) + 1):
    logits = (ingredients * (np.asarray(groups) == group)[..., None]).sum(-2)
    target = np.take_along_axis(logits, np.asarray(labels)[..., None], -1)[..., 0]
    loss += np.logaddexp.reduce(power * logits, axis=-1) / power - target
  return loss


def feature_groups(scores, sizes) -> np.ndarray:
  """Eq. A.13 by a stable sort."""
  scores = np.asarray(scores)
  order = np.argsort(scores, axis=-1, kind="stable")
  groups = np.broadcast_to(np.repeat(np.arange(len(sizes)), sizes), scores.shape)
  out = np.empty(scores.shape, int)
  np.put_along_axis(out, order, groups, -1)
  return out


def scores(features, kernel, labels, weights) -> np.ndarray:
  """z_jy - sum_c weights_c z_jc, Eq. A.14 for uniform weights on the other classes."""
  target = np.moveaxis(f64(kernel)[:, labels], 0, -1)
  return f64(features) * (target - f64(weights) @ f64(kernel).T)


def uniform_others(labels, classes) -> np.ndarray:
  return (1 - one_hot(labels, classes)) / (classes - 1)


def posterior_others(features, kernel, bias, labels) -> np.ndarray:
  """The softmax of the whole logits over all classes but the label."""
  logits = f64(features) @ f64(kernel) + f64(bias)
  logits = np.where(one_hot(labels, logits.shape[-1]) > 0, -np.inf, logits)
  return softmax(logits - logits.max(-1, keepdims=True))


def transition_matrix(log_probs, quantile=1.0):
  """Row j: the predictions for the example at this quantile of the probability of class j."""
  rows = []
  for label in range(log_probs.shape[1]):
    ranked = sorted(range(len(log_probs)), key=lambda n: log_probs[n, label])
    rows.append(np.exp(log_probs[ranked[round(quantile * (len(log_probs) - 1))]]))
  return np.stack(rows)


def class_weights(counts, scheme="inverse", beta=0.999, limit=np.inf) -> np.ndarray:
  """Weights that fall with the count and whose mean over all examples is 1."""
  counts = f64(counts)
  effective = (1 - beta**counts) / (1 - beta)
  weights = 1 / {"inverse": counts, "sqrt": np.sqrt(counts), "effective": effective}[scheme]
  weights = np.minimum(weights, limit * weights.min())
  return weights * counts.sum() / (counts * weights).sum()


def linear(loss, features, kernel, labels, bias=0.0) -> np.ndarray:
  """The loss of all logits at once."""
  return loss(f64(features) @ f64(kernel) + bias, labels)


def semi_supervised(supervised, unsupervised, labels, weight=1.0) -> np.ndarray:
  """Values whose mean is the labelled mean plus `weight` times the unlabelled mean."""
  labelled = np.asarray(labels) >= 0
  share = np.where(labelled, labelled.mean(), 1 - labelled.mean())
  return np.where(labelled, supervised, weight * f64(unsupervised)) / share
