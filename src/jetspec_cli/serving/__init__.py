"""Servers seen from outside: speaking to one over HTTP, and starting one as a child process."""
