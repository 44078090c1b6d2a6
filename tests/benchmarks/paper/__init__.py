"""The tables and figures of the papers, and the project's own targets, measured again.

Every experiment is a function that gives jobs; a job is one draw of data or frequencies and gives
records (`records.Run`). Tables and pictures are made of records and of nothing else. `make paper`
runs all of them, `python -m tests.benchmarks.paper acceptance` measures the targets.
"""
