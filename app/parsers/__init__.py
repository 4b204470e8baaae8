"""What the command line takes: one parser for all of it, and those of its larger commands. Imports nothing heavy."""
