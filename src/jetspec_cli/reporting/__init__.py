"""Tables, JSON, JUnit and plots."""
