"""Metrics, the live table, the HTML report."""
