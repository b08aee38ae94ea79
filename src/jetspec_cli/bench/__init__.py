"""Measuring: plans of interleaved arms, timed requests, statistics, verdicts, result documents."""
