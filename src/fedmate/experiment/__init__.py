"""Experiments: from a declaration to a record."""
