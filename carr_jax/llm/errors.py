"""What can go wrong with the reply of a language model."""

from __future__ import annotations


class Unusable(Exception):
    """A reply that does not say what was asked, or says two things; the text is one line."""
