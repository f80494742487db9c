"""The paper's tables and figures: files that run, and what came of them beside what was published."""
