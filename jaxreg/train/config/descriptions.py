"""What each field of the configuration means and may be, where no function's docstring says so.

`*` in a name stands for any name.
"""

from jaxreg.train.config import fields
from jaxreg.train.step import averages, predict, schedule
from jaxreg.train.step.rules import GROUPINGS

DESCRIPTIONS = {
  "job": "What to do.",
  "seed": "Determines the initial weights, the order of the data and all noise.",
  "batch_size": "Labelled examples in a batch, on all devices together.",
  "epochs": "Length of the run in passes over the training examples.",
  "steps": "Length of the run in steps instead of epochs; 0: `epochs` counts.",
  "eval_every": "Epochs between evaluations on the validation split.",
  "eval_batch_size": "Examples in a batch of an evaluation.",
  "parallel": "How a step runs on several devices.",
  "replicas": "Runs side by side, with seeds from `seed` on; results are means over them.",
  "ensemble": "Replicas in a row that predict together, by the mean of their probabilities.",
  "replicas_by": "How replicas run: vmap, one program for all; loop, one program, called for each.",
  "steps_per_dispatch": "Steps that one call of the compiled program makes; 0: 1 on a CPU, else 8.",
  "mesh.model": "Devices on the axis `model`; batches are split over the other axis, `data`.",
  "mesh.shard": (
    "How parameters are split: head (classes over `model`), fsdp (largest dimension over `data`), or "
    "'GLOB: DIMENSION=AXIS', as in 'head/*: -1=model' or '*: largest=data+model'. The first rule that "
    "matches a parameter counts."
  ),
  "mesh.min_size": "Rules with the dimension `largest` leave smaller parameters whole.",
  "accumulate": "Parts of a batch whose gradients are added up, if a batch does not fit into memory.",
  "precision": "Number format of the layers; parameters, losses and masks are float32.",
  "compilation_cache": "Keep compiled programs in ~/.cache/jaxreg, for the next start.",
  "stacks_after": (
    "If a step does not end within this many minutes, the stacks of all threads are written to "
    "stacks-<process>.txt in the work directory; 0: never."
  ),
  "log_every": "Steps between training records.",
  "watch.steps": "Warn after this many steps in a row without learning; 0: never.",
  "data.name": "Where the examples come from.",
  "data.limit": "Examples of each split to use, the first ones; 0: all.",
  "data.resident_gib": "Data sets larger than this, in GiB, stay on the host.",
  "data.subset.num_classes": "Classes to keep, drawn by the seed; 0: all.",
  "data.subset.per_class": "Training examples of each class to keep, drawn by the seed; 0: all.",
  "data.subset.seed": "Seed of the subset.",
  "data.flipped_labels.rate": "Fraction of the training labels that are replaced by another class.",
  "data.flipped_labels.seed": "Seed that draws the labels to replace, and their new classes.",
  "data.bootstrap": "Each run resamples its training set: as many examples, drawn with replacement.",
  "data.unlabelled.batch_size": "Examples outside the subset that join each batch, without their labels.",
  "augment.names": "Applied in this order to the stored inputs of training batches.",
  "augment.mean": "Value for each channel that is subtracted from all scaled inputs.",
  "augment.std": "Value for each channel that divides all scaled inputs, after the subtraction of the mean.",
  "model.name": "The network under the head.",
  "model.unbalance": (
    "At the start, rescales the hidden units of an MLP without changing its function; the logarithms of the "
    "factors have this standard deviation."
  ),
  "method.name": "The head, the loss and the prediction rule.",
  "regularizers.names": "Terms that are added to the loss.",
  "regularizers.mask": "Function of jaxreg.paths that selects the parameters of penalties.",
  "regularizers.dual_learning_rate": "Learning rate of the multipliers of penalties with a limit.",
  "regularizers.*.weight": "Factor of the term in the loss.",
  "regularizers.*.limit": (
    "Makes the penalty a constraint, at most this value; dual ascent finds its multiplier; 0: no limit."
  ),
  "regularizers.*.clip": "Bounds of the moved inputs, the least and the largest; (): no bounds.",
  "regularizers.trades.eps": "Radius of the ball around an input, in units of the scaled inputs.",
  "regularizers.trades.step_size": "Length of a step of the attack.",
  "regularizers.trades.num_steps": "Steps of the attack.",
  "regularizers.trades.norm": "Norm of the ball: linf, l2 or l1.",
  "regularizers.fixmatch.num_ops": "RandAugment's operations for each strong view.",
  "regularizers.fixmatch.magnitude": "RandAugment's magnitude, in [0, 10].",
  "regularizers.fixmatch.cutout_size": "Side of the gray square of the strong view in pixels; 0: none.",
  "regularizers.fixmatch.threshold": "How sure the weak view's prediction must be, in [0, 1].",
  "regularizers.augmix.num_chains": "Chains of operations that each view mixes.",
  "regularizers.augmix.num_ops": "The most operations of a chain.",
  "regularizers.augmix.severity": "The largest magnitude of an operation, in [0.1, 10].",
  "regularizers.augmix.alpha": "Parameter of the Dirichlet and beta distributions of the mixtures.",
  "average.name": (
    "The parameters that predict: none, the last ones; early_stopping, the ones with the best "
    "checkpoint.best; swa, their mean over the end of the run; swag, draws from a Gaussian of the same "
    "iterates; ema, their exponential mean."
  ),
  "average.early_stopping.patience": "The run ends after this many evaluations without a better one.",
  "average.early_stopping.min_delta": "Smaller gains of the metric do not count.",
  "average.swa.start": "Fraction of the run after which the mean begins.",
  "average.swa.every": "Steps between the iterates of the mean; 0: an epoch.",
  "average.swag.start": "Fraction of the run after which iterates are collected.",
  "average.swag.every": "Steps between the iterates; 0: an epoch.",
  "average.swag.rank": "How many of the last iterates give the covariance beside its diagonal.",
  "average.swag.samples": "Draws of the parameters that a prediction averages over.",
  "average.swag.scale": "Factor of the covariance.",
  "average.ema.decay": "Decay of the exponential mean, per step, after its warm-up.",
  "average.ema.warmup": "In step t the decay is at most 1 - (1 + (t - 1) / warmup) ** -power.",
  "average.ema.power": "See `warmup`; with 1 and warmup 1, the mean begins as the plain mean.",
  "noise.names": "Noise in training: on the scaled inputs, the labels or the parameters.",
  "noise.mask": "Function of jaxreg.paths that selects the parameters with noise.",
  "pretrained.workdir": "Fine-tuning: take the backbone of the run in this work directory.",
  "pretrained.checkpoint": "Which checkpoint of that run.",
  "pretrained.replica": "Which replica of that run.",
  "teacher.workdir": "Distillation: learn from the predictions of the run in this work directory.",
  "teacher.checkpoint": "Which checkpoint of that run.",
  "teacher.replica": "Which replica of that run.",
  "method.*.predict.num_samples": "Sampled masks that a prediction averages over; 0: none is drawn.",
  "method.group_softmax.predict.logit_scale": "Factor of the logits before the softmax of the prediction.",
  "method.logit_adjustment.loss.class_counts": "Training examples of each class.",
  "method.logit_adjustment.loss.strength": "Factor of the log-frequencies that are added to the logits.",
  "method.multitask.loss.weight": "Weight of each further task, unless the head learns the weights.",
  "method.group_softmax.loss.form": "How the loss is computed; auto chooses by the sizes.",
  "method.group_softmax.loss.grouping": "The rule that assigns features to groups.",
  "method.group_softmax.loss.kind": (
    "The bound of the softmax loss: type I has the power G; type II, the larger bound, has the power 1."
  ),
  "method.group_softmax.loss.num_groups": "Groups of features, G.",
  "method.group_softmax.loss.power": "The power; None: the power of the kind.",
  "optimizer.name": "The optimizer, or a wrapper of another one.",
  "optimizer.learning_rate": "The largest learning rate of the schedule.",
  "optimizer.clip_norm": "Largest norm of the gradient; 0: no clipping.",
  "optimizer.*.inner": "The optimizer that the wrapper wraps.",
  "optimizer.*.nesterov": "Whether momentum is Nesterov's.",
  "optimizer.asam.eta": "Added to the sizes of the weights, so that weights near 0 move, too.",
  "optimizer.*.eta": "Variance of the gradient's noise at the first step.",
  "optimizer.*.gamma": "The noise's variance falls as (1 + step) to the power of minus this value.",
  "optimizer.layer_decay.layers": "Names of the parameters of each layer, from the input to the output.",
  "optimizer.mahalanobis.metric": "The metric of the steepest descent, as 'GLOB: NUMBER' entries.",
  "optimizer.reparameterize.coordinates": "The coordinates in which a step is made.",
  "optimizer.reparameterize.scale": "Scale of these coordinates.",
  "optimizer.constraints.names": "Constraints on the parameters, applied after each step in this order.",
  "optimizer.constraints.mask": "Function of jaxreg.paths that selects the parameters of constraints.",
  "optimizer.weight_decay.rate": "Strength of the weight decay; 0: none.",
  "optimizer.weight_decay.decoupled": "Decay after the optimizer's scaling (as AdamW), not in the gradient.",
  "optimizer.weight_decay.mask": "Function of jaxreg.paths that selects the parameters that decay.",
  "optimizer.schedule.name": "Shape of the learning rate after the warm-up.",
  "optimizer.schedule.warmup_epochs": "Epochs in which the learning rate rises linearly from 0.",
  "optimizer.schedule.step.boundaries": "Epochs at which the rate falls.",
  "optimizer.schedule.step.factor": "Factor of the rate at each boundary.",
  "optimizer.schedule.step.relative": "Boundaries are fractions of the run instead of epochs.",
  "optimizer.schedule.cosine.final": "The last rate, as a fraction of the largest.",
  "optimizer.schedule.noam.d_model": "Width of the transformer, which scales the rate.",
  "optimizer.schedule.noam.warmup_steps": "Steps of the linear warm-up.",
  "checkpoint.every": "Epochs between checkpoints.",
  "checkpoint.every_steps": "Steps between additional checkpoints; 0: none.",
  "checkpoint.every_minutes": "Minutes between additional checkpoints; 0: none.",
  "checkpoint.keep": "How many of the latest checkpoints are kept, beside the best one.",
  "checkpoint.best": "The metric of the best checkpoint.",
  "checkpoint.wait": "Block training until a checkpoint is on disk; else write it beside the training.",
  "evaluate.checkpoint": "Checkpoint to evaluate.",
  "evaluate.split": "Split to evaluate.",
  "evaluate.mc_samples": "A prediction is the mean over this many draws of the noise; 0: without noise.",
  "evaluate.combine": "The mean over the draws of the noise; weight_scaling: no draws, and the noise's mean.",
  "evaluate.mirror": "A prediction is the mean of the probabilities of an image and of its mirror image.",
  "evaluate.ood": (
    "Images from elsewhere that the predictions are to tell from the split's, as ('rotated', 'noise'): the "
    "split's rotated by 90 degrees or inverted, noise, or scikit-learn's digits. The energy is that of the "
    "image alone, even with evaluate.mirror."
  ),
  "evaluate.measures": (
    "More measures, as ('mce', 'temperature', 'conformal'): mce, adaptive_ece or classwise_ece; temperature, "
    "conformal, aps or laplace (of the last layer), which learn from the validation split."
  ),
  "evaluate.alpha": "How often a conformal prediction set may miss the label.",
  "compare.rows": "Rows of the comparison: methods, or 'label: field=value ...'.",
  "compare.grid": (
    "Settings to search on the validation split: 'field=value,value,...', or 'label: field=value,...'."
  ),
  "compare.seeds": "Number of seeds of each row.",
  "compare.choose": "The metric that chooses among the settings of the grid.",
  "flatness.rows": "Networks to train and analyse: 'label: field=value ...'.",
  "flatness.workdir": "A trained run to analyse instead.",
  "flatness.checkpoint": "Checkpoint to analyse.",
  "flatness.replica": "Replica to analyse.",
  "flatness.analyses": "Analyses to run.",
  "flatness.where": "Names of the parameters to analyse.",
  "flatness.examples": "Training examples that the loss is over, the first ones; 0: all.",
  "flatness.parts": (
    "Parts of the examples with noise and BatchNorm's moments of their own, from which gradient samples are "
    "made; 1: samples are of the whole gradient."
  ),
  "flatness.seed": "Seed of the noise, of the isotropic control and of Lanczos' start.",
  "flatness.profile.directions": "Number of random directions.",
  "flatness.profile.points": "Points along each direction.",
  "flatness.profile.reach": "Distance of the last point, in norms of the parameters.",
  "flatness.profile.granularity": "The part of a direction that is scaled to the norm of its parameters.",
  "flatness.*.samples": "Number of points of the trajectory, and of gradients.",
  "flatness.variance_flatness.factors": "Factors by which the loss rises at the ends of an interval.",
  "flatness.variance_flatness.directions": "Principal components to measure, evenly spaced; 0: all.",
  "flatness.variance_flatness.tolerance": "Variances below this fraction of the largest do not count.",
  "flatness.projected_variance.eigenpairs": (
    "Number of the largest eigenpairs, by Lanczos; 0: all, from the dense Hessian."
  ),
  "flatness.projected_variance.tolerance": "Eigenvalues below this fraction of the largest do not count.",
  "flatness.alignment.noises": "Noise added for the analysis at every checkpoint: 'label: field=value ...'.",
  "flatness.alignment.num_masks": "Draws of the noise for each example.",
}


