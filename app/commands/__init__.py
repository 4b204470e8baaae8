"""The subcommands of `logprobe`, one module each: ``run(arguments)`` does the work and returns the exit code.

Only the module of the command that was asked for is imported; it is declared in `logprobe.app.surface.commands`.
"""
