"""The policy: Qwen3, dense and mixture of experts.  Knows nothing of search."""
