"""The table of methods, and the page that is written from it: `docs/methods.md`.

    python docs/methods.py

A row names a method, its functions, its config and its source. What a function does stands in the first
sentence of its docstring. A test fails when the page is out of date, or when a public function has no row.
"""

import importlib
import inspect
import re
from pathlib import Path
from typing import Any, NamedTuple


class Row(NamedTuple):
  """One method. `.name` in `functions` is in the folder of the name before it."""

  method: str
  functions: str
  config: str
  source: str


ALONE = "as a function"
ANALYSIS = "analysis"
NA = "Na, Regularization for Deep Learning, lecture"
CTU = "lecture 8 of Deep Learning (BEV033DLE), Czech Technical University in Prague"
ZHANG = "Zhang, Zhou and Xu, Dropout in training neural networks, 2021"
FGSM = "Goodfellow, Shlens and Szegedy, Explaining and Harnessing Adversarial Examples, 2015"
KOBAYASHI = "Kobayashi, Group Softmax Loss with Discriminative Feature Grouping, 2021"
BASELINE = "DropMax's baseline"

SECTIONS: dict[str, list[Row]] = {
  "Losses": [
    Row(
      "DropMax",
      "losses.dropmax .dropmax_terms .dropmax_log_probs .dropmax_monte_carlo_log_probs .dropmax_heads "
      ".dropmax_log_mask .dropmax_mask .dropmax_masked_logits .dropmax_diagnostics models.DropMaxHead",
      "`dropmax_digits`, `dropmax_mnist`, `dropmax_cifar10`, `dropmax_cifar100`, `dropmax_awa2`, "
      "`dropmax_cub200`",
      "Lee et al., DropMax: Adaptive Variational Softmax, 2018",
    ),
    Row(
      "Softmax",
      "losses.softmax_cross_entropy .softmax_log_probs models.SoftmaxHead",
      "`softmax_digits`, or `method.name=softmax`",
      "accurate near zero loss",
    ),
    Row(
      "Group softmax",
      "losses.group_softmax .group_softmax_and_logits .group_softmax_log_probs .discriminative_scores "
      ".rival_scores .posterior_scores .interleaved_scores .random_scores .fixed_scores .feature_groups "
      "models.GroupSoftmaxHead",
      "`group_softmax_digits`, `group_softmax_imagenet`, `group_softmax_food101`, "
      "`group_softmax_caltech256`, `group_softmax_sun397`, `compare_group_softmax`",
      KOBAYASHI,
    ),
    Row(
      "Sparsemax",
      "losses.sparsemax .sparsemax_log_probs .sparsemax_probs",
      "`method.name=sparsemax`",
      "Martins and Astudillo, From Softmax to Sparsemax, 2016",
    ),
    Row(
      "Sampled softmax",
      "losses.sampled_softmax .sample_classes",
      "`method.name=sampled_softmax`",
      "Jean et al., On Using Very Large Target Vocabulary, 2015",
    ),
    Row(
      "Random DropMax",
      "losses.random_dropmax .random_dropmax_mask",
      "`method.name=random_dropmax`",
      BASELINE,
    ),
    Row(
      "Deterministic attention",
      "losses.deterministic_attention models.AttentionHead",
      "`method.name=deterministic_attention`",
      BASELINE,
    ),
    Row(
      "Deterministic DropMax",
      "losses.deterministic_dropmax .deterministic_dropmax_terms",
      "`method.name=deterministic_dropmax`",
      BASELINE,
    ),
    Row("DropMax, q = p", "losses.dropmax_qp .dropmax_qp_terms", "`method.name=dropmax_qp`", BASELINE),
    Row(
      "Label smoothing",
      "losses.label_smoothing",
      "`toolbox_digits:label_smoothing`, or `method.name=label_smoothing`",
      "Szegedy et al., Rethinking the Inception Architecture, 2016",
    ),
    Row(
      "Focal loss",
      "losses.focal",
      "`toolbox_digits:focal`, or `method.name=focal`",
      "Lin et al., Focal Loss for Dense Object Detection, 2017",
    ),
    Row(
      "Confidence penalty",
      "losses.confidence_penalty",
      "`toolbox_digits:confidence_penalty`, or `method.name=confidence_penalty`",
      "Pereyra et al., Penalizing Confident Output Distributions, 2017",
    ),
    Row(
      "Large margin in softmax",
      "losses.large_margin",
      "`toolbox_digits:large_margin`",
      "Kobayashi, Large Margin In Softmax Cross-Entropy Loss, 2019",
    ),
    Row(
      "Logit adjustment",
      "losses.logit_adjustment",
      "`toolbox_digits:logit_adjustment`",
      "Menon et al., Long-tail learning via logit adjustment, 2021",
    ),
    Row(
      "CosFace, ArcFace",
      "losses.cosface .arcface .cosine_log_probs models.CosineHead",
      "`toolbox_digits:cosface`, `toolbox_digits:arcface`",
      "Wang et al., CosFace, 2018; Deng et al., ArcFace, 2019",
    ),
    Row(
      "Bi-tempered loss",
      "losses.bi_tempered .bi_tempered_log_probs",
      "`toolbox_digits:bi_tempered`",
      "Amid et al., Robust Bi-Tempered Logistic Loss, 2019",
    ),
    Row("Poly-1", "losses.poly_loss", "`method.name=poly_loss`", "Leng et al., PolyLoss, 2022"),
    Row(
      "Knowledge distillation; any loss of soft labels takes a teacher's probabilities",
      "losses.distillation",
      "`toolbox_digits:distillation`, with `teacher.workdir`",
      "Hinton, Vinyals and Dean, Distilling the Knowledge in a Neural Network, 2015",
    ),
    Row("z-loss", "losses.z_loss", "`toolbox_digits:z_loss`", "Chowdhery et al., PaLM, 2022"),
    Row(
      "R-Drop",
      "losses.r_drop",
      "`toolbox_digits:r_drop`",
      "Liang et al., R-Drop: Regularized Dropout for Neural Networks, 2021",
    ),
  ],
  "Unlabelled examples, several tasks": [
    Row(
      "Entropy minimisation, pseudo-labels; FixMatch is `losses.pseudo_label` of two views",
      "losses.entropy .pseudo_label",
      "`toolbox_digits:entropy`, `toolbox_digits:pseudo_label`, `toolbox_digits:fixmatch`, "
      "`softmax_fixmatch_mnist`",
      "Grandvalet and Bengio, 2004; Lee, Pseudo-Label, 2013; Sohn et al., FixMatch, 2020",
    ),
    Row(
      "Pi-model, mean teacher",
      "losses.consistency averaging.mean_teacher_init .mean_teacher_update",
      "`toolbox_digits:pi_model`, `toolbox_digits:mean_teacher`",
      "Laine and Aila, Temporal Ensembling, 2017; "
      "Tarvainen and Valpola, Mean teachers are better role models, 2017",
    ),
    Row(
      "Labelled and unlabelled examples in one batch, with any of these, `losses.reconstruction` or "
      "`adversarial.vat_loss`",
      "losses.semi_supervised",
      "`autoencoder_digits:semi_supervised`, `data.unlabelled.batch_size`",
      NA,
    ),
    Row(
      "Autoencoders, denoising, tied; a decoder beside a classifier",
      "losses.reconstruction models.Autoencoder .DecoderHead .DecodingHead",
      "`autoencoder_digits`, `toolbox_digits:reconstruction`, `method.name=autoencoder`",
      "Vincent et al., Denoising Autoencoders, 2008",
    ),
    Row(
      "Several tasks, with given or learned weights",
      "losses.multitask .multitask_terms .uncertainty_weighting .uncertainty_weighting_terms "
      "models.TaskHeads .CoarseTasksHead",
      "`multitask_digits`, `method.name=multitask`",
      "Caruana, Multitask Learning, 1997; Kendall, Gal and Cipolla, Using Uncertainty to Weigh Losses, 2018",
    ),
  ],
  "Penalties": [
    Row(
      "A loss with penalties",
      "penalties.penalized .penalized_terms",
      "`regularizers.names`",
      "the sum of a loss and weighted penalties",
    ),
    Row(
      "L2, L1, elastic net",
      "penalties.l2 .l1 .elastic_net",
      "`toolbox_digits:l2`, `toolbox_digits:l1`, `toolbox_digits:elastic_net`",
      "Tibshirani, Regression shrinkage and selection via the lasso, 1996; "
      "Zou and Hastie, The elastic net, 2005",
    ),
    Row(
      "Group lasso",
      "penalties.group_lasso",
      "`toolbox_digits:group_lasso`",
      "Yuan and Lin, Regression with grouped variables, 2006",
    ),
    Row("Hoyer-Square", "penalties.hoyer", "`toolbox_digits:hoyer`", "Yang, Wen and Li, DeepHoyer, 2020"),
    Row(
      "Orthogonality",
      "penalties.orthogonality",
      "`toolbox_digits:orthogonality`",
      "Brock et al., Neural Photo Editing, 2017",
    ),
    Row(
      "Gaussian and Laplace priors",
      "penalties.gaussian_prior .laplace_prior",
      "`toolbox_digits:gaussian_prior`, `toolbox_digits:laplace_prior`",
      "negative log densities with their constants",
    ),
    Row(
      "Tied parameters, L2 to a start",
      "penalties.tying .l2_sp",
      "`toolbox_digits:tying`, `toolbox_digits:l2_sp`",
      "Li, Grandvalet and Davoine, Explicit Inductive Bias for Transfer Learning, 2018",
    ),
    Row(
      "Sparse activations, and how co-adapted they are",
      "penalties.l1_activity .kl_sparsity .sparsity .coadaptation",
      "`toolbox_digits:l1_activity`, `toolbox_digits:kl_sparsity`",
      "Ng, Sparse autoencoder, 2011",
    ),
    Row(
      "Gradient and Jacobian penalties",
      "penalties.gradient_penalty .jacobian_penalty",
      "`toolbox_digits:gradient_penalty`, `toolbox_digits:jacobian_penalty`",
      "Drucker and LeCun, Double backpropagation, 1992; Hoffman, Roberts and Yaida, 2019",
    ),
  ],
  "Constraints": [
    Row(
      "Proximal steps, exact zeros",
      "constraints.proximal .prox_l1 .prox_elastic_net .prox_group_lasso .prox_l0 .prox_non_negative "
      ".soft_threshold",
      "`toolbox_digits:prox_l1`, `toolbox_digits:prox_elastic_net`, `toolbox_digits:prox_group_lasso`, "
      "`toolbox_digits:prox_l0`, `toolbox_digits:prox_non_negative`",
      "Parikh and Boyd, Proximal Algorithms, 2014",
    ),
    Row(
      "FISTA with backtracking, for losses without noise",
      "constraints.fista optim.fista",
      "`optimizers_digits:fista`, on the whole training set at once; `examples/lasso.py`",
      "Beck and Teboulle, A Fast Iterative Shrinkage-Thresholding Algorithm, 2009",
    ),
    Row(
      "Max-norm and other norms per unit",
      "constraints.project .apply_updates_and_project .max_norm .unit_norm .min_max_norm",
      "`toolbox_digits:max_norm`, `toolbox_digits:unit_norm`, `toolbox_digits:min_max_norm`",
      "Hinton et al., Improving neural networks, 2012",
    ),
    Row(
      "Bounds by a multiplier",
      "constraints.lagrangian .dual_init .dual_step",
      "`toolbox_digits:l2_limit`",
      "KKT conditions, dual ascent",
    ),
  ],
  "Noise": [
    Row(
      "Dropout",
      "noise.dropout .dropout_mask .dropout_mean models.Dropout",
      "`toolbox_digits:dropout`, or `model.MLP.dropout_rate=0.5`",
      "Srivastava et al., Dropout, 2014",
    ),
    Row("A noise function as a layer", "noise.layer models.NNXNoise", ALONE, "for Equinox and NNX"),
    Row(
      "Gaussian noise, Gaussian dropout",
      "noise.gaussian_noise .gaussian_dropout models.GaussianNoise .GaussianDropout",
      "`toolbox_digits:gaussian_noise`, `toolbox_digits:gaussian_dropout`, `toolbox_digits:hidden_noise`",
      "Bishop, Training with Noise is Equivalent to Tikhonov Regularization, 1995; "
      "Srivastava et al., Dropout, 2014",
    ),
    Row(
      "Noise on embeddings (NEFTune)",
      "noise.embedding_noise",
      "`model.Transformer.embedding_noise_alpha`",
      "Jain et al., NEFTune, 2023",
    ),
    Row(
      "DropConnect",
      "noise.dropconnect .dropconnect_moments .dropconnect_params models.DropConnectDense",
      "`toolbox_digits:dropconnect`",
      "Wan et al., Regularization of Neural Networks using DropConnect, 2013",
    ),
    Row(
      "Spatial dropout, DropBlock",
      "noise.spatial_dropout .drop_block .drop_block_mask models.SpatialDropout .DropBlock",
      "`toolbox_digits:spatial_dropout`, `toolbox_digits:drop_block`",
      "Tompson et al., Efficient Object Localization, 2015; Ghiasi, Lin and Le, DropBlock, 2018",
    ),
    Row(
      "Stochastic depth",
      "noise.stochastic_depth .drop_path_rates models.StochasticDepth",
      "`toolbox_digits:stochastic_depth`, `model.CifarResNet.branch_schedule`",
      "Huang et al., Deep Networks with Stochastic Depth, 2016",
    ),
    Row(
      "Alpha dropout",
      "noise.alpha_dropout models.AlphaDropout",
      "`toolbox_digits:alpha_dropout`",
      "Klambauer et al., Self-Normalizing Neural Networks, 2017",
    ),
    Row(
      "Concrete dropout",
      "noise.concrete_dropout .concrete_dropout_kl penalties.learned_dropout models.ConcreteDropout "
      ".ConcreteDropoutDense",
      "`toolbox_digits:concrete_dropout`",
      "Gal, Hron and Kendall, Concrete Dropout, 2017",
    ),
    Row(
      "Variational dropout",
      "noise.variational_dropout .variational_dropout_kl models.VariationalDropoutDense",
      "`toolbox_digits:variational_dropout`",
      "Kingma, Salimans and Welling, Variational Dropout, 2015; Molchanov, Ashukha and Vetrov, 2017",
    ),
    Row(
      "Shake-shake, ShakeDrop",
      "noise.shake_shake .shake_drop",
      "`toolbox_digits:shake_shake`, `toolbox_digits:shake_drop`",
      "Gastaldi, Shake-Shake regularization, 2017; Yamada et al., ShakeDrop, 2019",
    ),
    Row(
      "Token or patch dropout",
      "noise.token_dropout .token_dropout_indices",
      "`toolbox_digits:token_dropout`",
      "Liu et al., PatchDropout, 2022",
    ),
    Row(
      "Weight noise, also in RNNs",
      "noise.weight_noise .rnn_weight_noise .rnn_weight_noise_init models.RNN",
      "`toolbox_digits:weight_noise`, `toolbox_digits:rnn_weight_noise`",
      "Graves, Practical Variational Inference, 2011; "
      "Jim, Giles and Horne, Noise in Recurrent Neural Networks, 1996",
    ),
    Row("Label noise", "noise.label_noise", "`toolbox_digits:label_noise`", "its mean is label smoothing"),
    Row(
      "Recurrent dropout, also in `models.RNN`",
      "noise.recurrent_dropout",
      "`toolbox_digits:recurrent_dropout`",
      "Gal and Ghahramani, Dropout in Recurrent Neural Networks, 2016",
    ),
    Row(
      "Weight scaling",
      "noise.scale_weights",
      "`toolbox_digits:weight_scaling_mean`, or `evaluate.combine=weight_scaling`",
      "Hinton et al., Improving neural networks by preventing co-adaptation, 2012",
    ),
  ],
  "Reparametrised weights": [
    Row(
      "Weight and spectral normalisation",
      "reparam.weight_norm .weight_norm_init .spectral_norm .spectral_norm_init models.WeightNormDense "
      ".SpectralNormDense",
      "`toolbox_digits:weight_norm`, `toolbox_digits:spectral_norm`",
      "Salimans and Kingma, Weight Normalization, 2016; Miyato et al., Spectral Normalization, 2018",
    ),
    Row(
      "Weight standardisation",
      "reparam.weight_standardization models.StandardizedConv",
      "`toolbox_digits:standardized`, `model.CifarResNet.standardized`, `model.ResNet.standardized`",
      "Qiao et al., Weight Standardization, 2019",
    ),
    Row(
      "LayerScale",
      "models.LayerScale",
      "`toolbox_digits:layer_scale`, `model.CifarResNet.layer_scale`, `model.ResNet.layer_scale`",
      "Touvron et al., Going deeper with Image Transformers, 2021",
    ),
  ],
  "Augmentation": [
    Row(
      "Pad-crop, translate, flip",
      "augment.pad_crop .translate .flip",
      "`dropmax_cifar10`, `dropmax_cifar100`, `toolbox_digits:translate`",
      "He et al., Deep Residual Learning, 2016",
    ),
    Row(
      "Colour noise (lighting); crops of a drawn scale by `data.stream.sides`",
      "augment.lighting",
      "`group_softmax_imagenet:all-he`",
      "Krizhevsky, Sutskever and Hinton, ImageNet Classification, 2012; He et al., 2016",
    ),
    Row(
      "Rotate, scale",
      "augment.rotate .scale",
      "`toolbox_digits:rotate`, `toolbox_digits:scale`",
      "bilinear, about the middle",
    ),
    Row(
      "Cutout, random erasing",
      "augment.cutout .random_erasing",
      "`toolbox_digits:cutout`, `toolbox_digits:random_erasing`",
      "DeVries and Taylor, Cutout, 2017; Zhong et al., Random Erasing Data Augmentation, 2020",
    ),
    Row(
      "Mixup, CutMix",
      "augment.mixup .cutmix",
      "`toolbox_digits:mixup`, `toolbox_digits:cutmix`",
      "Zhang et al., mixup, 2018; Yun et al., CutMix, 2019",
    ),
    Row(
      "Random resized crop; jitter of brightness, contrast, saturation and hue",
      "augment.random_resized_crop .color_jitter",
      "`toolbox_digits:random_resized_crop`, `toolbox_digits:color_jitter`",
      "Szegedy et al., Going Deeper with Convolutions, 2015; Howard, 2013",
    ),
    Row(
      "TrivialAugment",
      "augment.trivial_augment",
      "`toolbox_digits:trivial_augment`",
      "Müller and Hutter, TrivialAugment, 2021",
    ),
    Row(
      "AutoAugment: the policies of CIFAR-10, ImageNet and SVHN, or your own",
      "augment.auto_augment",
      "`toolbox_digits:auto_augment`, `augment.auto_augment.policy`",
      "Cubuk et al., AutoAugment, 2019",
    ),
    Row(
      "AugMix, and its Jensen-Shannon term for two views",
      "augment.augmix losses.jensen_shannon",
      "`toolbox_digits:augmix`, `regularizers.augmix.weight`; `augment.names=('augmix',)`",
      "Hendrycks et al., AugMix, 2020",
    ),
    Row(
      "Manifold mixup",
      "augment.manifold_mixup .mix_hidden",
      "`toolbox_digits:manifold_mixup`, `augment.manifold_mixup.layers`",
      "Verma et al., Manifold Mixup, 2019",
    ),
    Row(
      "RandAugment, several in a row",
      "augment.rand_augment .compose",
      "`toolbox_digits:rand_augment`",
      "Cubuk et al., RandAugment, 2020",
    ),
    Row(
      "Normalised channels", "augment.normalize", "`augment.names`", "means and deviations of the data set"
    ),
    Row(
      "Rotated digits, random backgrounds: `data.idx.rotation`, `data.idx.background`",
      "",
      "`compare_dropmax_mnist1k_variations`",
      "Larochelle et al., Problems with Many Factors of Variation, 2007; our own draws",
    ),
  ],
  "Adversarial examples": [
    Row(
      "FGSM, PGD in three norms",
      "adversarial.fgsm .pgd",
      "`toolbox_digits:fgsm`, `toolbox_digits:pgd`",
      f"{FGSM}; Madry et al., 2018",
    ),
    Row(
      "Adversarial training",
      "adversarial.adversarial_loss",
      "`toolbox_digits:fgsm`, `toolbox_digits:pgd`",
      FGSM,
    ),
    Row(
      "Virtual adversarial training",
      "adversarial.vat_loss .virtual_adversarial",
      "`toolbox_digits:virtual_adversarial`",
      "Miyato et al., Virtual Adversarial Training, 2018",
    ),
    Row(
      "TRADES",
      "adversarial.trades_loss",
      "`toolbox_digits:trades`",
      "Zhang et al., Theoretically Principled Trade-off between Robustness and Accuracy, 2019",
    ),
  ],
  "Optimizers": [
    Row(
      "Adagrad, RMSProp, Adam without an epsilon, 0/0 = 0",
      "optim.exact_adagrad .exact_rmsprop .exact_adam .adaptive .scale_by_adaptive",
      "`optimizers_digits:exact_adagrad`, `optimizers_digits:exact_rmsprop`, `optimizers_digits:exact_adam`",
      "Duchi, Hazan and Singer, Adaptive Subgradient Methods, 2011; Kingma and Ba, Adam, 2015",
    ),
    Row(
      "Trust regions: normalised, by leaf or unit, sign descent",
      "optim.trust_region .scale_by_trust_region",
      "`optimizers_digits:normalized`, `optimizers_digits:normalized_leaves`, "
      "`optimizers_digits:normalized_units`, `optimizers_digits:sign`",
      CTU,
    ),
    Row(
      "Descent in a p-norm, in a metric (Newton, natural gradient), in other coordinates",
      "optim.p_norm_sgd .scale_by_p_norm .mahalanobis .scale_by_mahalanobis .reparameterize",
      "`optimizers_digits:p_norm`, `optimizers_digits:mahalanobis`, `optimizers_digits:reparameterize`",
      f"{CTU}; Amari, Natural Gradient Works Efficiently in Learning, 1998",
    ),
    Row(
      "Path-SGD, path norm",
      "optim.path_sgd .scale_by_path .path_kappa .path_norm",
      "`optimizers_digits:path_sgd`, `compare_optimizers_mnist5k`",
      "Neyshabur, Salakhutdinov and Srebro, Path-SGD, 2015",
    ),
    Row(
      "Langevin dynamics, gradient noise",
      "optim.sgld .gradient_noise",
      "`optimizers_digits:sgld`, `optimizers_digits:gradient_noise`",
      "Welling and Teh, Stochastic Gradient Langevin Dynamics, 2011; "
      "Neelakantan et al., Adding Gradient Noise, 2015",
    ),
    Row(
      "Sharpness-aware minimisation, finite at a gradient of 0",
      "optim.sam",
      "`optimizers_digits:sam`",
      "Foret et al., Sharpness-Aware Minimization, 2021",
    ),
    Row(
      "Its variants: adaptive to the scale of the weights (ASAM), guided by the surrogate gap (GSAM)",
      "optim.asam .gsam",
      "`optimizers_digits:asam`, `optimizers_digits:gsam`",
      "Kwon et al., ASAM, 2021; Zhuang et al., Surrogate Gap Minimization, 2022",
    ),
    Row(
      "Layer-wise decay of the learning rate, by names of layers",
      "optim.layer_decay",
      "`optimizers_digits:layer_decay`",
      "Howard and Ruder, ULMFiT, 2018; Bao et al., BEiT, 2022",
    ),
  ],
  "Averages along the training": [
    Row(
      "Early stopping with the best copy",
      "averaging.early_stopping_init .early_stopping_update",
      "`toolbox_digits:early_stopping`",
      NA,
    ),
    Row(
      "Stochastic weight averaging",
      "averaging.swa_init .swa_update .batch_norm_statistics",
      "`toolbox_digits:swa`",
      "Izmailov et al., Averaging Weights Leads to Wider Optima, 2018",
    ),
    Row(
      "SWAG: a Gaussian of the iterates, and predictions by its draws",
      "averaging.swag_init .swag_update .swag_sample",
      "`toolbox_digits:swag`, `average.name=swag`; `examples/swag.py`",
      "Maddox et al., A Simple Baseline for Bayesian Uncertainty, 2019",
    ),
    Row(
      "Exponential moving average, whose decay warms up",
      "averaging.ema_init .ema_update .ema_decay",
      "`toolbox_digits:ema`, `average.ema.warmup`, `average.ema.power`",
      "Polyak and Juditsky, Acceleration of Stochastic Approximation by Averaging, 1992",
    ),
  ],
  "Ensembles": [
    Row(
      "Arithmetic and geometric means, all masks of dropout, bagging",
      "ensembles.arithmetic .geometric .dropout_masks .mask_probs .bag_predict .bootstrap_indices",
      "`toolbox_digits:bagging`, `toolbox_digits:geometric_mean`, `evaluate.mirror`; all masks as a function",
      "Breiman, Bagging Predictors, 1996; Hinton et al., Improving neural networks, 2012",
    ),
    Row(
      "Deep ensembles: seeds side by side or one by one",
      "ensembles.ensemble_init .ensemble_apply",
      "`toolbox_digits:deep_ensemble`, `ensemble=5`",
      "Lakshminarayanan, Pritzel and Blundell, Deep Ensembles, 2017",
    ),
    Row(
      "MC dropout: mean, variance, entropies, mutual information; predictions by the arithmetic mean, the "
      "geometric mean or weight scaling",
      "ensembles.mc_predict .mc_regress .uncertainty",
      "`toolbox_digits:mc_dropout`, `toolbox_digits:geometric_mean`, `toolbox_digits:weight_scaling_mean`, "
      "`evaluate.mc_samples`, `evaluate.combine`",
      "Gal and Ghahramani, Dropout as a Bayesian Approximation, 2016",
    ),
    Row(
      "Last-layer Laplace approximation: dense and Kronecker-factored, probit prediction",
      "ensembles.laplace_curvature .laplace_posterior .laplace_variance .probit_log_probs",
      "`evaluate.measures`",
      "MacKay, 1992; Ritter, Botev and Barber, 2018; Daxberger et al., Laplace Redux, 2021",
    ),
  ],
  "Calibration": [
    Row(
      "NLL, Brier score, ECE",
      "calibration.nll .brier .ece .ece_bins",
      "every evaluation",
      "exact sums that merge over batches and devices",
    ),
    Row(
      "MCE, adaptive and classwise ECE, reliability",
      "calibration.mce .adaptive_bins .classwise_ece .classwise_bins .reliability",
      "`evaluate.measures`",
      "Nixon et al., Measuring Calibration in Deep Learning, 2019",
    ),
    Row(
      "Temperature scaling",
      "calibration.fit_temperature .temper",
      "`evaluate.measures`",
      "Guo et al., On Calibration of Modern Neural Networks, 2017",
    ),
    Row(
      "Conformal prediction sets: split, and adaptive (APS)",
      "calibration.conformal_threshold .conformal_scores .aps_scores",
      "`evaluate.measures`",
      "Sadinle, Lei and Wasserman, Least Ambiguous Set-Valued Classifiers, 2019; "
      "Romano, Sesia and Candes, Classification with Valid and Adaptive Coverage, 2020",
    ),
    Row(
      "Examples from elsewhere: confidence, entropy (`losses.entropy`), energy; AUROC, FPR at 95 % TPR",
      "calibration.least_confidence .energy .auroc .fpr_at_tpr",
      "`evaluate.ood`",
      "Hendrycks and Gimpel, A Baseline, 2017; Liu et al., Energy-based Out-of-distribution Detection, 2020",
    ),
  ],
  "Sparse codes": [
    Row(
      "Orthogonal matching pursuit, largest coefficients",
      "sparse.omp .topk_code",
      ALONE,
      "Pati, Rezaiifar and Krishnaprasad, Orthogonal matching pursuit, 1993",
    ),
  ],
  "Models": [
    Row(
      "A classifier of a backbone and a head; fully connected networks and LeNet",
      "models.Classifier .MLP .LeNet .TutorialCNN",
      "`dropmax_digits`, `dropmax_mnist:1k`, `dropmax_mnist:1k-appendix`; `model.name`",
      "LeCun et al., Gradient-based learning applied to document recognition, 1998; "
      "TensorFlow's tutorial network",
    ),
    Row(
      "Residual networks",
      "models.CifarResNet .ResNet",
      "`dropmax_cifar10`, `group_softmax_imagenet`",
      "He et al., Deep Residual Learning, 2016",
    ),
    Row(
      "VGG",
      "models.VGG .VGG9 .Airbench",
      "`flatness_vgg9_cifar10`; `model.name`",
      f"Simonyan and Zisserman, Very Deep Convolutional Networks, 2014; {ZHANG}",
    ),
    Row(
      "Transformer, greedy decoding and beam search",
      "models.Transformer .greedy_decode .beam_decode .positional_encoding",
      "`transformer_multi30k`",
      "Vaswani et al., Attention Is All You Need, 2017",
    ),
  ],
  "Flatness and noise": [
    Row(
      "Loss profiles, interval flatness",
      "flatness.loss_profile .loss_surface .filter_normalized_direction .interval_flatness "
      ".dense_interval_flatness",
      "`flatness_fnn_mnist:profile`, `flatness_vgg9_cifar10`, `flatness_transformer_multi30k`, `flatness`",
      "Li et al., Visualizing the Loss Landscape, 2018; " + ZHANG,
    ),
    Row(
      "Hessian, Gauss-Newton, eigenpairs, trace, diagonal, spectral density, of every layer",
      "flatness.hvp .gauss_newton .hessian .gauss_newton_matrix .gauss_newton_diagonal .dense_hessian "
      ".materialize .top_eigenpairs .operator_trace .operator_diagonal .spectral_density .layerwise .subset "
      ".chunked",
      "`job=flatness`",
      "stochastic traces by matfree",
    ),
    Row(
      "Fisher matrix, KFAC and EKFAC, damped inverse",
      "flatness.fisher .empirical_fisher .kfac .damped_solve",
      ANALYSIS,
      "Martens and Grosse, 2015; George et al., 2018",
    ),
    Row(
      "Sharpness, plane of a trajectory",
      "flatness.sam_sharpness .keskar_sharpness .trajectory_plane",
      ANALYSIS,
      "Foret et al., 2021; Keskar et al., 2017; Li et al., 2018",
    ),
    Row(
      "Noise covariance, and how it stands to curvature",
      "flatness.sample_gradients .sample_noise_by_parts .sample_trajectory .lazy_gradients .lazy_trajectory "
      ".noise_covariance .per_example_noise_covariance .dense_noise_covariance .principal_components "
      ".projected_variance .hessian_variance_alignment .power_law_fit .broken_power_law_fit",
      "`flatness_fnn_mnist`, `flatness_resnet20_cifar100`",
      "Zhang, Zhou and Xu, 2021",
    ),
    Row(
      "Dropout's theorems",
      "flatness.expected_dropout_loss .dropout_hessian .dropout_covariance .dropout_covariance_exact "
      ".loewner_bounds",
      ANALYSIS,
      "Zhang, Zhou and Xu, 2021; the exact covariance is ours",
    ),
  ],
  "Closed forms": [
    Row(
      "Ridge, shrinkage, early stopping",
      "theory.ridge .ridge_bias_variance .l2_solution .l2_shrinkage .l1_solution .gd_filter "
      ".early_stopping_alpha .early_stopping_steps .effective_dof .effective_rank .pinv_limit",
      ANALYSIS,
      NA,
    ),
    Row(
      "Dropout as ridge regression, noise as penalties",
      "theory.dropout_ridge .dropout_ridge_loss .weight_noise_terms .input_noise_terms",
      ANALYSIS,
      "Srivastava et al., Dropout, 2014; Bishop, 1995; with the Laplacian that the textbooks leave out",
    ),
    Row(
      "DropMax, exactly",
      "theory.dropmax_expected_nll .dropmax_mean_field .dropmax_regularizer .dropmax_equilibrium "
      ".dropmax_masks .dropmax_mask_posterior .dropmax_marginal_logits .dropmax_learn_posterior "
      ".dropmax_optimal_target_logit .dropmax_condition_1 .dropmax_gradient_norms .dropmax_target_gradients "
      ".dropmax_nontarget_gradients",
      "analysis, at most 16 classes",
      "Lee et al., DropMax, 2018, appendices A and B; enumerated",
    ),
    Row(
      "Group softmax, all groupings",
      "theory.equal_partitions .grouping_losses .search_grouping .group_relaxation .update_rank",
      ANALYSIS,
      "Kobayashi, Group Softmax Loss, 2021, appendices A and B",
    ),
    Row(
      "Index of stationary points, PL ratio, windows of averages, Adagrad's regret",
      "theory.hessian_index .pl_ratio .landscape_constants .ewa_window .ewa_weights .adagrad_regret_bound",
      "`benchmarks/sgd_figures.py`",
      f"Dauphin et al., Identifying and attacking the saddle point problem, 2014; {CTU}",
    ),
    Row(
      "Symmetries: permuted and rescaled units, other coordinates",
      "symmetry.permute_units .rescale_units .rescale_normalized .linear_coordinates "
      ".elementwise_coordinates .check_invariance .invariance_error",
      "`model.unbalance=1.5`",
      CTU,
    ),
  ],
}


