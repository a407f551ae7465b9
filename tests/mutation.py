"""One sign or constant wrong in the source must make the test of that claim fail.

A mutation is (file, old text, new text, test): `run` copies the package, replaces the text, which must be
there exactly once, and runs the test against the copy.
"""

import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent


@dataclasses.dataclass(frozen=True)
class Mutation:
  name: str
  file: str
  old: str
  new: str
  test: str


def _table(file: str, tests: str, *rows: tuple[str, str, str, str]) -> list[Mutation]:
  return [Mutation(name, file, old, new, f"{tests}::{test}") for name, old, new, test in rows]


MUTATIONS = [
  *_table(
    "losses/_dropmax.py",
    "tests/losses/test_dropmax.py",
    (
      "entropy sign",
      "return sigmoid(logits) * log(logits) + sigmoid(-logits) * log(-logits)",
      "return -(sigmoid(logits) * log(logits) + sigmoid(-logits) * log(-logits))",
      "test_entropy_is_maximised",
    ),
    (
      "KL direction",
      "_bernoulli_kl(posterior, prior))",
      "_bernoulli_kl(prior, posterior))",
      "test_analytic_gradients",
    ),
    (
      "KL of the target",
      "jax.nn.softplus(-prior)",
      "jax.nn.softplus(prior)",
      "test_fixed_point_of_the_prior",
    ),
    ("KL mean", "divergence.sum(axis=-1)", "divergence.mean(axis=-1)", "test_first_step_values"),
    (
      "KL in probabilities",
      "log(-p_logits))",
      "jnp.log(1 - jax.nn.sigmoid(p_logits) + 1e-20))",
      "test_kl_gradient_does_not_die",
    ),
    (
      "target mask not fixed",
      "return jnp.where(is_target_of(labels, posterior)[None], 0.0, log_mask)",
      "return log_mask",
      "test_mask_shape_and_target",
    ),
    (
      "posterior trains the prior",
      "posterior = jax.lax.stop_gradient(prior) + residual",
      "posterior = prior + residual",
      "test_who_gets_gradient_from_what[nll-activations-False]",
    ),
    (
      "posterior without the prior",
      "posterior = jax.lax.stop_gradient(prior) + residual",
      "posterior = residual",
      "test_posterior_defaults_to_prior_plus_residual",
    ),
    (
      "parameters not barred",
      '_affine(branch, jax.lax.stop_gradient(prior), "prior")',
      '_affine(branch, prior, "prior")',
      "test_who_gets_gradient_from_what[nll-parameters-False]",
    ),
    (
      "activations barred with the parameters",
      '_affine(branch, jax.lax.stop_gradient(prior), "prior")',
      'jax.lax.stop_gradient(_affine(branch, prior, "prior"))',
      "test_what_reaches_the_features_through_the_barred_prior[parameters-True-False]",
    ),
    (
      "branch_only ignored",
      "branch = jax.lax.stop_gradient(features) if branch_only else features",
      "branch = features",
      "test_who_gets_gradient_from_what[kl-activations-True]",
    ),
    ("eps", "LOG_EPS = math.log(1e-20)", "LOG_EPS = math.log(1e-10)", "test_eps_is_1e_20"),
    (
      "temperature upside down",
      "(posterior[None] + noise) / temperature",
      "(posterior[None] + noise) * temperature",
      "test_default_temperature_is_a_tenth",
    ),
    (
      "noise outside the temperature",
      "(posterior[None] + noise) / temperature",
      "posterior[None] / temperature + noise",
      "test_terms_equal_the_probability_form",
    ),
    (
      "default temperature",
      "temperature: ArrayLike = 0.1,\n  num_samples: int = 1,\n  kl_weight",
      "temperature: ArrayLike = 0.5,\n  num_samples: int = 1,\n  kl_weight",
      "test_default_temperature_is_a_tenth",
    ),
    (
      "noise shared by the batch",
      "(num_samples, *posterior.shape), posterior.dtype)",
      "(num_samples, *(1,) * (posterior.ndim - 1), posterior.shape[-1]), posterior.dtype)",
      "test_mask_entries_are_independent[relaxed]",
    ),
    (
      "auxiliary sign",
      "auxiliary = jnp.asarray(optax",
      "auxiliary = -jnp.asarray(optax",
      "test_first_step_values",
    ),
    ("auxiliary target", "(residual, is_target))", "(residual, ~is_target))", "test_analytic_gradients"),
    (
      "auxiliary of the prior",
      "(residual, is_target))",
      "(prior, is_target))",
      "test_who_gets_gradient_from_what[auxiliary-activations-False]",
    ),
    (
      "sum for mean",
      'jnp.sum if class_reduction == "sum" else jnp.mean',
      'jnp.mean if class_reduction == "sum" else jnp.sum',
      "test_class_mean_divides_entropy_and_auxiliary_by_the_classes",
    ),
    (
      "another term's weight",
      "entropy_weight * over_classes(",
      "auxiliary_weight * over_classes(",
      "test_weights_scale_their_own_term_only",
    ),
    ("a term subtracted", '+ terms["kl"]', '- terms["kl"]', "test_loss_is_the_sum_of_its_terms"),
    ("samples summed", "  ).mean(axis=0)", "  ).sum(axis=0)", "test_samples_are_averaged_in_the_loss"),
    (
      "prediction without the mask",
      "return softmax_log_probs(gated_logits(logits, prior))",
      "return softmax_log_probs(logits)",
      "test_prediction_uses_the_expected_mask",
    ),
    (
      "prediction with the mask's logit",
      "return softmax_log_probs(gated_logits(logits, prior))",
      "return softmax_log_probs(logits + prior)",
      "test_prediction_uses_the_expected_mask",
    ),
    (
      "Monte-Carlo log S",
      "- math.log(num_samples)",
      "+ math.log(num_samples)",
      "test_monte_carlo_prediction_against_enumeration[None]",
    ),
    (
      "Monte-Carlo geometric mean",
      "jax.nn.logsumexp(softmax_log_probs(masked), axis=0) - math.log(num_samples)",
      "softmax_log_probs(softmax_log_probs(masked).mean(axis=0))",
      "test_monte_carlo_prediction_against_enumeration[None]",
    ),
    (
      "Monte-Carlo label dropped",
      "masked = jnp.where(is_target_of(labels, logits)[None], expected[None], masked)",
      "del expected",
      "test_monte_carlo_prediction_against_enumeration[2]",
    ),
    (
      "Monte-Carlo label kept whole",
      "is_target_of(labels, logits)[None], expected[None], masked)",
      "is_target_of(labels, logits)[None], logits[None], masked)",
      "test_monte_carlo_prediction_against_enumeration[2]",
    ),
    (
      "hard mask upside down",
      "jax.nn.sigmoid(prior), (num_samples",
      "jax.nn.sigmoid(-prior), (num_samples",
      "test_hard_masks_keep_with_the_prior",
    ),
    (
      "dropped class without eps",
      "jnp.where(dropped, LOG_EPS,",
      "jnp.where(dropped, -jnp.inf,",
      "test_equal_masks_give_the_softmax[0.0]",
    ),
    (
      "single where",
      "jnp.log(jnp.where(dropped, 1, mask))",
      "jnp.log(mask)",
      "test_masked_logits_gradient_is_finite_at_a_closed_mask",
    ),
    (
      "diagnostics threshold",
      "log_mask > math.log(0.5)",
      "log_mask > math.log(0.01)",
      "test_diagnostics_against_numpy",
    ),
    (
      "diagnostics gradient of the whole softmax",
      "jax.nn.softmax(logits[None] + log_mask)",
      "jax.nn.softmax(logits[None])",
      "test_diagnostics_use_the_masks_of_the_loss",
    ),
  ),
  *_table(
    "losses/_softmax.py",
    "tests/losses/test_softmax.py",
    (
      "log instead of log1p",
      "jnp.log1p(jnp.expm1(-top) + ",
      "jnp.log(jnp.exp(-top) + ",
      "test_accurate_near_zero_loss",
    ),
    (
      "top below zero",
      "jnp.maximum(margins.max(axis=-1), 0)",
      "margins.max(axis=-1)",
      "test_accurate_near_zero_loss",
    ),
    ("margin sign", "logits - target)", "target - logits)", "test_equals_optax_at_ordinary_values"),
    (
      "target counted twice",
      "jnp.finfo(logits.dtype).min / 2,",
      "0.0,",
      "test_one_class_costs_nothing",
    ),
    ("no shift", "jnp.maximum(margins.max(axis=-1), 0)", "0 * margins[..., 0]", "test_exact_at_huge_logits"),
    (
      "log of the softmax",
      'jax.nn.log_softmax(check_wide(logits, "logits"))',
      'jnp.log(jax.nn.softmax(check_wide(logits, "logits")))',
      "test_log_probs",
    ),
  ),
  *_table(
    "losses/_label_smoothing.py",
    "tests/losses/test_label_smoothing.py",
    (
      "smoothing sign",
      "smoothing * (target - logits.mean(axis=-1))",
      "smoothing * (logits.mean(axis=-1) - target)",
      "test_equals_optax_on_smoothed_labels",
    ),
    ("sum of the logits", "logits.mean(axis=-1)", "logits.sum(axis=-1)", "test_minimum_lies_at_a_finite_gap"),
    (
      "family upside down",
      "smoothing * classes / (classes - 1)",
      "smoothing * (classes - 1) / classes",
      "test_the_two_forms_are_one_family",
    ),
    (
      "default smoothing",
      "smoothing: ArrayLike = 0.1",
      "smoothing: ArrayLike = 0.2",
      "test_default_is_a_tenth_over_all",
    ),
  ),
  *_table(
    "noise/_dropout.py",
    "tests/noise/test_dropout.py",
    (
      "rate kept",
      "check_key(key), 1.0 - jnp.asarray(rate, jnp.float32)",
      "check_key(key), jnp.asarray(rate, jnp.float32)",
      "test_mask_statistics",
    ),
    ("scale upside down", "scale = 1.0 / ", "scale = 1.0 * ", "test_inverted_is_unbiased"),
    (
      "division by zero",
      "jnp.where(keep > 0, keep, 1.0)",
      "keep",
      "test_rate_may_be_traced[True]",
    ),
    (
      "dropped for kept",
      "jnp.where(mask, x * ",
      "jnp.where(~mask, x * ",
      "test_dropout_keeps_with_the_mask_of_its_key",
    ),
    ("axes not shared", "1 if axis in", "n if axis in", "test_shared_axes_share_one_mask"),
    (
      "mean of the dropped",
      "x * jnp.asarray(1.0 - rate, x.dtype)",
      "x * jnp.asarray(rate, x.dtype)",
      "test_dropout_mean_is_the_exact_mean_of_a_linear_map[False]",
    ),
    (
      "mean of the other form",
      "return x if inverted else",
      "return x if not inverted else",
      "test_dropout_mean_is_the_exact_mean_of_a_linear_map[True]",
    ),
  ),
  *_table(
    "calibration/_nll.py",
    "tests/calibration/test_calibration.py",
    ("NLL sign", "-(weights * picked)", "(weights * picked)", "test_nll_and_brier_against_scikit_learn"),
    ("NLL count", "weights.sum()", "1.0 * weights.size", "test_sums_against_numpy[True]"),
  ),
  *_table(
    "calibration/_brier.py",
    "tests/calibration/test_calibration.py",
    ("Brier absolute", "(error**2)", "jnp.abs(error)", "test_nll_and_brier_against_scikit_learn"),
    ("Brier halved", "(error**2).sum(axis=-1)", "(error**2).sum(axis=-1) / 2", "test_brier_bounds"),
    ("Brier count", "weights.sum()", "1.0 * weights.size", "test_sums_against_numpy[True]"),
  ),
  *_table(
    "calibration/_ece.py",
    "tests/calibration/test_calibration.py",
    (
      "bins closed on the left",
      "jnp.ceil(confidence * num_bins).astype(jnp.int32) - 1",
      "jnp.floor(confidence * num_bins).astype(jnp.int32)",
      "test_bin_edges_are_closed_on_the_right",
    ),
    ("default bins", "num_bins: int = 15", "num_bins: int = 10", "test_default_is_fifteen_bins"),
    (
      "gaps cancel",
      'jnp.abs(bins["correct"] - bins["confidence"]).sum()',
      'jnp.abs((bins["correct"] - bins["confidence"]).sum())',
      "test_gaps_of_different_bins_do_not_cancel",
    ),
    ("unweighted bins", "(weights * x)", "x", "test_sums_against_numpy[True]"),
    ("least likely class", "log_probs.argmax(", "log_probs.argmin(", "test_ece_by_hand"),
    ("empty set", "jnp.where(total > 0, total, 1)", "total", "test_no_examples_have_no_error"),
  ),
  *_table(
    "calibration/_weights.py",
    "tests/calibration/test_calibration.py",
    ("weights of any shape", "weights.shape != labels.shape", "False", "test_misfits_are_refused"),
    (
      "padding's log-probabilities",
      "jnp.where(counts[..., None], log_probs, 0)",
      "log_probs",
      "test_weight_zero_is_absence[nan]",
    ),
    ("padding's labels", "jnp.where(counts, labels, 0)", "labels", "test_weight_zero_is_absence[0.0]"),
  ),
  *_table(
    "paths.py",
    "tests/test_paths.py",
    ("exclude ignored", "and not _matches(name, exclude)", "", "test_exclude_wins"),
    (
      "case folded",
      "fnmatchcase(name, pattern)",
      "fnmatchcase(name.upper(), pattern.upper())",
      "test_select",
    ),
    (
      "branches decay",
      "(prior|residual)/",
      "(priors|residuals)/",
      "test_no_branches_leaves_prior_and_residual_out",
    ),
    (
      "embeddings left out",
      '("kernel", "embedding")',
      '("kernel",)',
      "test_kernels_only_leaves_biases_and_scales_out",
    ),
  ),
  *_table(
    "typing.py",
    "tests/test_typing.py",
    (
      "NaN passes",
      "if not ((low < value",
      "if value == value and not ((low < value",
      "test_check_range_refuses_by_name",
    ),
    ("closed below", "low < value if open_low", "low <= value if open_low", "test_check_range_open_below"),
    ("not widened", "jnp.promote_types(x.dtype, jnp.float32)", "x.dtype", "test_check_wide"),
    ("always float32", "jnp.promote_types(x.dtype, jnp.float32)", "jnp.float32", "test_check_wide"),
    (
      "empty shape unchecked",
      "if shape is not None and",
      "if shape and",
      "test_other_shapes_are_refused_by_name",
    ),
    ("several keys", "if key.ndim:", "if False:", "test_check_key_refuses_several"),
  ),
  *_table(
    "losses/_sparsemax.py",
    "tests/losses/test_sparsemax.py",
    ("threshold", "- 1) / counts).max", "- 2) / counts).max", "test_two_classes_have_a_closed_form"),
    ("support", "(total - 1) /", "(total + 1) /", "test_no_point_of_the_simplex_is_nearer"),
    (
      "linear part",
      "(target > 0, 0, -target)",
      "(target > 0, 0, 0 * target)",
      "test_two_classes_have_a_closed_form",
    ),
    (
      "square",
      "(error**2).sum(axis=-1) / 2",
      "(error**2).sum(axis=-1)",
      "test_the_gradient_is_the_gap_between_projection_and_target",
    ),
    (
      "floor",
      "math.log(eps)), math.log(eps))",
      "math.log(eps)), 0.0)",
      "test_the_log_probabilities_have_a_floor",
    ),
  ),
  *_table(
    "losses/_sampled_softmax.py",
    "tests/losses/test_sampled_softmax.py",
    (
      "target among the sampled",
      "jnp.where(is_target, -1, noise)",
      "noise",
      "test_the_target_and_a_uniform_subset_of_the_others",
    ),
    ("one too few", "return rank <= _number", "return rank < _number", "test_all_classes_give_the_softmax"),
    (
      "correction's sign",
      "logits - math.log(number / (classes - 1))",
      "logits + math.log(number / (classes - 1))",
      "test_the_correction_makes_the_denominator_unbiased",
    ),
    (
      "correction of the target",
      "jnp.where(is_target, logits, logits - math.log(number / (classes - 1)))",
      "logits - math.log(number / (classes - 1))",
      "test_the_correction_makes_the_denominator_unbiased",
    ),
  ),
  *_table(
    "losses/_random_dropmax.py",
    "tests/losses/test_random_dropmax.py",
    (
      "probability of dropping",
      "jnp.asarray(keep_prob, jnp.float32)",
      "1 - jnp.asarray(keep_prob, jnp.float32)",
      "test_the_target_is_always_kept_and_the_others_with_one_probability",
    ),
    (
      "target dropped",
      "return mask | jax.nn.one_hot",
      "return mask & ~jax.nn.one_hot",
      "test_the_target_is_always_kept_and_the_others_with_one_probability",
    ),
  ),
  *_table(
    "losses/_deterministic_attention.py",
    "tests/losses/test_deterministic_dropmax.py",
    (
      "gate left out",
      "gated_logits(logits, prior)",
      "logits + 0 * prior",
      "test_training_and_prediction_are_the_same_function",
    ),
  ),
  *_table(
    "losses/_deterministic_dropmax.py",
    "tests/losses/test_deterministic_dropmax.py",
    (
      "supervision upside down",
      "cross_entropy(prior, is_target)",
      "cross_entropy(-prior, is_target)",
      "test_the_supervision_teaches_the_labels",
    ),
    (
      "mean over classes",
      "auxiliary_weight * auxiliary.sum(axis=-1)",
      "auxiliary_weight * auxiliary.mean(axis=-1)",
      "test_the_supervision_teaches_the_labels",
    ),
  ),
  *_table(
    "losses/_dropmax_qp.py",
    "tests/losses/test_dropmax_qp.py",
    (
      "prior stopped",
      "dropmax_log_mask(key, prior, labels",
      "dropmax_log_mask(key, jax.lax.stop_gradient(prior), labels",
      "test_it_is_dropmax_with_the_prior_as_posterior[1]",
    ),
    (
      "entropy's weight",
      "entropy_weight * bernoulli_neg_entropy(prior)",
      "bernoulli_neg_entropy(prior)",
      "test_without_a_likelihood_the_target_settles_at_the_equilibrium[0.1-0.99995]",
    ),
    (
      "KL's sign",
      "jax.nn.softplus(-prior)",
      "jax.nn.softplus(prior)",
      "test_without_a_likelihood_the_target_settles_at_the_equilibrium[1.0-0.782188]",
    ),
  ),
  *_table(
    "theory/_dropmax.py",
    "tests/theory/test_dropmax_enumeration.py",
    ("masks inverted", "& 1 == 1", "& 1 == 0", "test_masks_are_all_of_them_once[5]"),
    ("limit of the classes", "MAX_CLASSES = 16", "MAX_CLASSES = 17", "test_sixteen_classes_are_the_limit"),
    (
      "target fixed at 0",
      "certain = finite(jnp.full_like(keep_logits, jnp.inf))",
      "certain = finite(jnp.full_like(keep_logits, -jnp.inf))",
      "test_expected_nll_is_the_sum_over_masks[shape0-kept]",
    ),
    (
      "weight of the dropped",
      ", -keep_logits[..., None, :])",
      ", keep_logits[..., None, :])",
      "test_expected_nll_is_the_sum_over_masks[shape0-sampled]",
    ),
    (
      "target sampled by default",
      'target: Target = "kept"',
      'target: Target = "sampled"',
      "test_the_target_is_kept_by_default",
    ),
  ),
  *_table(
    "theory/_dropmax.py",
    "tests/theory/test_dropmax_equilibrium.py",
    ("entropy minimised", "+ gamma * a, up", "- gamma * a, up", "test_section_1_7_limits"),
    (
      "default entropy weight",
      "entropy_weight: ArrayLike = 1.0",
      "entropy_weight: ArrayLike = 0.1",
      "test_section_1_7_table",
    ),
    (
      "wrong side",
      "jnp.where(concave, 0, size)",
      "jnp.where(concave, size, 0)",
      "test_float32_is_finite_and_accurate[0.001]",
    ),
    (
      "no derivative",
      "return newton(jax.lax.stop_gradient(jnp.sign(q) * root), q)",
      "return jnp.sign(q) * root",
      "test_derivative_of_the_root",
    ),
    (
      "target ignored",
      'q = fix_target(q, check_labels(labels, q, "posterior_logits"), "kept")',
      "q = q + 0",
      "test_labels_name_the_class_whose_posterior_is_1",
    ),
  ),
  *_table(
    "theory/_dropmax_posterior.py",
    "tests/theory/test_dropmax_posterior.py",
    (
      "Bayes upside down",
      "mask_log_probs(prior) - mask_nll(logits, labels)",
      "mask_log_probs(prior) + mask_nll(logits, labels)",
      "test_equation_2_and_4_are_bayes_rule[shape0]",
    ),
    (
      "all dropped kept in",
      "if exclude_all_dropped:",
      "if False:",
      "test_observation_2_the_target_is_kept_unless_all_are_dropped",
    ),
    (
      "marginals of the dropped",
      "over(masks) - over(~masks)",
      "over(~masks) - over(masks)",
      "test_observation_2_the_target_is_kept_unless_all_are_dropped",
    ),
    (
      "evidence twice",
      "log_q - joint + evidence[..., None]",
      "log_q - joint - evidence[..., None]",
      "test_the_negative_bound_is_the_gap_less_the_evidence",
    ),
    (
      "KL under the prior",
      "mean(log_q, log_q - log_prior)",
      "mean(log_prior, log_q - log_prior)",
      "test_mean_field_terms_are_sums_over_masks[shape0]",
    ),
    (
      "deviation of the other half",
      "deviation(~kept, mask_log_probs(off))",
      "deviation(kept, mask_log_probs(off))",
      "test_a_dropped_target_deviates_by_46_nats_times_another_kept[0.0]",
    ),
    (
      "second moment",
      "(nll - expected[..., None]) ** 2",
      "nll**2",
      "test_a_mask_that_drops_the_target_is_noise",
    ),
  ),
  *_table(
    "theory/_dropmax_target.py",
    "tests/theory/test_dropmax_target.py",
    (
      "gain sign",
      "(dropped - nll)",
      "(nll - dropped)",
      "test_optimal_target_logit_minimises_the_objective[shape0]",
    ),
    (
      "target kept twice",
      "number & ~bit",
      "number | bit",
      "test_optimal_target_beside_shut_others_is_not_kept",
    ),
    (
      "ascent",
      "q - learning_rate * slope",
      "q + learning_rate * slope",
      "test_learning_the_target_alone_is_stable[1.0]",
    ),
    (
      "others for target",
      '"target": is_target, "others": ~is_target',
      '"target": ~is_target, "others": is_target',
      "test_one_step_is_gradient_descent_on_the_objective[target]",
    ),
    (
      "target not fixed",
      'if learn == "others":',
      "if False:",
      "test_learning_everything_has_a_second_optimum",
    ),
  ),
  *_table(
    "theory/_dropmax_gradient.py",
    "tests/theory/test_dropmax_gradient.py",
    ("Condition 1 not strict", "(target > highest)", "(target >= highest)", "test_condition_1"),
    ("Condition 1 in part", " & (highest == lowest)", "", "test_condition_1"),
    (
      "Eq. 6 sign",
      "expected - softmax_cross_entropy(logits, labels)",
      "expected + softmax_cross_entropy(logits, labels)",
      "test_equation_6_the_regularizer_is_what_dropmax_adds[kept]",
    ),
    (
      "Eq. 7 without the softmax",
      " - jax.nn.logsumexp(logits, axis=-1)",
      "",
      "test_equation_7_bounds_the_regularizer[anything-kept]",
    ),
    (
      "Eq. 7 without its constant",
      "-LOG_EPS * dropping",
      "0 * dropping",
      "test_equation_7_bounds_the_regularizer[under_condition_1-sampled]",
    ),
    (
      "Eq. 8 left sign",
      "plain - expected",
      "expected - plain",
      "test_equation_8_at_the_recorded_point",
    ),
    (
      "Eq. 8 with the target kept",
      "fix_target(prior, labels, target)))",
      'fix_target(prior, labels, "kept")))',
      "test_equation_8_is_an_erratum",
    ),
    (
      "Eq. 8 with the target sampled",
      "fix_target(prior, labels, target)))",
      'fix_target(prior, labels, "sampled")))',
      "test_equation_8_never_holds_where_the_target_is_kept",
    ),
    (
      "Eq. 8 right sign",
      "plain - missing(gated_logits",
      "plain + missing(gated_logits",
      "test_equation_8_right_side_as_printed",
    ),
    (
      "Eq. 9 sign",
      '"softmax_printed": -plain',
      '"softmax_printed": plain',
      "test_equation_9",
    ),
    (
      "Eq. 9 in the others",
      "jnp.where(is_target, differentiated, 0)",
      "jnp.where(is_target, 0, differentiated)",
      "test_equation_9",
    ),
    (
      "Eq. 10 without rho",
      "missing(gated_logits(logits, prior), is_target)",
      "missing(logits, is_target)",
      "test_equation_10_under_condition_1",
    ),
    (
      "weights squared",
      "weights * errors**2",
      "weights**2 * errors**2",
      "test_gradient_norms_are_sums_over_masks[kept]",
    ),
    (
      "margin sign",
      "jnp.where(is_target, logits, 0).sum(axis=-1) - others",
      "jnp.where(is_target, logits, 0).sum(axis=-1) + others",
      "test_gradient_norms_are_sums_over_masks[kept]",
    ),
    (
      "norms of the appendix",
      'target: Target = "kept"',
      'target: Target = "sampled"',
      "test_defaults_are_the_appendix_and_for_norms_the_training",
    ),
  ),
  *_table(
    "losses/_group_softmax.py",
    "tests/losses/test_group_softmax.py",
    (
      "types exchanged",
      'num_groups if kind == "I" else 1',
      '1 if kind == "I" else num_groups',
      "test_proposition_1_bounds",
    ),
    (
      "power of type I",
      'float(num_groups if kind == "I" else 1)',
      'float(num_groups**0.5 if kind == "I" else 1)',
      "test_type_1_is_softmax_plus_kl",
    ),
    (
      "power of type II",
      'float(num_groups if kind == "I" else 1)',
      'float(num_groups if kind == "I" else 2)',
      "test_type_2_is_softmax_minus_agreement",
    ),
    (
      "power ignored",
      "  return power\n",
      "  return 1.0\n",
      "test_power_lowers_the_loss_and_stays_a_bound_up_to_G",
    ),
    (
      "scale the wrong way",
      "logit_scale * check_wide(",
      "1 / logit_scale * check_wide(",
      "test_logit_scale_changes_probabilities_and_no_decision",
    ),
  ),
  *_table(
    "losses/_group_softmax_forms.py",
    "tests/losses/test_group_softmax.py",
    (
      "sum over groups for mean",
      "labels).sum(axis=1) / power, logits.sum(axis=1)",
      "labels).sum(axis=1), logits.sum(axis=1)",
      "test_zero_logits[dense]",
    ),
    (
      "all groups must agree",
      "softmax_cross_entropy(power * logits, labels).sum",
      "softmax_cross_entropy(logits, labels).sum",
      "test_type_1_is_softmax_if_all_groups_agree",
    ),
    (
      "the whole bias in every group",
      "np.asarray(sizes) / sum(sizes)",
      "np.ones(len(sizes))",
      "test_the_whole_logits_come_with_the_loss",
    ),
    (
      "factor G in the gradient of scan",
      "residual = cotangent * _residual(",
      "residual = power * cotangent * _residual(",
      "test_the_analytic_gradient[scan-I]",
    ),
    (
      "factor G in the gradient of gather",
      "residual = cotangent[:, None, None] * _residual(",
      "residual = power * cotangent[:, None, None] * _residual(",
      "test_the_analytic_gradient[gather-I]",
    ),
    (
      "residual from the target's probability",
      "jnp.where(is_target, -others.sum(axis=-1, keepdims=True), others)",
      "jnp.where(is_target, jnp.exp(logits - normalizer) - 1, others)",
      "test_losses_next_to_zero_keep_their_digits",
    ),
    (
      "the filling of the last chunk",
      "values = jnp.where(member[None], values, 0)",
      "values = values",
      "test_all_forms_agree_in_float64",
    ),
  ),
  *_table(
    "losses/_group_softmax_scores.py",
    "tests/losses/test_group_softmax.py",
    (
      "the bias in the scores",
      "return features * (target - (every - target) / others)",
      "return features * (target + bias[labels][:, None] - (every - target) / others)",
      "test_the_bias_does_not_change_the_groups",
    ),
    (
      "thresholds on the other side",
      "by_value = lambda values: _count(values, thresholds, jnp.greater_equal)",
      "by_value = lambda values: _count(values, thresholds, jnp.greater)",
      "test_groups_are_the_sorted_scores_cut[False-7]",
    ),
    (
      "ties by position",
      "passed * num_features + _position(passed)",
      "passed * num_features - _position(passed)",
      "test_groups_are_the_sorted_scores_cut[True-7]",
    ),
    (
      "larger groups first",
      "(size,) * (num_groups - larger) + (size + 1,) * larger",
      "(size + 1,) * larger + (size,) * (num_groups - larger)",
      "test_groups_are_the_sorted_scores_cut[False-7]",
    ),
    (
      "interleaved from below",
      "(rank - scores.shape[-1]) % num_groups",
      "rank % num_groups",
      "test_interleaved_groups_have_features_of_every_kind",
    ),
  ),
  *_table(
    "losses/_group_softmax_scores.py",
    "tests/theory/test_group_softmax_groupings.py",
    (
      "the mean over all classes",
      "others = max(kernel.shape[1] - 1, 1)",
      "others = -max(kernel.shape[1] - 1, 1)",
      "test_lemma_1_by_brute_force",
    ),
    (
      "scores without the features",
      "return features * (target - (every - target) / others)",
      "return target - (every - target) / others",
      "test_with_two_classes_the_rule_is_the_maximiser",
    ),
  ),
  *_table(
    "theory/_group_softmax.py",
    "tests/theory/test_group_softmax_groupings.py",
    (
      "the whole bias in every ingredient",
      "kernel + bias[None] / len(features)",
      "kernel + bias[None]",
      "test_losses_are_those_of_the_loss",
    ),
    (
      "the target among the others",
      "jax.nn.logsumexp(logits, axis=-1) - logits[..., label]",
      "jax.nn.logsumexp(logits, axis=-1) - logits.mean(axis=-1)",
      "test_equation_a15_the_loss_by_sp",
    ),
    (
      "the direction of the bound",
      "jax.nn.softplus(-(member @ scores))",
      "jax.nn.softplus(-(member @ scores) + 3)",
      "test_equations_a16_to_a18_bound_the_loss_from_below",
    ),
    (
      "the sign of sp",
      "jax.nn.softplus(-(member @ scores))",
      "jax.nn.softplus(member @ scores)",
      "test_equation_a19_sums_of_scores",
    ),
    (
      "a search that goes down",
      "kept = gain > 0",
      "kept = gain < 0",
      "test_search_finds_the_maximum_of_a_small_example",
    ),
    (
      "rank without the residuals' sum",
      "min(num_classes - 1, size)",
      "min(num_classes, size)",
      "test_equations_b1_and_b2_the_rank_of_the_updates",
    ),
    (
      "entropy of the squares",
      "share = values / values.sum()",
      "share = values**2 / (values**2).sum()",
      "test_effective_rank_of_known_spectra",
    ),
  ),
  *_table(
    "flatness/_theorems.py",
    "tests/flatness/test_dropout_theorems.py",
    ("mean loss not halved", ".mean() / 2", ".mean()", "test_expected_loss_is_the_mean_over_masks"),
    (
      "penalty subtracted",
      "jnp.square(residual) + ratio",
      "jnp.square(residual) - ratio",
      "test_a_is_twice_the_mean_loss",
    ),
    (
      "variance of the mask",
      "_Moments(q / p,",
      "_Moments(q * p,",
      "test_equation_2_is_exact_on_all_parameters",
    ),
    (
      "units unweighted",
      "jnp.full_like(contributions, noise.second)",
      "jnp.full_like(contributions, 1)",
      "test_theorem_1_is_exact_within_a_layer",
    ),
    (
      "units subtracted",
      "jnp.full_like(contributions, noise.second)",
      "jnp.full_like(contributions, -noise.second)",
      "test_theorem_1_fails_across_layers",
    ),
    ("b without the noise", "b * noise.second", "b", "test_theorem_2_is_computed_as_printed"),
    ("theorem 2 of the residuals alone", "_diagonal(a,", "_diagonal(b,", "test_theorem_2_is_no_identity"),
    ("similar to minus it", "_diagonal(a,", "_diagonal(-a,", "test_hessian_and_covariance_are_similar"),
    ("third moment", "q * (1 - 2 * p)", "q * (2 * p - 1)", "test_moments_of_the_noise"),
    (
      "cross terms of the noise",
      "noise.fourth - 3 * noise.second**2",
      "noise.fourth - noise.second**2",
      "test_exact_covariance_is_that_over_all_masks",
    ),
    (
      "cross terms twice",
      "cross = e * noise.second * f",
      "cross = 2 * e * noise.second * f",
      "test_exact_covariance_is_that_over_all_masks[full_batch-start]",
    ),
    (
      "mean gradient added",
      "*arguments) - jnp.outer(mean, mean)",
      "*arguments) + jnp.outer(mean, mean)",
      "test_exact_covariance_is_that_over_all_masks[single_example-start]",
    ),
    (
      "batch of one mask",
      "_mean_form(covariance, *arguments) / len(inputs)",
      "_mean_form(covariance, *arguments)",
      "test_exact_covariance_at_other_rates",
    ),
    (
      "largest residual below",
      "jnp.square(residual).min()",
      "jnp.square(residual).max()",
      "test_loewner_bounds[start]",
    ),
    (
      "smallest loss above",
      "keep_prob).max()",
      "keep_prob).min()",
      "test_loewner_bounds[trained]",
    ),
    (
      "exact covariance of the wrong sign",
      "own = e**2 * noise.second",
      "own = -(e**2) * noise.second",
      "test_loewner_bounds_do_not_hold_for_the_exact_covariance",
    ),
    (
      "padding counts",
      "(jnp.arange(chunks * size) < number)",
      "(jnp.arange(chunks * size) <= number)",
      "test_chunks_change_nothing",
    ),
  ),
  *_table(
    "flatness/_interval.py",
    "tests/flatness/test_interval.py",
    ("level", "target = factor * loss", "target = (factor + 1) * loss", "test_quadratic"),
    ("level of 2 only", "target = factor * loss", "target = 2 * loss", "test_factor"),
    (
      "one side for both",
      "-at[:, 0], at[:, 1]",
      "-at[:, 1], at[:, 1]",
      "test_sides_are_searched_each_for_itself",
    ),
  ),
  *_table(
    "flatness/_directions.py",
    "tests/flatness/test_directions.py",
    (
      "not normalised",
      "direction / norm(direction) * norm(leaf)",
      "direction * norm(leaf)",
      "test_filters_have_the_norm_of_the_parameters",
    ),
    ("other side", "x + point[0] * a", "x - point[0] * a", "test_profile_and_surface_of_a_quadratic"),
  ),
  *_table(
    "flatness/_covariance.py",
    "tests/flatness/test_samples.py",
    (
      "one sample less",
      "axis=0) / count",
      "axis=0) / (count - 1)",
      "test_covariance_and_projected_variance",
    ),
    (
      "eigenvalues of the scatter",
      "eigh(centred.T @ centred / count)",
      "eigh(centred.T @ centred)",
      "test_principal_components_are_those_of_numpy",
    ),
  ),
  *_table(
    "flatness/_noise.py",
    "tests/flatness/test_samples.py",
    ("biased", "(num_masks - 1) * examples**2", "num_masks * examples**2", "test_few_draws_are_unbiased"),
    (
      "batch of one",
      "(num_masks - 1) * examples**2",
      "(num_masks - 1) * examples",
      "test_per_example_covariance_agrees_with_samples_of_the_whole_gradient[7]",
    ),
  ),
  *_table(
    "flatness/_dense.py",
    "tests/flatness/test_curvature.py",
    (
      "pairs counted once",
      "columns, 1.0, 2.0)",
      "columns, 1.0, 1.0)",
      "test_dense_hessian_is_jax_s[40-True]",
    ),
    (
      "covariance not centred",
      "drawn = drawn - drawn.mean(axis=0, keepdims=True)",
      "drawn = drawn - 0 * drawn.mean(axis=0, keepdims=True)",
      "test_dense_noise_covariance_enumerated",
    ),
  ),
  *_table(
    "flatness/_relations.py",
    "tests/flatness/test_dropout_noise.py",
    ("slope", "slope = (du * dv)", "slope = -(du * dv)", "test_variance_falls_with_flatness"),
    (
      "sign of the slope",
      "slope = (du * dv)",
      "slope = -(du * dv)",
      "test_projected_variance_grows_with_curvature",
    ),
    ("ratio upside down", "trace / isotropic)", "isotropic / trace)", "test_noise_aligns_with_curvature"),
  ),
  *_table(
    "flatness/_relations.py",
    "tests/flatness/test_relations.py",
    ("trace of the noise", "curvature * noise / size", "curvature * noise", "test_alignment_of_matrices"),
  ),
  *_table(
    "flatness/_interval.py",
    "tests/flatness/test_interval.py",
    (
      "no number is small",
      "nan=jnp.inf, posinf",
      "nan=-jnp.inf, posinf",
      "test_sides_are_searched_each_for_itself",
    ),
    (
      "flat counts as crossed",
      "found = (near > 0) & jnp.isfinite(far) & (far <= cap)",
      "found = near > 0",
      "test_a_flat_direction_is_infinite_and_flagged",
    ),
  ),
  *_table(
    "flatness/_lanczos.py",
    "tests/flatness/test_lanczos.py",
    (
      "rounding scaled up",
      "done = length <= tiny * scale",
      "done = length < 0",
      "test_low_rank_and_eigenvalues_that_repeat[values0-float32]",
    ),
    (
      "orthogonal to the last only",
      "w = away(basis, away(basis, w))",
      "w = w - (v @ w) * v",
      "test_low_rank_and_eigenvalues_that_repeat[values2-float32]",
    ),
    (
      "error of the probes",
      "factor = math.sqrt(num / (num - 1))",
      "factor = 1.0 * num / num",
      "test_standard_error_of_two_probes",
    ),
  ),
  *_table(
    "flatness/_operators.py",
    "tests/flatness/test_curvature.py",
    (
      "not symmetrised",
      "return (matrix + matrix.T) / 2",
      "return matrix",
      "test_matrices_are_symmetric_to_the_last_bit",
    ),
  ),
  *_table(
    "flatness/_covariance.py",
    "tests/flatness/test_samples.py",
    (
      "rounding counts",
      "kept = values > tol * values[0]",
      "kept = values > -1",
      "test_dead_units_are_no_components",
    ),
  ),
  *_table(
    "flatness/_dense.py",
    "tests/flatness/test_curvature.py",
    ("mean for losses", "if jnp.shape(losses) != z.shape[:1]:", "if False:", "test_bad_arguments"),
  ),
  *_table(
    "flatness/_common.py",
    "tests/flatness/test_common.py",
    (
      "the platform's precision",
      'default_matmul_precision("highest")',
      'default_matmul_precision("default")',
      "test_products_are_in_full_precision[hessian]",
    ),
  ),
  *_table(
    "train/subject.py",
    "tests/train/test_flatness_job.py",
    (
      "layer in the platform's precision",
      "  @analysis\n  def layer_at",
      "  def layer_at",
      "test_the_layer_and_the_loss_are_made_in_full_precision",
    ),
  ),
  *_table(
    "noise/_dropout.py",
    "tests/flatness/test_dropout_noise.py",
    (
      "keep and drop",
      "1.0 - jnp.asarray(rate, jnp.float32), tuple(shape)",
      "jnp.asarray(rate, jnp.float32), tuple(shape)",
      "test_keep_probability_is_one_less_the_rate[ours]",
    ),
  ),
  *_table(
    "penalties/_l2.py",
    "tests/penalties/test_weight_penalties.py",
    ("no half", "0.5 * jnp.square", "1.0 * jnp.square", "test_l2_step"),
    ("no half, minimum", "0.5 * jnp.square", "1.0 * jnp.square", "test_the_factor_of_a_half"),
    (
      "no half, decay",
      "0.5 * jnp.square",
      "1.0 * jnp.square",
      "test_penalty_and_coupled_decay_are_one_trajectory",
    ),
  ),
  *_table(
    "penalties/_leaves.py",
    "tests/penalties/test_weight_penalties.py",
    ("derivative of |0|", "return jnp.sign(x) * x", "return jnp.abs(x)", "test_l1_gradient_at_zero"),
    (
      "zeros pushed away",
      "return jnp.sign(x) * x",
      "return jnp.abs(x)",
      "test_l1_leaves_a_layer_of_zeros_alone",
    ),
    (
      "gradient of a zero norm",
      "jnp.where(largest > 0, jnp.sqrt(jnp.where(largest > 0, squared, 1)), 0)",
      "jnp.sqrt(squared)",
      "test_a_group_of_zeros_has_a_gradient_of_zero",
    ),
    (
      "norm not scaled",
      "safe = jnp.where(largest > 0, largest, 1)",
      "safe = jnp.ones_like(largest)",
      "test_a_norm_neither_overflows_nor_vanishes",
    ),
  ),
  *_table(
    "penalties/_leaves.py",
    "tests/penalties/test_activity.py",
    (
      "derivative of |0| in a code",
      "return jnp.sign(x) * x",
      "return jnp.abs(x)",
      "test_an_l1_code_has_exact_zeros_where_the_theory_has_them",
    ),
    (
      "derivative of |0| of an activation",
      "return jnp.sign(x) * x",
      "return jnp.abs(x)",
      "test_l1_activity_is_one_value_an_example_with_no_gradient_at_zero",
    ),
  ),
  *_table(
    "penalties/_leaves.py",
    "tests/penalties/test_penalized.py",
    (
      "mask ignored",
      "for name, leaf, taken in leaves if taken]",
      "for name, leaf, taken in leaves]",
      "test_gradient_is_that_of_the_loss_and_alpha_times_the_penalty_s",
    ),
  ),
  *_table(
    "paths.py",
    "tests/penalties/test_weight_penalties.py",
    (
      "all but the first axis",
      "return tuple(range(max(ndim - 1, min(ndim, 1))))",
      "return tuple(range(min(ndim - 1, 1), ndim))",
      "test_a_group_is_what_comes_into_a_unit",
    ),
  ),
  *_table(
    "paths.py",
    "tests/constraints/test_norms.py",
    (
      "query as a dense kernel",
      'above[-1] in ("query", "key", "value")',
      'above[-1] in ("key", "value")',
      "test_the_axis_is_that_of_the_incoming_weights",
    ),
    (
      "embedding by column",
      "return tuple(range(ndim))[-1:]",
      "return tuple(range(ndim))[:-1]",
      "test_the_axis_is_that_of_the_incoming_weights",
    ),
  ),
  *_table(
    "penalties/_group_lasso.py",
    "tests/penalties/test_weight_penalties.py",
    (
      "size, not its root",
      "return math.sqrt(math",
      "return float(math",
      "test_a_group_is_what_comes_into_a_unit",
    ),
  ),
  *_table(
    "penalties/_orthogonality.py",
    "tests/penalties/test_weight_penalties.py",
    (
      "the larger side",
      "if matrix.shape[0] < matrix.shape[1]",
      "if matrix.shape[0] > matrix.shape[1]",
      "test_orthonormal_columns_or_rows_cost_nothing",
    ),
    (
      "sides confused",
      "if matrix.shape[0] < matrix.shape[1]",
      "if matrix.shape[0] > matrix.shape[1]",
      "test_the_two_sides_differ_by_a_constant",
    ),
  ),
  *_table(
    "penalties/_priors.py",
    "tests/penalties/test_weight_penalties.py",
    (
      "the constant once",
      "_count(params, mask) * (jnp.log(rate)",
      "(jnp.log(rate)",
      "test_laplace_prior_is_the_log_density",
    ),
    (
      "log 2 added",
      "(jnp.log(rate) - math.log(2))",
      "(jnp.log(rate) + math.log(2))",
      "test_laplace_prior_is_the_log_density",
    ),
    (
      "variance, not its root",
      "0.5 * (jnp.log(precision)",
      "1.0 * (jnp.log(precision)",
      "test_gaussian_prior_is_the_log_density",
    ),
    (
      "the constant once, normal",
      "_count(params, mask) * half_log",
      "half_log",
      "test_the_most_likely_precision",
    ),
  ),
  *_table(
    "penalties/_tying.py",
    "tests/penalties/test_tying.py",
    (
      "sum for difference",
      "jnp.square(a[rest] - b[rest])",
      "jnp.square(a[rest] + b[rest])",
      "test_a_strong_tie_is_sharing",
    ),
    (
      "a half",
      "terms += [jnp.square(a",
      "terms += [0.5 * jnp.square(a",
      "test_gradients_are_twice_the_difference",
    ),
    (
      "no half",
      "terms.append(0.5 * ",
      "terms.append(1.0 * ",
      "test_l2_sp_of_zero_is_l2_and_of_itself_nothing",
    ),
  ),
  *_table(
    "penalties/_activity.py",
    "tests/penalties/test_activity.py",
    (
      "not absolute",
      "return zero.mean",
      "return 1 - zero.mean",
      "test_sparse_parameters_and_sparse_representations",
    ),
    (
      "divergence the other way",
      "target * jnp.log(target / mean)",
      "mean * jnp.log(mean / target)",
      "test_kl_sparsity_is_the_divergence_of_the_mean",
    ),
    (
      "gradient stops at the clip",
      "mean += jax.lax.stop_gradient(jnp.clip(mean, eps, 1 - eps) - mean)",
      "mean = jnp.clip(mean, eps, 1 - eps)",
      "test_kl_sparsity_leads_away_from_dead_and_saturated_units",
    ),
    (
      "each device's own mean",
      "if axis_name is not None:",
      "if False:",
      "test_kl_sparsity_of_padded_and_divided_batches",
    ),
  ),
  *_table(
    "penalties/_gradient.py",
    "tests/penalties/test_gradient_penalty.py",
    (
      "not squared",
      "return jnp.square(gradient",
      "return jnp.abs(gradient",
      "test_input_noise_on_a_linear_model_is_the_squared_norm",
    ),
    (
      "not squared, network",
      "return jnp.square(gradient",
      "return jnp.abs(gradient",
      "test_input_noise_on_a_network_has_a_second_term",
    ),
    ("no factor of outputs", "scale = size / num", "scale = 1 / num", "test_random_projections_are_unbiased"),
  ),
  *_table(
    "penalties/_penalized.py",
    "tests/penalties/test_penalized.py",
    (
      "penalty subtracted",
      "jnp.multiply(weight, ",
      "jnp.multiply(-weight, ",
      "test_terms_have_names_and_sum_to_the_loss",
    ),
    (
      "weight ignored",
      "jnp.multiply(weight, ",
      "jnp.multiply(1.0, ",
      "test_weight_zero_is_the_loss_itself",
    ),
  ),
  *_table(
    "constraints/_prox.py",
    "tests/constraints/test_prox.py",
    ("hard threshold", "jnp.sqrt(2 * _threshold", "jnp.sqrt(_threshold", "test_is_the_minimiser_on_a_grid"),
    (
      "L2 in full",
      "(1 + strength * (1 - ratio))",
      "(1 + 2 * strength * (1 - ratio))",
      "test_is_the_minimiser_on_a_grid",
    ),
    ("threshold of groups", "norms - at)", "norms + at)", "test_group_lasso_is_the_minimiser"),
    (
      "threshold without the step",
      "return jnp.multiply(step, weight)",
      "return jnp.multiply(1.0, weight)",
      "test_a_chain_reaches_the_solution_with_exact_zeros",
    ),
    (
      "schedule stands still",
      "optax.safe_increment(state.count)",
      "state.count",
      "test_the_threshold_follows_the_schedule",
    ),
    (
      "update forgotten",
      "p, u: wide(p) + wide(u), params, updates)",
      "p, u: wide(p), params, updates)",
      "test_a_chain_reaches_the_solution_with_exact_zeros",
    ),
  ),
  *_table(
    "constraints/_prox.py",
    "tests/constraints/test_project.py",
    (
      "step not replaced",
      "(after - wide(p))",
      "(after - before)",
      "test_feasible_after_every_step_if_it_comes_last",
    ),
    (
      "interior rounded",
      "jnp.where(after == before, u, ",
      "jnp.where(False, u, ",
      "test_interior_steps_are_untouched",
    ),
    ("no projection", "(after - wide(p))", "(before - wide(p))", "test_explosion"),
    (
      "no projection, alive",
      "jnp.where(after == before, u, ",
      "jnp.where(False, 2 * u, -",
      "test_dead_units",
    ),
  ),
  *_table(
    "constraints/_project.py",
    "tests/constraints/test_project.py",
    (
      "rounded before the projection",
      "lambda p, u: wide(p) + wide(u), params, updates))",
      "lambda p, u: p + u, params, updates))",
      "test_bfloat16_needs_the_projection_after_the_update",
    ),
  ),
  *_table(
    "constraints/_norms.py",
    "tests/constraints/test_norms.py",
    (
      "always scaled",
      "outside = norms > limit",
      "outside = norms > 0",
      "test_only_the_column_that_is_too_long_is_changed",
    ),
    (
      "no column bounded",
      "outside = norms > limit",
      "outside = norms < 0",
      "test_the_axis_is_that_of_the_incoming_weights",
    ),
    ("rate upside down", "rate * jnp.clip", "(1 - rate) * jnp.clip", "test_min_max_norm"),
  ),
  *_table(
    "constraints/_lagrangian.py",
    "tests/constraints/test_lagrangian.py",
    (
      "descent",
      "state.multiplier + learning_rate",
      "state.multiplier - learning_rate",
      "test_a_step_of_ascent",
    ),
    (
      "below zero",
      "multiplier = jax.nn.relu(",
      "multiplier = jnp.asarray(",
      "test_a_constraint_that_does_not_bind_has_no_multiplier",
    ),
    (
      "sign of the bound",
      "(penalty - bound)",
      "(bound - penalty)",
      "test_ascent_penalty_and_projection_agree",
    ),
    (
      "gradient to the multiplier",
      "jax.lax.stop_gradient(state.multiplier)",
      "state.multiplier",
      "test_the_gradient_reaches_the_parameters_and_not_the_multiplier",
    ),
    (
      "mean not corrected",
      "(mean / weight - bound)",
      "(mean - bound)",
      "test_a_running_mean_of_noisy_penalties",
    ),
  ),
  *_table(
    "theory/_ridge.py",
    "tests/theory/test_ridge.py",
    (
      "the lecture's own solution",
      "jnp.divide(alpha, 2)",
      "jnp.divide(alpha, 1)",
      "test_lecture_s_objective_has_half_of_alpha",
    ),
    (
      "sign of alpha",
      "matrix + added * jnp.eye",
      "matrix - added * jnp.eye",
      "test_ridge_is_least_squares_with_more_rows",
    ),
    (
      "sign of alpha, minimum",
      "matrix + added * jnp.eye",
      "matrix - added * jnp.eye",
      "test_minimum_and_its_shrinkage",
    ),
    ("shrinkage upside down", "total > 0, eigvals / ", "total > 0, alpha / ", "test_limits_of_the_shrinkage"),
    (
      "bias and variance",
      "jnp.square((1 - kept) * w_star)",
      "jnp.square(kept * w_star)",
      "test_bias_and_variance_against_draws",
    ),
    (
      "alpha not squared",
      "s / jnp.where(counts, s**2 + alpha, 1)",
      "s / jnp.where(counts, s**2 + alpha**0.5, 1)",
      "test_pseudo_inverse_is_the_limit",
    ),
  ),
  *_table(
    "theory/_soft_threshold.py",
    "tests/theory/test_l1_solution.py",
    (
      "threshold upside down",
      "alpha / jnp.where(curved, diagonal, 1)",
      "alpha * jnp.where(curved, diagonal, 1)",
      "test_zero_or_shifted",
    ),
  ),
  *_table(
    "theory/_early_stopping.py",
    "tests/theory/test_early_stopping_theory.py",
    ("sign of odd powers", "steps % 2 == 1", "steps % 2 == 0", "test_the_filter_is_the_trajectory"),
    (
      "what is left",
      "eigvals * (1 - reached) /",
      "eigvals * (1 + reached) /",
      "test_the_exact_penalty_and_the_exact_steps",
    ),
    (
      "twice the steps",
      "simple = 1 / jnp.asarray(learning_rate * jnp.asarray(steps",
      "simple = 2 / jnp.asarray(learning_rate * jnp.asarray(steps",
      "test_the_approximation_gets_better_with_smaller_eigenvalues",
    ),
  ),
]


def run(
  folder: pathlib.Path, tests: list[str], mutation: Mutation | None = None
) -> subprocess.CompletedProcess:
  """Runs `tests` against a copy of the package in `folder`, mutated or as it is."""
  shutil.copytree(REPOSITORY / "jaxreg", folder / "jaxreg", ignore=shutil.ignore_patterns("__pycache__"))
  if mutation is not None:
    file = folder / "jaxreg" / mutation.file
    text = file.read_text()
    if (found := text.count(mutation.old)) != 1:
      raise ValueError(f"{mutation.name}: {mutation.old!r} is {found} times in {mutation.file}, not once")
    file.write_text(text.replace(mutation.old, mutation.new))
  pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=line"]
  where = ["--rootdir", str(REPOSITORY), "-c", str(REPOSITORY / "pyproject.toml")]
  env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
  return subprocess.run(
    [*pytest, *where, *(str(REPOSITORY / test) for test in tests)],
    cwd=folder,  # `python -m` looks there first
    env={**env, "PYTHONPATH": str(folder)},
    capture_output=True,
    text=True,
  )
