"""Engines that sample turns, and the scheduler that keeps episodes in flight."""
