"""How fast rounds are, beside baselines that do the same work: `python -m benchmarks --help`.

case        one thing to measure: a method, a network, a number of clients, a runner
suites      which cases belong together
measure     time the rounds of a case in a process of its own
tables      the results as tables and as a plot
baselines   the same work done by a plain loop, JAX, Flower, pfl-research

The other files are scripts that measure one thing each; a page of `docs/` cites each of them.
"""
