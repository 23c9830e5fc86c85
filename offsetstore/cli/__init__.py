"""The command line ``offsetstore``: one file a command. Needs the extra ``cli``."""
