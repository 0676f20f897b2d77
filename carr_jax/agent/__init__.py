"""Episodes: tokens in, tokens out.  Never imports jax."""
