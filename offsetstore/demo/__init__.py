"""``offsetstore demo``: real flights, a job that is killed in the middle of its batches, and a count at the end."""
