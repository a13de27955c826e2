"""The benchmarks: shared modules (sites, pair, steps, daemon, results, statistics, report, plot), and a package or
module for each `codespec bench` command.

A scenario's `run` turns settings into figures (plain JSON values) with its `summary`; its `report` turns figures into
lines and charts. lab/LOG.md records all measurements with their dates, including failures.
"""
