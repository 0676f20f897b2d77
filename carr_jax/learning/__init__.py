"""From rewards to new weights: advantages, packing, losses, the jitted step, checkpoints."""
