"""Studies: methods x settings x seeds, run once, shared among processes and made into tables; and tuning."""
