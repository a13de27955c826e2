"""The benchmarks: what they share (sites, pair, steps, daemon, results, statistics, report, plot), and a package or
module for each `codespec bench` command.

A scenario's `run` turns settings into figures as plain JSON values, by way of its `summary`; its `report` turns figures
into lines and charts. lab/LOG.md keeps what was measured when, failures too.
"""
