"""Calling services that are paid, limited and sometimes away: whose turn it is, what it costs.  Without jax."""
