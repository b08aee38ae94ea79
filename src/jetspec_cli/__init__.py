"""The jetspec command line: the only place that prints, exits and reads the environment."""
