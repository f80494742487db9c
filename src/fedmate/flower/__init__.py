"""Flower as a carrier: the same methods on its virtual clients, and on sites that it connects. Nobody else knows it."""
