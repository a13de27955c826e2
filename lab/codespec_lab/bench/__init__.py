"""The benchmarks: one harness, and a scenario (a module or package) for each `codespec bench` command.

`settings` declares every command's flags as the fields of a dataclass. A module with a `SCENARIO` turns these into
figures (plain JSON values), and the figures into a report; `harness` runs it and writes its files. Sites,
pairs, statistics, tables and plots (`report`) are shared. lab/LOG.md records all measurements with their dates,
including failures.
"""
