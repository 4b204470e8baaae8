"""The command line: its declarations and what turns them into click commands. Imports nothing heavy."""
