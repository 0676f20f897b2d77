"""Asking language models over HTTP: client, reply reader, reply cache, account book.  Never imports jax."""
