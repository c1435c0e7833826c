"""Token weights of each aggregation, by hand and under any cut into micro-batches."""

import numpy as np
import pytest

from gpu_workers.algorithms.aggregation import episode_token_weights
from gpu_workers.contracts.runspec import Aggregation


def test_token_mean_counts_every_token_alike():
    np.testing.assert_allclose(episode_token_weights(Aggregation.TOKEN_MEAN, [1, 3, 0, 4]), [1 / 8, 1 / 8, 0, 1 / 8])


def test_sequence_mean_counts_every_episode_alike():
    weights = episode_token_weights(Aggregation.SEQUENCE_MEAN, [1, 3, 0, 4])
    np.testing.assert_allclose(weights, [1 / 3, 1 / 9, 0, 1 / 12])
    assert np.dot(weights, [1, 3, 0, 4]) == pytest.approx(1.0)


def test_fixed_length_divides_by_a_constant():
    weights = episode_token_weights(Aggregation.FIXED_LENGTH, [1, 3], max_tokens=10)
    np.testing.assert_allclose(weights, [1 / 20, 1 / 20])
    with pytest.raises(ValueError, match="max_tokens"):
        episode_token_weights(Aggregation.FIXED_LENGTH, [1, 3])


@pytest.mark.parametrize("kind", list(Aggregation))
def test_a_batch_without_sampled_tokens_has_no_weight(kind: Aggregation):
    assert episode_token_weights(kind, [0, 0], max_tokens=4).tolist() == [0.0, 0.0]


def test_a_negative_count_is_refused():
    with pytest.raises(ValueError, match="negative"):
        episode_token_weights(Aggregation.TOKEN_MEAN, [2, -1])
