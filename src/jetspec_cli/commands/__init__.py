"""One thin file a command."""
