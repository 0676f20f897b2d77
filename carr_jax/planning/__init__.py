"""What a training step will need, worked out before any chip is rented: FLOPs, memory, traffic."""
