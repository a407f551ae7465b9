"""Kobayashi, `Group Softmax Loss with Discriminative Feature Grouping`, 2021: groupings, trends."""

from papers.group_softmax._groupings import (
  effective_rank,
  equal_partitions,
  group_relaxation,
  grouping_losses,
  search_grouping,
  update_rank,
)

__all__ = [
  "effective_rank",
  "equal_partitions",
  "group_relaxation",
  "grouping_losses",
  "search_grouping",
  "update_rank",
]
