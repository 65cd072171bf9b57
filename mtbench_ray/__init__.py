"""A Ray-distributed evaluator for MT-Bench."""

__version__ = "0.1.0"
