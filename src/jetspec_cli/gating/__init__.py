"""The correctness gate: prompts, runs, comparison, verdicts, reports."""
