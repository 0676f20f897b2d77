"""What the tools reach: a corpus index and the built-in world.  Never imports jax."""
