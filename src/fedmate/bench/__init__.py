"""How fast rounds are: what `fedmate bench` measures, and what it is compared with.

case        one thing to measure: a method on a network, so many clients, run by whom
suites      which cases belong together
measure     run a case and time its rounds
worker      a process of its own, in which cases run
roofline    what the machine could do at best, and the work of a round
rivals      the same work done by others: a plain loop, JAX, Flower
results     what was measured, as a file
tables      the same as a table or a picture
"""
