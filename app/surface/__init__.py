"""The command line: declarations and their conversion to click commands, without heavy imports."""
