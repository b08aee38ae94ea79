"""Which target layers a draft head listens to when its configuration does not say.

Knows nothing of tensors. "The state of layer i" is the residual stream *after* layer i (0-based), which Hugging Face's
``hidden_states`` tuple holds at index i + 1.

Source: the layer rule of the public DFlash and JetSpec heads.
"""


def default_target_layer_ids(num_target_layers: int, num_draft_layers: int) -> tuple[int, ...]:
    """Return the tapped layers: evenly spread from layer 1 to layer ``num_target_layers - 3``, both included.

    Args:
        num_target_layers: layers of the target, >= 1.
        num_draft_layers: layers of the head, >= 1; one layer taps the middle of the target.

    Returns:
        One 0-based layer index per draft layer, ascending. 36 and 5 give (1, 9, 17, 25, 33). Targets too shallow for
        the rule give duplicates or negative indices, which ``HeadConfig`` refuses.
    """
    if num_draft_layers == 1:
        return (num_target_layers // 2,)
    span = num_target_layers - 4
    return tuple(round(1 + index * span / (num_draft_layers - 1)) for index in range(num_draft_layers))
