"""Threads, forks, signals, failpoints, and calls of users' functions: what a process does, whatever it computes."""
