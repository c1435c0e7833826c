"""Aggregation: the weight of each sampled token in the batch's loss.

The loss is Σ weight·token loss, with weights from the *whole* batch's counts. So a batch may be cut into any number of
micro-batches or ranks, summed, and give the same loss and gradient.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpu_workers.contracts.runspec import Aggregation


def episode_token_weights(
    kind: Aggregation, num_tokens_E: Sequence[int], *, max_tokens: int = 0
) -> NDArray[np.float64]:
    """Weight of every m=1 token of each episode, from the sampled-token counts of all trained episodes of the batch.

    token_mean (DAPO): 1/Σn. sequence_mean (GRPO): 1/(E·n_e), over the E episodes that have tokens.
    fixed_length (Dr. GRPO): 1/(E·max_tokens). An episode without sampled tokens has weight 0.
    """
    counts = np.asarray(num_tokens_E, dtype=np.float64)
    if (counts < 0).any():
        raise ValueError(f"negative token count in {list(num_tokens_E)}")
    has_tokens = counts > 0
    weights = np.zeros_like(counts)
    if not has_tokens.any():
        return weights
    if kind is Aggregation.TOKEN_MEAN:
        weights[has_tokens] = 1.0 / counts.sum()
    elif kind is Aggregation.SEQUENCE_MEAN:
        weights[has_tokens] = 1.0 / (has_tokens.sum() * counts[has_tokens])
    else:
        if max_tokens < 1:
            raise ValueError("fixed_length aggregation needs max_tokens, the most tokens an episode may sample")
        weights[has_tokens] = 1.0 / (has_tokens.sum() * max_tokens)
    return weights
