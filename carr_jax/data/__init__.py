"""Question and page files."""