CHECKPOINTS = ("latest", "best")


MASKS = ("everything", "kernels_only", "no_branches")


CHOICES = {
  "job": fields.JOBS,
  "parallel": ("jit", "pmap"),
  "replicas_by": ("auto", "vmap", "loop"),
  "precision": fields.PRECISIONS,
  "checkpoint.best": fields.BEST,
  "compare.choose": fields.BEST,
  "evaluate.split": fields.SPLITS,
  "evaluate.combine": predict.COMBINE,
  "evaluate.checkpoint": CHECKPOINTS,
  "pretrained.checkpoint": CHECKPOINTS,
  "teacher.checkpoint": CHECKPOINTS,
  "flatness.checkpoint": CHECKPOINTS,
  "method.group_softmax.loss.form": ("auto", "dense", "scan", "gather"),
  "method.group_softmax.loss.grouping": GROUPINGS,
  "method.group_softmax.loss.kind": ("I", "II"),
  **dict.fromkeys(
    ("noise.mask", "regularizers.mask", "optimizer.constraints.mask", "optimizer.weight_decay.mask"), MASKS
  ),
  "average.name": averages.AVERAGES,
  "augment.auto_augment.policy": ("cifar10", "imagenet", "svhn"),
  "optimizer.schedule.name": schedule.SCHEDULES,
  "flatness.analyses": ("profile", "variance_flatness", "projected_variance", "alignment"),
}