INTRODUCTION = """\
Every row has its functions, its configuration and its source. A configuration such as `toolbox_digits:l2` is
run by `python run.py --config configs/toolbox_digits.py:l2`. A field such as `method.name=focal` is a flag of
every configuration that reads it: `--config.method.name=focal`.

Written by `python docs/methods.py` from the table in that file and from the docstrings; a test fails when the
page is out of date."""


def functions(row: Row) -> list[str]:
  """The full names: `losses.cosface .arcface` is `losses.cosface` and `losses.arcface`."""
  found: list[str] = []
  for name in row.functions.split():
    found.append(found[-1].partition(".")[0] + name if name.startswith(".") else name)
  return found


def described(name: str) -> str:
  """The first sentence or paragraph of the docstring of `losses.dropmax`, for one cell of a table."""
  folder, _, function = name.partition(".")
  found: Any = getattr(importlib.import_module(f"jaxreg.{folder}"), function)
  first = " ".join((inspect.getdoc(found) or "").split("\n\n")[0].split())
  return re.sub(r":math:`(.*?)`", r"$\1$", first).replace("|", r"\|")


def page() -> str:
  """The text of `docs/methods.md`."""
  lines = ["# Methods", "", INTRODUCTION]
  for title, rows in SECTIONS.items():
    lines += ["", f"## {title}", ""]
    lines += ["| method | function | what it does | config | source |", "|---|---|---|---|---|"]
    for row in rows:
      first, *others = functions(row) or [""]
      cells = (f"`{first}`", described(first)) if first else ("", "")
      lines.append(f"| **{row.method}** | {cells[0]} | {cells[1]} | {row.config} | {row.source} |")
      lines += [f"| | `{name}` | {described(name)} | | |" for name in others]
  return "\n".join(lines) + "\n"


if __name__ == "__main__":
  Path(__file__).with_suffix(".md").write_text(page())
