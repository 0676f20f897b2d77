"""CaRR rewards: citations, the three steps, the outcome, mixing.  Never imports jax."""
