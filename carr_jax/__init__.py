"""carr_jax: train deep-search agents with citation-aware rubric rewards (CaRR) and C-GRPO in JAX."""

__version__ = "0.1.0"
